/* Subnormal numbers are zero between dps_no_subnormals and dps_restore, in this thread.

   A penalty shrinks parameters that no row needs by a factor per step, so that they pass through the
   subnormal numbers, with which processors compute far more slowly. On processors other
   than x86 and 64-bit ARM nothing changes. */
#ifndef DPS_SUBNORMAL_H
#define DPS_SUBNORMAL_H

#include <stdint.h>

#if defined(__SSE2__) || defined(_M_X64)
#include <xmmintrin.h>

enum { DPS_ZEROS = 0x8040 }; /* results, and operands */

static inline uint64_t dps_no_subnormals(void)
{
    unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | DPS_ZEROS);
    return mode;
}

static inline void dps_restore(uint64_t mode) { _mm_setcsr((unsigned)mode); }

#elif defined(__aarch64__) && defined(__GNUC__)

static inline void dps_restore(uint64_t mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode)); }

static inline uint64_t dps_no_subnormals(void)
{
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    dps_restore(mode | (uint64_t)1 << 24);
    return mode;
}

#else

static inline uint64_t dps_no_subnormals(void) { return 0; }

static inline void dps_restore(uint64_t mode) { (void)mode; }

#endif
#endif
