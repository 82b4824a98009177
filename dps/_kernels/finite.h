/* What is not finite, seen without a branch: x - x is a positive zero of a finite x, and else NaN.

   Its bits, or-ed over elements, are zero while all were finite. An integer `or` of the elements'
   width vectorises; a comparison of doubles does not on plain x86-64, and a short-circuit never
   does. */
#ifndef DPS_FINITE_H
#define DPS_FINITE_H

#include <stdint.h>
#include <string.h>

#include "clones.h"

#define DPS_NOT_FINITE_OF(T, BITS)                                                                 \
    /* The bits of x - x. */                                                                       \
    DPS_ALWAYS BITS dps_not_finite_##T(T x)                                                        \
    {                                                                                              \
        T zero = x - x;                                                                            \
        BITS bits;                                                                                 \
        memcpy(&bits, &zero, sizeof(bits));                                                        \
        return bits;                                                                               \
    }

DPS_NOT_FINITE_OF(float, int32_t)
DPS_NOT_FINITE_OF(double, int64_t)

#endif
