/* Products of CSR rows with one column of numbers, for float and double, int and int64_t.

   C and not Cython, since a row's values are multiplied four at a time as vector types of the
   compiler. What is gathered stays scalar: the gather of AVX2 took 2.6 times as long (Zen 4).
   A row's sum has four lanes and then what four do not divide, wherever the row lies.
   Row i of a batch is row order[i] of the values, or row i without an order. */
#ifndef DPS_SPARSE_H
#define DPS_SPARSE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define DPS_SOON 16 /* rows ahead of those ahead, whose place is asked for */
#define DPS_SPARSE_ROW(i) (order ? order[i] : (int64_t)(i))

typedef float dps_four_float __attribute__((vector_size(16), aligned(4), may_alias));
typedef double dps_four_double __attribute__((vector_size(32), aligned(8), may_alias));

static inline void dps_columns_int64_t(const int64_t *indices, size_t *column)
{
    for (int l = 0; l < 4; l++) column[l] = (size_t)indices[l];
}

/* Two at a time where that is their order: loads are what these loops wait for. */
static inline void dps_columns_int(const int *indices, size_t *column)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    for (int l = 0; l < 4; l += 2) {
        uint64_t pair;
        memcpy(&pair, indices + l, 8);
        column[l] = (uint32_t)pair;
        column[l + 1] = pair >> 32;
    }
#else
    for (int l = 0; l < 4; l++) column[l] = (size_t)indices[l];
#endif
}

/* Ask for what lies from `first` to before `last`. */
static inline void dps_fetch(const char *first, const char *last)
{
    for (const char *line = first; line < last; line += 64) __builtin_prefetch(line, 0, 2);
    if (first < last) __builtin_prefetch(last - 1, 0, 2);
}

#define DPS_SPARSE(T, I)                                                                           \
    /* out[i] = bias + row i . w */                                                                \
    static void dps_dot_sparse_##T##_##I(                                                          \
        const T *restrict x, const I *restrict indices, const I *restrict indptr,                  \
        const int64_t *restrict order, const T *restrict w, T bias, T *restrict out, ptrdiff_t m)  \
    {                                                                                              \
        for (ptrdiff_t i = 0; i < m; i++) {                                                        \
            int64_t row = DPS_SPARSE_ROW(i);                                                       \
            ptrdiff_t p = indptr[row], end = indptr[row + 1];                                      \
            dps_four_##T lanes = {0};                                                              \
            for (; p + 4 <= end; p += 4) {                                                         \
                size_t j[4];                                                                       \
                dps_columns_##I(indices + p, j);                                                   \
                dps_four_##T picked = {w[j[0]], w[j[1]], w[j[2]], w[j[3]]};                        \
                lanes += *(const dps_four_##T *)(x + p) * picked;                                  \
            }                                                                                      \
            T sum = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);                                 \
            for (; p < end; p++) sum += x[p] * w[indices[p]];                                      \
            out[i] = bias + sum;                                                                   \
        }                                                                                          \
    }                                                                                              \
    /* grad += sum_i d[i] * row i; the n_ahead rows behind the m come next and are asked for. */   \
    static void dps_add_sparse_##T##_##I(                                                          \
        const T *restrict x, const I *restrict indices, const I *restrict indptr,                  \
        const int64_t *restrict order, const T *restrict d, T *restrict grad, ptrdiff_t m,         \
        ptrdiff_t n_ahead)                                                                         \
    {                                                                                              \
        for (ptrdiff_t i = 0; i < m; i++) {                                                        \
            if (order && i + DPS_SOON < n_ahead)                                                   \
                __builtin_prefetch(indptr + order[m + i + DPS_SOON]);                              \
            if (i < n_ahead) {                                                                     \
                int64_t next = DPS_SPARSE_ROW(m + i);                                              \
                I first = indptr[next], last = indptr[next + 1];                                   \
                dps_fetch((const char *)(x + first), (const char *)(x + last));                    \
                dps_fetch((const char *)(indices + first), (const char *)(indices + last));        \
            }                                                                                      \
            int64_t row = DPS_SPARSE_ROW(i);                                                       \
            ptrdiff_t p = indptr[row], end = indptr[row + 1];                                      \
            for (; p + 4 <= end; p += 4) {                                                         \
                size_t j[4];                                                                       \
                dps_columns_##I(indices + p, j);                                                   \
                dps_four_##T scaled = *(const dps_four_##T *)(x + p) * d[i];                       \
                for (int l = 0; l < 4; l++) grad[j[l]] += scaled[l];                               \
            }                                                                                      \
            for (; p < end; p++) grad[indices[p]] += x[p] * d[i];                                  \
        }                                                                                          \
    }

DPS_SPARSE(float, int)
DPS_SPARSE(float, int64_t)
DPS_SPARSE(double, int)
DPS_SPARSE(double, int64_t)

/* The one for the types that the pointers have. */
#define DPS_SPARSE_OF(name, ...)                                                                   \
    (single ? wide ? name##_float_int64_t(__VA_ARGS__) : name##_float_int(__VA_ARGS__)             \
            : wide ? name##_double_int64_t(__VA_ARGS__) : name##_double_int(__VA_ARGS__))

static inline void dps_dot_sparse(
    int single, int wide, const void *x, const void *indices, const void *indptr,
    const int64_t *order, const void *w, double bias, void *out, ptrdiff_t m)
{
    DPS_SPARSE_OF(dps_dot_sparse, x, indices, indptr, order, w, bias, out, m);
}

/* Whether rows that lie in order are left to the processor to fetch. Zen 3, which has AVX2 and not
   AVX-512, drops what it is asked for while many requests are open, see DPS_STREAMED. */
static inline int dps_fetches_by_itself(void)
{
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && !defined(DPS_PORTABLE)
    return __builtin_cpu_supports("avx2") && !__builtin_cpu_supports("avx512f");
#else
    return 0;
#endif
}

static inline void dps_add_sparse(
    int single, int wide, const void *x, const void *indices, const void *indptr,
    const int64_t *order, const void *d, void *grad, ptrdiff_t m, ptrdiff_t n_ahead)
{
    if (!order && dps_fetches_by_itself()) n_ahead = 0;
    DPS_SPARSE_OF(dps_add_sparse, x, indices, indptr, order, d, grad, m, n_ahead);
}

#endif
