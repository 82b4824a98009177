/* Vectors as bfloat16, the upper half of a float32: half the bytes, eight bits of precision.

   Numbers are rounded to the nearest one, and to the even one of two. A finite float32 stays finite:
   beyond the largest bfloat16 it becomes that. A double is rounded to float32 first.

   C and not Cython, to be compiled once per instruction set. Element by element: the same bits in
   each. */
#ifndef DPS_BFLOAT16_H
#define DPS_BFLOAT16_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "clones.h"

DPS_ALWAYS uint16_t dps_bfloat16(float x)
{
    uint32_t bits, magnitude, rounded;
    memcpy(&bits, &x, sizeof(bits));
    magnitude = bits & 0x7fffffff;
    rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    if (magnitude >= 0x7f7f8000 && magnitude < 0x7f800000) rounded = (bits >> 16 & 0x8000) | 0x7f7f;
    if (magnitude > 0x7f800000) rounded = 0x7fc0; /* NaN, whatever its bits are */
    return (uint16_t) rounded;
}

DPS_ALWAYS float dps_float_of(uint16_t x)
{
    uint32_t bits = (uint32_t) x << 16;
    float wide;
    memcpy(&wide, &bits, sizeof(wide));
    return wide;
}

#define DPS_BFLOAT16_VECTORS(T)                                                                    \
    /* out = x + error, rounded; error becomes what rounding has left over. */                     \
    DPS_CLONES static void dps_narrow_##T(                                                         \
        uint16_t *restrict out, const T *restrict x, T *restrict error, ptrdiff_t n)               \
    {                                                                                              \
        for (ptrdiff_t i = 0; i < n; i++) {                                                        \
            T value = x[i] + error[i];                                                             \
            out[i] = dps_bfloat16((float) value);                                                  \
            error[i] = value - (T) dps_float_of(out[i]);                                           \
        }                                                                                          \
    }                                                                                              \
    /* out = x - known, rounded; known += out. */                                                  \
    DPS_CLONES static void dps_narrow_change_##T(                                                  \
        uint16_t *restrict out, const T *restrict x, T *restrict known, ptrdiff_t n)               \
    {                                                                                              \
        for (ptrdiff_t i = 0; i < n; i++) {                                                        \
            out[i] = dps_bfloat16((float) (x[i] - known[i]));                                      \
            known[i] += (T) dps_float_of(out[i]);                                                  \
        }                                                                                          \
    }                                                                                              \
    /* out = x */                                                                                  \
    DPS_CLONES static void dps_widen_##T(                                                          \
        T *restrict out, const uint16_t *restrict x, ptrdiff_t n)                                  \
    {                                                                                              \
        for (ptrdiff_t i = 0; i < n; i++) out[i] = (T) dps_float_of(x[i]);                         \
    }                                                                                              \
    /* out += x */                                                                                 \
    DPS_CLONES static void dps_add_widened_##T(                                                    \
        T *restrict out, const uint16_t *restrict x, ptrdiff_t n)                                  \
    {                                                                                              \
        for (ptrdiff_t i = 0; i < n; i++) out[i] += (T) dps_float_of(x[i]);                        \
    }

DPS_BFLOAT16_VECTORS(float)
DPS_BFLOAT16_VECTORS(double)

#endif
