/* Rows of a table that a batch's entries point at: their sums, and additions to them.

   An entry is a place, the number of a row of the table, and a value; a row of the batch has those
   from start[i] to before start[i + 1]. A row of the table is `many` weights and then k factors. It
   is asked for some entries before it is needed, since it lies anywhere. Elements are summed one by
   one in the order of the entries: the bits are those of every processor. */
#ifndef DPS_FACTORIZATION_H
#define DPS_FACTORIZATION_H

#include <stddef.h>
#include <stdint.h>

#include "clones.h"

#define DPS_AHEAD 24 /* entries from the one at work to that whose row is asked for */
#define DPS_TOGETHER 8 /* factors that are summed in registers */

/* Where the sums of an entry begin: its field is that of the row of the table that it stands for. */
#define DPS_FIELD(p) (field ? (ptrdiff_t)field[row ? row[place[p]] : place[p]] * k : 0)

#define DPS_FACTORIZATION(T)                                                                       \
    DPS_ALWAYS void dps_ask_##T(const T *row, ptrdiff_t width, int writes)                         \
    {                                                                                              \
        const char *first = (const char *)row, *last = (const char *)(row + width) - 1;            \
        for (; first < last; first += 64)                                                          \
            if (writes) __builtin_prefetch(first, 1, 3);                                           \
            else __builtin_prefetch(first, 0, 3);                                                  \
        if (writes) __builtin_prefetch(last, 1, 3);                                                \
        else __builtin_prefetch(last, 0, 3);                                                       \
    }                                                                                              \
    /* linear += x w of (n, many), pooled += x v by field of (n, apart), square += (x v)^2 of      \
       (n, k); apart is k times the fields. */                                                     \
    DPS_CLONES static void dps_pool_##T(                                                           \
        const T *restrict table, ptrdiff_t many, ptrdiff_t k, const T *restrict x,                 \
        const int *restrict place, const int *restrict start, const int32_t *restrict field,       \
        const int64_t *restrict row, ptrdiff_t apart, T *restrict linear, T *restrict pooled,      \
        T *restrict square, ptrdiff_t n)                                                           \
    {                                                                                              \
        ptrdiff_t width = many + k;                                                                \
        for (ptrdiff_t i = 0; i < n; i++) {                                                        \
            int first = start[i], end = start[i + 1];                                              \
            T *restrict sums = pooled + i * apart, *restrict squares = square + i * k;             \
            for (int p = first; p < end; p++) {                                                    \
                const T *restrict w = table + place[p] * width;                                    \
                if (p + DPS_AHEAD < start[n])                                                      \
                    dps_ask_##T(table + place[p + DPS_AHEAD] * width, width, 0);                   \
                for (ptrdiff_t o = 0; o < many; o++) linear[i * many + o] += x[p] * w[o];          \
            }                                                                                      \
            ptrdiff_t f = 0;                                                                       \
            for (; !field && f + DPS_TOGETHER <= k; f += DPS_TOGETHER) {                           \
                T sum[DPS_TOGETHER] = {0}, of_squares[DPS_TOGETHER] = {0};                         \
                for (int p = first; p < end; p++) {                                                \
                    const T *restrict v = table + place[p] * width + many + f;                     \
                    for (int l = 0; l < DPS_TOGETHER; l++) {                                       \
                        T term = x[p] * v[l];                                                      \
                        sum[l] += term;                                                            \
                        of_squares[l] += term * term;                                              \
                    }                                                                              \
                }                                                                                  \
                for (int l = 0; l < DPS_TOGETHER; l++) {                                           \
                    sums[f + l] += sum[l];                                                         \
                    squares[f + l] += of_squares[l];                                               \
                }                                                                                  \
            }                                                                                      \
            for (int p = first; p < end && f < k; p++) {                                           \
                const T *restrict v = table + place[p] * width + many;                             \
                T *restrict to = sums + DPS_FIELD(p);                                              \
                for (ptrdiff_t l = f; l < k; l++) {                                                \
                    T term = x[p] * v[l];                                                          \
                    to[l] += term;                                                                 \
                    squares[l] += term * term;                                                     \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    /* The gradient of the table: x d of (n, many) for weights, x (c - x g v) for factors, with c  \
       of (n, apart) and g of (n, k). */                                                           \
    DPS_CLONES static void dps_spread_##T(                                                         \
        const T *restrict table, T *restrict out, ptrdiff_t many, ptrdiff_t k,                     \
        const T *restrict x, const int *restrict place, const int *restrict start,                 \
        const int32_t *restrict field, const int64_t *restrict row, ptrdiff_t apart,               \
        const T *restrict d, const T *restrict c, const T *restrict g, ptrdiff_t n)                \
    {                                                                                              \
        ptrdiff_t width = many + k;                                                                \
        for (ptrdiff_t i = 0; i < n; i++) {                                                        \
            const T *restrict slope = g + i * k;                                                   \
            for (int p = start[i]; p < start[i + 1]; p++) {                                        \
                const T *restrict v = table + place[p] * width + many;                             \
                const T *restrict from = c + i * apart + DPS_FIELD(p);                             \
                T *restrict to = out + place[p] * width;                                           \
                T value = x[p];                                                                    \
                if (p + DPS_AHEAD < start[n])                                                      \
                    dps_ask_##T(out + place[p + DPS_AHEAD] * width, width, 1);                     \
                for (ptrdiff_t o = 0; o < many; o++) to[o] += value * d[i * many + o];             \
                to += many;                                                                        \
                for (ptrdiff_t f = 0; f < k; f++)                                                  \
                    to[f] += value * (from[f] - value * slope[f] * v[f]);                          \
            }                                                                                      \
        }                                                                                          \
    }

DPS_FACTORIZATION(float)
DPS_FACTORIZATION(double)

#endif
