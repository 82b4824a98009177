/* Activations of a layer and what they pass back, in loops that vectorise.

   In place: z becomes the activation, `slope` its derivative. Of the rectifier the derivative is seen
   in the activation itself. Exponentials are those of logistic.h. NaN stays NaN. */
#ifndef DPS_ACTIVATION_H
#define DPS_ACTIVATION_H

#include <stddef.h>
#include <stdint.h>

#include "clones.h"
#include "logistic.h"
#include "mix.h"

enum { DPS_IDENTITY, DPS_RELU, DPS_LOGISTIC_UNIT, DPS_TANH, DPS_SILU };

#define DPS_ACTIVATIONS(T)                                                                         \
    DPS_CLONES static void dps_add_bias_##T(                                                       \
        T *restrict z, const T *restrict bias, T gain, ptrdiff_t n, ptrdiff_t width)               \
    {                                                                                              \
        for (ptrdiff_t i = 0; i < n; i++)                                                          \
            for (ptrdiff_t c = 0; c < width; c++) z[i * width + c] += gain * bias[c];              \
    }                                                                                              \
    DPS_CLONES static void dps_activate_##T(                                                       \
        int kind, T *restrict z, T *restrict slope, ptrdiff_t n)                                   \
    {                                                                                              \
        T fall = kind == DPS_TANH ? (T)-2 : (T)-1;                                                 \
        if (kind == DPS_RELU) {                                                                    \
            for (ptrdiff_t i = 0; i < n; i++) z[i] = z[i] <= 0 ? (T)0 : z[i];                      \
            return;                                                                                \
        }                                                                                          \
        if (kind == DPS_IDENTITY) return;                                                          \
        for (ptrdiff_t i = 0; i < n; i++) slope[i] = z[i] > 0 ? fall * z[i] : -fall * z[i];        \
        dps_exp_##T(slope, n);                                                                     \
        if (kind == DPS_TANH)                                                                      \
            for (ptrdiff_t i = 0; i < n; i++) {                                                    \
                T e = slope[i], t = ((T)1 - e) / ((T)1 + e);                                       \
                slope[i] = (T)1 - t * t;                                                           \
                z[i] = z[i] > 0 ? t : -t;                                                          \
            }                                                                                      \
        else                                                                                       \
            for (ptrdiff_t i = 0; i < n; i++) {                                                    \
                T e = slope[i], s = (z[i] > 0 ? (T)1 : e) / ((T)1 + e), x = z[i];                  \
                slope[i] = kind == DPS_SILU ? s * ((T)1 + x * ((T)1 - s)) : s * ((T)1 - s);        \
                z[i] = kind == DPS_SILU ? x * s : s;                                               \
            }                                                                                      \
    }                                                                                              \
    /* d, of activations z, becomes that of what went in; `keep` is one over the share kept. */    \
    DPS_CLONES static void dps_pass_back_##T(int kind, T *restrict d, const T *restrict z,         \
        const T *restrict slope, T keep, ptrdiff_t n)                                              \
    {                                                                                              \
        if (kind == DPS_RELU)                                                                      \
            for (ptrdiff_t i = 0; i < n; i++) d[i] = z[i] > 0 ? d[i] * keep : (T)0;                \
        else                                                                                       \
            for (ptrdiff_t i = 0; i < n; i++) d[i] *= slope[i];                                    \
    }                                                                                              \
    /* Zero activations by chance, 16 bits of a hash of the place each; the rest grow by `keep`. */\
    DPS_CLONES static void dps_drop_##T(T *restrict z, T *restrict slope, ptrdiff_t n,             \
        uint64_t key, uint64_t first, uint32_t limit, T keep)                                      \
    {                                                                                              \
        for (ptrdiff_t i = 0; i < n; i += 4) {                                                     \
            uint64_t bits = dps_mix(key + (first + (uint64_t)i) / 4);                              \
            for (ptrdiff_t j = i; j < i + 4 && j < n; j++, bits >>= 16) {                          \
                T factor = (uint32_t)(bits & 0xFFFF) < limit ? (T)0 : keep;                        \
                z[j] *= factor;                                                                    \
                if (slope) slope[j] *= factor;                                                     \
            }                                                                                      \
        }                                                                                          \
    }

DPS_ACTIVATIONS(float)
DPS_ACTIVATIONS(double)

#endif
