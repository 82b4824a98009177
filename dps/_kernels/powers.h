/* Powers and products of many numbers at once: IEEE multiplications in a fixed order. */
#ifndef DPS_POWERS_H
#define DPS_POWERS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "clones.h"

/* result[i] = base[i] ^ exponent[i], where `bits` has every bit that an exponent has; base and
   exponent are used up. A bit chooses by masks, since a branch on it is guessed wrong half of the
   time, and keeps the loop from vectorising. */
DPS_CLONES static void dps_powers(
    double *restrict base, uint64_t *restrict exponent, double *restrict result, ptrdiff_t n,
    uint64_t bits)
{
    const double one = 1.0;
    uint64_t one_bits, chosen, mask;
    double factor;
    memcpy(&one_bits, &one, sizeof(one));
    for (ptrdiff_t i = 0; i < n; i++) result[i] = 1.0;
    for (; bits; bits >>= 1)
        for (ptrdiff_t i = 0; i < n; i++) {
            mask = -(exponent[i] & 1);
            memcpy(&chosen, base + i, sizeof(chosen));
            chosen = (chosen & mask) | (one_bits & ~mask);
            memcpy(&factor, &chosen, sizeof(factor));
            result[i] *= factor;
            base[i] *= base[i];
            exponent[i] >>= 1;
        }
}

/* log[i] = sum over steps s of log(1 + s c[i]), where sums[m] is the sum of s^(m + 1): the first terms
   of the series, which leave less than (s c)^7 / 7 of each step. */
DPS_CLONES static void dps_logs(
    const double *restrict c, const double *restrict sums, double *restrict log, ptrdiff_t n)
{
    const double a = sums[0], b = sums[1] / 2, d = sums[2] / 3, e = sums[3] / 4, f = sums[4] / 5,
                 g = sums[5] / 6;
    for (ptrdiff_t i = 0; i < n; i++) {
        const double x = c[i];
        log[i] = x * (a - x * (b - x * (d - x * (e - x * (f - x * g)))));
    }
}

/* factor[i] = product over steps s of 1 + s c[i]. */
DPS_CLONES static void dps_products(
    const double *restrict c, const double *restrict rates, ptrdiff_t steps,
    double *restrict factor, ptrdiff_t n)
{
    enum { LANES = 16 };
    for (ptrdiff_t first = 0; first < n; first += LANES) {
        const ptrdiff_t lanes = n - first < LANES ? n - first : LANES;
        double x[LANES] = {0}, product[LANES];
        memcpy(x, c + first, lanes * sizeof(double));
        for (int i = 0; i < LANES; i++) product[i] = 1.0;
        for (ptrdiff_t step = 0; step < steps; step++)
            for (int i = 0; i < LANES; i++) product[i] *= 1.0 + rates[step] * x[i];
        memcpy(factor + first, product, lanes * sizeof(double));
    }
}

/* exp(r) of r from 0 to 1, by its series, which leaves 2e-16 of it. */
static inline __attribute__((always_inline)) double dps_exp(double r)
{
    double e = 1.0 / 355687428096000.0;
    e = e * r + 1.0 / 20922789888000.0;
    e = e * r + 1.0 / 1307674368000.0;
    e = e * r + 1.0 / 87178291200.0;
    e = e * r + 1.0 / 6227020800.0;
    e = e * r + 1.0 / 479001600.0;
    e = e * r + 1.0 / 39916800.0;
    e = e * r + 1.0 / 3628800.0;
    e = e * r + 1.0 / 362880.0;
    e = e * r + 1.0 / 40320.0;
    e = e * r + 1.0 / 5040.0;
    e = e * r + 1.0 / 720.0;
    e = e * r + 1.0 / 120.0;
    e = e * r + 1.0 / 24.0;
    e = e * r + 1.0 / 6.0;
    e = e * r + 0.5;
    e = e * r + 1;
    e = e * r + 1;
    return e;
}

/* x[i] = exp(x[i]), of numbers that are not below 0. */
DPS_CLONES static void dps_exps(double *restrict x, double *restrict given, ptrdiff_t n)
{
    int large = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        given[i] = x[i];
        large |= x[i] > 1;
        x[i] = dps_exp(x[i]);
    }
    for (ptrdiff_t i = 0; large && i < n; i++) {
        int squares = 0;
        double r = given[i], e;
        if (!(r > 1)) continue;
        for (; r > 1 && squares < 60; squares++) r /= 2;
        for (e = dps_exp(r); squares; squares--) e *= e;
        x[i] = e;
    }
}

/* by[i] = 1 / sqrt(x[i]), and p[i] /= by[i]. */
#define DPS_ROOTS(T)                                                                               \
    DPS_CLONES static void dps_inverse_roots_##T(                                                  \
        const T *restrict x, double *restrict by, ptrdiff_t n)                                     \
    {                                                                                              \
        for (ptrdiff_t i = 0; i < n; i++) by[i] = 1 / sqrt((double) x[i]);                         \
    }                                                                                              \
    DPS_CLONES static void dps_divide_##T(T *restrict p, const double *restrict by, ptrdiff_t n)   \
    {                                                                                              \
        for (ptrdiff_t i = 0; i < n; i++) p[i] = (T) (p[i] / by[i]);                               \
    }

DPS_ROOTS(float)
DPS_ROOTS(double)

#endif
