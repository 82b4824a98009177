/* Sums and steps over vectors of doubles, for searches.

   C and not Cython, to be compiled once per instruction set. A sum has eight lanes and then what
   eight do not divide: the same bits in each. */
#ifndef DPS_VECTORS_H
#define DPS_VECTORS_H

#include <stddef.h>

#include "clones.h"

#define DPS_VECTORS_LANES 8

DPS_ALWAYS double dps_sum_of_lanes(const double *lane)
{
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

DPS_CLONES static double dps_dot(const double *a, const double *b, ptrdiff_t n)
{
    double lane[DPS_VECTORS_LANES] = {0};
    ptrdiff_t i = 0;
    for (; i + DPS_VECTORS_LANES <= n; i += DPS_VECTORS_LANES)
        for (int l = 0; l < DPS_VECTORS_LANES; l++) lane[l] += a[i + l] * b[i + l];
    double sum = dps_sum_of_lanes(lane);
    for (; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* The sum of w[i] * x[i] * x[i] */
DPS_CLONES static double dps_weighted_squares(const double *w, const double *x, ptrdiff_t n)
{
    double lane[DPS_VECTORS_LANES] = {0};
    ptrdiff_t i = 0;
    for (; i + DPS_VECTORS_LANES <= n; i += DPS_VECTORS_LANES)
        for (int l = 0; l < DPS_VECTORS_LANES; l++) lane[l] += w[i + l] * x[i + l] * x[i + l];
    double sum = dps_sum_of_lanes(lane);
    for (; i < n; i++) sum += w[i] * x[i] * x[i];
    return sum;
}

/* out += by * x */
DPS_CLONES static void dps_add_scaled(
    double *restrict out, const double *restrict x, double by, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++) out[i] += by * x[i];
}

/* out = by * x; they may be the same. */
DPS_CLONES static void dps_scale(double *out, const double *x, double by, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++) out[i] = by * x[i];
}

/* out = to - from */
DPS_CLONES static void dps_differ(
    double *restrict out, const double *restrict to, const double *restrict from, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++) out[i] = to[i] - from[i];
}

/* out = x + w * at */
DPS_CLONES static void dps_add_weighted(
    double *restrict out, const double *restrict x, const double *restrict w,
    const double *restrict at, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++) out[i] = x[i] + w[i] * at[i];
}

#endif
