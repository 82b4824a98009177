/* DPS_CLONES before a function compiles it once per instruction set; the loader picks by processor.
   Only gcc with glibc on x86-64 can; elsewhere there is the one that every processor runs.
   DPS_ALWAYS is before what such a function calls, to be compiled with it. */
#ifndef DPS_CLONES_H
#define DPS_CLONES_H

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__gnu_linux__)      \
    && !defined(DPS_PORTABLE)
#define DPS_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#define DPS_CAN(set) (__builtin_cpu_init(), __builtin_cpu_supports(set))
#else
#define DPS_CLONES
#define DPS_CAN(set) 0
#endif
#define DPS_ALWAYS static inline __attribute__((always_inline))

/* The set that the loader has picked. */
DPS_ALWAYS const char *dps_instructions(void)
{
    return DPS_CAN("avx512f") ? "AVX-512" : DPS_CAN("avx2") ? "AVX2" : "baseline";
}

#endif
