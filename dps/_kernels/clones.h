/* DPS_CLONES before a function compiles it once per instruction set; the loader picks by processor.
   Only gcc with glibc on x86-64 can; elsewhere there is the one that every processor runs.
   DPS_ALWAYS is before what such a function calls, to be compiled with it. */
#ifndef DPS_CLONES_H
#define DPS_CLONES_H

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__gnu_linux__)      \
    && !defined(DPS_PORTABLE)
#define DPS_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define DPS_CLONES
#endif
#define DPS_ALWAYS static inline __attribute__((always_inline))

#endif
