/* The exponential of numbers that are not positive, and the logistic loss, in loops that vectorise.

   A math library is called element by element and would take most of a pass over the data. Here
   exp(x) is 2^n exp(r) with r within ln(2)/2 of zero and a Taylor polynomial for exp(r), and
   log(1 + e) is 2 artanh(e / (2 + e)) by its series, which keeps all digits where e is small. Both
   are good to about two units in the last place. A sum of terms waits for each term before: even
   and odd ones are two sums. IEEE operations in a fixed order, no fused multiply-add: the same bits
   in every instruction set, in a vector or in its remainder.
   A branch behind which numbers are known keeps gcc from vectors where these have no masks: what is
   cut off is so in a loop of its own, and exponential and logarithm have theirs.
   Where exp would be below the smallest normal number it is zero, or nearly. NaN stays NaN. */
#ifndef DPS_LOGISTIC_H
#define DPS_LOGISTIC_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "clones.h"

/* -88 (-709) <= x <= 0: at the least, 2^n has no normal number and is zero. Adding 1.5 * 2^23
   (2^52) leaves n = round(x / ln 2) in the low bits. */
DPS_ALWAYS float dps_exp_element_float(float x)
{
    const float shift = 12582912.0f;
    float shifted = x * 1.44269504f + shift;
    float n = shifted - shift;
    float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
    float s = r * r;
    float odd = 1.98412698e-4f, even = 1.38888889e-3f;
    odd = odd * s + 8.33333333e-3f;
    even = even * s + 4.16666667e-2f;
    odd = odd * s + 1.66666667e-1f;
    even = even * s + 0.5f;
    float p = 1.0f + (r + s * (even + r * odd));
    int32_t bits;
    memcpy(&bits, &shifted, sizeof(bits));
    bits = (int32_t)((uint32_t)(bits + 127) << 23);
    float scale;
    memcpy(&scale, &bits, sizeof(scale));
    return p * scale;
}

DPS_ALWAYS double dps_exp_element_double(double x)
{
    const double shift = 6755399441055744.0;
    double shifted = x * 1.4426950408889634 + shift;
    double n = shifted - shift;
    double r = (x - n * 0.69314718036912382) - n * 1.9082149292705877e-10;
    double s = r * r;
    double even = 1.1470745597729725e-11, odd = 1.6059043836821613e-10;
    even = even * s + 2.08767569878681e-9;
    odd = odd * s + 2.505210838544172e-8;
    even = even * s + 2.7557319223985893e-7;
    odd = odd * s + 2.7557319223985893e-6;
    even = even * s + 2.48015873015873e-5;
    odd = odd * s + 1.984126984126984e-4;
    even = even * s + 1.388888888888889e-3;
    odd = odd * s + 8.333333333333333e-3;
    even = even * s + 4.1666666666666664e-2;
    odd = odd * s + 0.16666666666666666;
    even = even * s + 0.5;
    double p = 1.0 + (r + s * (even + r * odd));
    int64_t bits;
    memcpy(&bits, &shifted, sizeof(bits));
    bits = (int64_t)((uint64_t)(bits + 1023) << 52);
    double scale;
    memcpy(&scale, &bits, sizeof(scale));
    return p * scale;
}

/* 0 <= e <= 1 */
DPS_ALWAYS float dps_log1p_element_float(float e)
{
    float t = e / (2.0f + e), s = t * t, q = s * s;
    float even = 1.0f / 15.0f, odd = 1.0f / 13.0f;
    even = even * q + 1.0f / 11.0f;
    odd = odd * q + 1.0f / 9.0f;
    even = even * q + 1.0f / 7.0f;
    odd = odd * q + 1.0f / 5.0f;
    even = even * q + 1.0f / 3.0f;
    return 2.0f * t + 2.0f * t * (s * (even + s * odd));
}

DPS_ALWAYS double dps_log1p_element_double(double e)
{
    double t = e / (2.0 + e), s = t * t, q = s * s;
    double odd = 1.0 / 33.0, even = 1.0 / 31.0;
    odd = odd * q + 1.0 / 29.0;
    even = even * q + 1.0 / 27.0;
    odd = odd * q + 1.0 / 25.0;
    even = even * q + 1.0 / 23.0;
    odd = odd * q + 1.0 / 21.0;
    even = even * q + 1.0 / 19.0;
    odd = odd * q + 1.0 / 17.0;
    even = even * q + 1.0 / 15.0;
    odd = odd * q + 1.0 / 13.0;
    even = even * q + 1.0 / 11.0;
    odd = odd * q + 1.0 / 9.0;
    even = even * q + 1.0 / 7.0;
    odd = odd * q + 1.0 / 5.0;
    even = even * q + 1.0 / 3.0;
    return 2.0 * t + 2.0 * t * (s * (even + s * odd));
}

#define DPS_LOGISTIC(T, FABS, LEAST)                                                               \
    /* x becomes exp(x), for x <= 0. */                                                            \
    DPS_CLONES static void dps_exp_##T(T *restrict x, ptrdiff_t n)                                 \
    {                                                                                              \
        for (ptrdiff_t i = 0; i < n; i++) x[i] = LEAST > x[i] ? LEAST : x[i];                      \
        for (ptrdiff_t i = 0; i < n; i++) x[i] = dps_exp_element_##T(x[i]);                        \
    }                                                                                              \
    /* loss = log(1 + exp(-y raw)), slope = its derivative. */                                     \
    DPS_CLONES static void dps_log_loss_##T(const T *restrict y, const T *restrict raw,            \
        T *restrict loss, T *restrict slope, ptrdiff_t n)                                          \
    {                                                                                              \
        for (ptrdiff_t i = 0; i < n; i++) loss[i] = -FABS(y[i] * raw[i]);                          \
        dps_exp_##T(loss, n);                                                                      \
        for (ptrdiff_t i = 0; i < n; i++) {                                                        \
            T z = y[i] * raw[i], e = loss[i];                                                      \
            slope[i] = -y[i] * ((z > 0 ? e : (T)1) / ((T)1 + e));                                  \
            loss[i] = dps_log1p_element_##T(e) + (z > 0 ? (T)0 : -z);                              \
        }                                                                                          \
    }

DPS_LOGISTIC(float, __builtin_fabsf, -88.0f)
DPS_LOGISTIC(double, __builtin_fabs, -709.0)

#endif
