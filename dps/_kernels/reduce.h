/* Loops over parts of vectors that sums over ranks are made of, for float and double.

   C and not Cython, to be compiled once per instruction set. Element by element: the same bits in
   each. */
#ifndef DPS_REDUCE_H
#define DPS_REDUCE_H

#include <stddef.h>
#include <stdint.h>

#include "clones.h"
#include "finite.h"

#define DPS_REDUCE(T, BITS)                                                                        \
    /* out += x */                                                                                 \
    DPS_CLONES static void dps_add_##T(T *restrict out, const T *restrict x, ptrdiff_t n)          \
    {                                                                                              \
        for (ptrdiff_t i = 0; i < n; i++) out[i] += x[i];                                          \
    }                                                                                              \
    /* x /= by */                                                                                  \
    DPS_CLONES static void dps_divide_##T(T *x, T by, ptrdiff_t n)                                 \
    {                                                                                              \
        for (ptrdiff_t i = 0; i < n; i++) x[i] /= by;                                              \
    }                                                                                              \
    /* Whether all elements are finite. */                                                         \
    DPS_CLONES static int dps_is_finite_##T(const T *x, ptrdiff_t n)                               \
    {                                                                                              \
        BITS seen = 0;                                                                             \
        for (ptrdiff_t i = 0; i < n; i++) seen |= dps_not_finite_##T(x[i]);                        \
        return seen == 0;                                                                          \
    }                                                                                              \
    /* out = x, and whether all elements are finite. */                                            \
    DPS_CLONES static int dps_copy_checked_##T(T *restrict out, const T *restrict x, ptrdiff_t n)  \
    {                                                                                              \
        BITS seen = 0;                                                                             \
        for (ptrdiff_t i = 0; i < n; i++) {                                                        \
            T value = x[i];                                                                        \
            out[i] = value;                                                                        \
            seen |= dps_not_finite_##T(value);                                                     \
        }                                                                                          \
        return seen == 0;                                                                          \
    }

DPS_REDUCE(float, int32_t)
DPS_REDUCE(double, int64_t)

#endif
