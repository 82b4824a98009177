/* Included by dense_types.h for each type DPS_T and each instruction set with registers of DPS_BYTES.
   The lanes of a sum are DPS_PARTS registers, 64 bytes in all. */

#define DPS_LANES ((ptrdiff_t)(64 / sizeof(DPS_T)))
#define DPS_PARTS (64 / DPS_BYTES)
#define DPS_V16 DPS_NAME(dps_v16)
#define DPS_V32 DPS_NAME(dps_v32)
#define DPS_V64 DPS_NAME(dps_v64)
#if DPS_BYTES == 16
#define DPS_VEC DPS_V16
#elif DPS_BYTES == 32
#define DPS_VEC DPS_V32
#else
#define DPS_VEC DPS_V64
#endif

/* Of any alignment: a row of a matrix starts where it starts. */
typedef DPS_T DPS_V16 __attribute__((vector_size(16), aligned(sizeof(DPS_T)), may_alias));
#if DPS_BYTES >= 32
typedef DPS_T DPS_V32 __attribute__((vector_size(32), aligned(sizeof(DPS_T)), may_alias));
#endif
#if DPS_BYTES >= 64
typedef DPS_T DPS_V64 __attribute__((vector_size(64), aligned(sizeof(DPS_T)), may_alias));
#endif

/* The lanes of a sum, halves onto halves until 16 bytes are left. By value: a register whose address
   is taken lives in memory. */
#if DPS_BYTES == 16
#define DPS_FOLD(part) ((part[0] + part[2]) + (part[1] + part[3]))
#elif DPS_BYTES == 32
#define DPS_FOLD(part) DPS_NAME(dps_fold_half)(part[0] + part[1])
#else
#define DPS_FOLD(part) DPS_NAME(dps_fold_whole)(part[0])
#endif
#if DPS_BYTES >= 32
DPS_ALWAYS DPS_V16 DPS_NAME(dps_fold_half)(DPS_V32 half)
{
    DPS_V16 low, high;
    memcpy(&low, &half, 16);
    memcpy(&high, (const char *)&half + 16, 16);
    return low + high;
}
#endif
#if DPS_BYTES >= 64
DPS_ALWAYS DPS_V16 DPS_NAME(dps_fold_whole)(DPS_V64 whole)
{
    DPS_V32 low, high;
    memcpy(&low, &whole, 32);
    memcpy(&high, (const char *)&whole + 32, 32);
    return DPS_NAME(dps_fold_half)(low + high);
}
#endif

/* A row that is asked for while row i is at work: number n from `ahead`, where that is one. */
#define DPS_SOON(n) DPS_ROW(ahead + (n) < reach ? ahead + (n) : i)
#define DPS_FETCH(p) __builtin_prefetch(p, 0, 2)

/* Whether rows are best read one after the other, and asked for only while the memory is idle:
   Zen 3, whose widest registers have 32 bytes, asks by itself for wide rows that follow each other,
   and drops what it is asked for while many requests are open. */
#define DPS_STREAMED (DPS_BYTES == 32 && !order && f * (ptrdiff_t)sizeof(DPS_T) >= 256)

/* Whether rows are best asked for shortly before the forward product reads them, and the next
   block's first ones again while the memory is idle: there, rows in a shuffled order. */
#define DPS_SCATTERED (DPS_BYTES == 32 && order)
#define DPS_SHORTLY 20 /* rows */

/* out[r] = bias + row[r] . w for n rows; meanwhile as many as n_soon are asked for. */
DPS_ALWAYS void DPS_NAME(dps_dot_some)(
    const DPS_T *const *row, const int n, const DPS_T *const *soon, const int n_soon,
    const DPS_T *restrict w, DPS_T bias, DPS_T *restrict out, ptrdiff_t f)
{
    enum { step = DPS_BYTES / sizeof(DPS_T), few = 16 / sizeof(DPS_T) };
    ptrdiff_t whole = f - f % DPS_LANES, fours = f - f % few;
    DPS_VEC part[4][DPS_PARTS] = {0};
    for (ptrdiff_t j = 0; j < whole; j += DPS_LANES) {
        for (int r = 0; r < n_soon; r++) DPS_FETCH(soon[r] + j);
        for (int p = 0; p < DPS_PARTS; p++) {
            DPS_VEC v = *(const DPS_VEC *)(w + j + p * step);
            for (int r = 0; r < n; r++) part[r][p] += *(const DPS_VEC *)(row[r] + j + p * step) * v;
        }
    }
    if (whole < f)
        for (int r = 0; r < n_soon; r++) DPS_FETCH(soon[r] + whole);
    DPS_V16 lanes[4];
    for (int r = 0; r < n; r++) lanes[r] = DPS_FOLD(part[r]);
    for (ptrdiff_t j = whole; j < fours; j += few) {
        DPS_V16 v = *(const DPS_V16 *)(w + j);
        for (int r = 0; r < n; r++) lanes[r] += *(const DPS_V16 *)(row[r] + j) * v;
    }
    DPS_T sum[4];
    for (int r = 0; r < n; r++)
        sum[r] = few == 4 ? (lanes[r][0] + lanes[r][2 % few]) + (lanes[r][1] + lanes[r][3 % few])
                          : lanes[r][0] + lanes[r][1];
    for (ptrdiff_t j = fours; j < f; j++)
        for (int r = 0; r < n; r++) sum[r] += row[r][j] * w[j];
    for (int r = 0; r < n; r++) out[r] = bias + sum[r];
}

/* out[i] = bias + row i . w; meanwhile half as many rows from `ahead` are asked for, or none where
   they are streamed, or as many where they are scattered, from DPS_SHORTLY on. */
static void DPS_NAME(dps_dot_rows)(
    const DPS_T *restrict x, ptrdiff_t stride, const int64_t *restrict order,
    const DPS_T *restrict w, DPS_T bias, DPS_T *restrict out, ptrdiff_t m, ptrdiff_t f,
    ptrdiff_t ahead, ptrdiff_t reach)
{
    ptrdiff_t i = 0;
    if (DPS_SCATTERED) {
        ahead = DPS_SHORTLY;
        for (; i + 4 <= m; i += 4) {
            const DPS_T *row[4], *soon[4];
            for (int r = 0; r < 4; r++) row[r] = DPS_ROW(i + r);
            for (int r = 0; r < 4; r++) soon[r] = DPS_SOON(i + r);
            DPS_NAME(dps_dot_some)(row, 4, soon, 4, w, bias, out + i, f);
        }
    } else if (!DPS_STREAMED)
        for (; i + 4 <= m; i += 4) {
            const DPS_T *row[4] = {DPS_ROW(i), DPS_ROW(i + 1), DPS_ROW(i + 2), DPS_ROW(i + 3)};
            const DPS_T *soon[2] = {DPS_SOON(i / 2), DPS_SOON(i / 2 + 1)};
            DPS_NAME(dps_dot_some)(row, 4, soon, 2, w, bias, out + i, f);
        }
    for (; i < m; i++) {
        const DPS_T *row[1] = {DPS_ROW(i)};
        DPS_NAME(dps_dot_some)(row, 1, row, 0, w, bias, out + i, f);
    }
}

/* The sum over eight rows of d[r] * row r at columns j.. as one VEC. */
#define DPS_EIGHT(VEC, j)                                                                          \
    (((*(const VEC *)(row[0] + (j)) * d[0] + *(const VEC *)(row[1] + (j)) * d[1])                  \
         + (*(const VEC *)(row[2] + (j)) * d[2] + *(const VEC *)(row[3] + (j)) * d[3]))            \
        + ((*(const VEC *)(row[4] + (j)) * d[4] + *(const VEC *)(row[5] + (j)) * d[5])             \
            + (*(const VEC *)(row[6] + (j)) * d[6] + *(const VEC *)(row[7] + (j)) * d[7])))

/* grad += sum_r d[r] * row[r] for eight rows; meanwhile as many as n_soon are asked for. */
DPS_ALWAYS void DPS_NAME(dps_add_eight)(
    const DPS_T *const *row, const DPS_T *const *soon, const int n_soon,
    const DPS_T *restrict d, DPS_T *restrict grad, ptrdiff_t f)
{
    enum { step = DPS_BYTES / sizeof(DPS_T), few = 16 / sizeof(DPS_T) };
    ptrdiff_t j = 0;
    for (; j + DPS_LANES <= f; j += DPS_LANES) {
        for (int r = 0; r < n_soon; r++) DPS_FETCH(soon[r] + j);
        for (ptrdiff_t p = j; p < j + DPS_LANES; p += step)
            *(DPS_VEC *)(grad + p) += DPS_EIGHT(DPS_VEC, p);
    }
    if (j < f)
        for (int r = 0; r < n_soon; r++) DPS_FETCH(soon[r] + j);
    for (; j + step <= f; j += step) *(DPS_VEC *)(grad + j) += DPS_EIGHT(DPS_VEC, j);
    for (; j + few <= f; j += few) *(DPS_V16 *)(grad + j) += DPS_EIGHT(DPS_V16, j);
    for (; j < f; j++) grad[j] += DPS_EIGHT(DPS_T, j);
}

/* grad += sum_i d[i] * row i; meanwhile half as many rows from `ahead` are asked for. Where they are
   scattered, that is from the first that follows; where they are streamed, a quarter from there. */
static void DPS_NAME(dps_add_rows)(
    const DPS_T *restrict x, ptrdiff_t stride, const int64_t *restrict order,
    const DPS_T *restrict d, DPS_T *restrict grad, ptrdiff_t m, ptrdiff_t f, ptrdiff_t ahead,
    ptrdiff_t reach)
{
    ptrdiff_t i = 0;
    if (DPS_STREAMED || DPS_SCATTERED) ahead = m;
    for (; i + 8 <= m; i += 8) {
        const DPS_T *row[8], *soon[4];
        for (int r = 0; r < 8; r++) row[r] = DPS_ROW(i + r);
        if (DPS_STREAMED) {
            for (int r = 0; r < 2; r++) soon[r] = DPS_SOON(i / 4 + r);
            DPS_NAME(dps_add_eight)(row, soon, 2, d + i, grad, f);
        } else {
            for (int r = 0; r < 4; r++) soon[r] = DPS_SOON(i / 2 + r);
            DPS_NAME(dps_add_eight)(row, soon, 4, d + i, grad, f);
        }
    }
    for (; i < m; i++) {
        const DPS_T *row = DPS_ROW(i);
        for (ptrdiff_t j = 0; j < f; j++) grad[j] += row[j] * d[i];
    }
}

/* The widest register that a tile of outputs fills. */
typedef DPS_T DPS_NAME(dps_tile_4) __attribute__((
    vector_size(4 * sizeof(DPS_T) < DPS_BYTES ? 4 * sizeof(DPS_T) : DPS_BYTES),
    aligned(sizeof(DPS_T)), may_alias));
typedef DPS_T DPS_NAME(dps_tile_8) __attribute__((
    vector_size(8 * sizeof(DPS_T) < DPS_BYTES ? 8 * sizeof(DPS_T) : DPS_BYTES),
    aligned(sizeof(DPS_T)), may_alias));

/* The body for each column j and part p of a tile, while four rows from i are at work; two of those
   to come are asked for. */
#define DPS_EACH_PART(...)                                                                         \
    const DPS_T *soon[2] = {DPS_SOON(i / 2), DPS_SOON(i / 2 + 1)};                                 \
    for (ptrdiff_t start = 0; start < f; start += DPS_LANES) {                                     \
        ptrdiff_t stop = start + DPS_LANES < f ? start + DPS_LANES : f;                            \
        for (int r = 0; r < 2; r++) DPS_FETCH(soon[r] + start);                                    \
        for (ptrdiff_t j = start; j < stop; j++)                                                   \
            for (int p = 0; p < parts; p++) { __VA_ARGS__ }                                        \
    }

/* out[i, c] = bias[c] + row i . w[:, c] for one tile of W outputs; `used` of them are real.
   w has rows of `padded` elements and is at the tile's first column, as are bias and out. For
   `ahead` and `reach` see dps_dot_rows. */
#define DPS_FORWARD_TILE(W, VEC)                                                                   \
    DPS_ALWAYS void DPS_NAME(dps_forward_##W)(                                                     \
        const DPS_T *restrict x, ptrdiff_t stride, const int64_t *restrict order,                  \
        const DPS_T *restrict w, ptrdiff_t padded, const DPS_T *restrict bias,                     \
        DPS_T *restrict out, ptrdiff_t m, ptrdiff_t f, ptrdiff_t k, ptrdiff_t used,                \
        ptrdiff_t ahead, ptrdiff_t reach)                                                          \
    {                                                                                              \
        enum { step = sizeof(VEC) / sizeof(DPS_T), parts = W * sizeof(DPS_T) / sizeof(VEC) };      \
        for (ptrdiff_t i = 0; i < m; i += 4) {                                                     \
            ptrdiff_t last = m - 1;                                                                \
            const DPS_T *row[4] = {DPS_ROW(i), DPS_ROW(i + 1 < m ? i + 1 : last),                  \
                DPS_ROW(i + 2 < m ? i + 2 : last), DPS_ROW(i + 3 < m ? i + 3 : last)};             \
            VEC sum[4][parts] = {0};                                                               \
            DPS_EACH_PART(                                                                         \
                VEC v = *(const VEC *)(w + j * padded + p * step);                                 \
                for (int r = 0; r < 4; r++) sum[r][p] += row[r][j] * v;)                           \
            DPS_T block[4 * W];                                                                    \
            memcpy(block, sum, sizeof(block));                                                     \
            for (ptrdiff_t r = 0; r < 4 && i + r < m; r++)                                         \
                for (ptrdiff_t l = 0; l < used; l++)                                               \
                    out[(i + r) * k + l] = (bias ? bias[l] : 0) + block[r * W + l];                \
        }                                                                                          \
    }

/* w[j, :] += sum_i d[i, :] * row i [j] for one tile; w has rows of `padded` elements. */
#define DPS_BACKWARD_TILE(W, VEC)                                                                  \
    DPS_ALWAYS void DPS_NAME(dps_backward_##W)(                                                    \
        const DPS_T *restrict x, ptrdiff_t stride, const int64_t *restrict order,                  \
        const DPS_T *restrict d, DPS_T *restrict w, ptrdiff_t padded,                              \
        ptrdiff_t m, ptrdiff_t f, ptrdiff_t k, ptrdiff_t used, ptrdiff_t ahead, ptrdiff_t reach)   \
    {                                                                                              \
        enum { step = sizeof(VEC) / sizeof(DPS_T), parts = W * sizeof(DPS_T) / sizeof(VEC) };      \
        for (ptrdiff_t i = 0; i < m; i += 4) {                                                     \
            ptrdiff_t n = m - i < 4 ? m - i : 4;                                                   \
            const DPS_T *row[4];                                                                   \
            DPS_T block[4 * W] = {0};                                                              \
            for (ptrdiff_t r = 0; r < n; r++)                                                      \
                for (ptrdiff_t l = 0; l < used; l++) block[r * W + l] = d[(i + r) * k + l];        \
            for (ptrdiff_t r = 0; r < n; r++) row[r] = DPS_ROW(i + r);                             \
            if (n < 4) {                                                                           \
                for (ptrdiff_t r = 0; r < n; r++)                                                  \
                    for (ptrdiff_t j = 0; j < f; j++)                                              \
                        for (int l = 0; l < W; l++)                                                \
                            w[j * padded + l] += row[r][j] * block[r * W + l];                     \
                return;                                                                            \
            }                                                                                      \
            VEC scale[4][parts];                                                                   \
            memcpy(scale, block, sizeof(block));                                                   \
            DPS_EACH_PART(                                                                         \
                VEC *v = (VEC *)(w + j * padded + p * step);                                       \
                *v += (row[0][j] * scale[0][p] + row[1][j] * scale[1][p])                          \
                    + (row[2][j] * scale[2][p] + row[3][j] * scale[3][p]);)                        \
        }                                                                                          \
    }

DPS_FORWARD_TILE(4, DPS_NAME(dps_tile_4))
DPS_FORWARD_TILE(8, DPS_NAME(dps_tile_8))
DPS_FORWARD_TILE(16, DPS_VEC)
DPS_BACKWARD_TILE(4, DPS_NAME(dps_tile_4))
DPS_BACKWARD_TILE(8, DPS_NAME(dps_tile_8))
DPS_BACKWARD_TILE(16, DPS_VEC)

/* out = bias + rows . w, where w is padded to tiles; for `ahead` and `reach` see dps_dot_rows. */
static void DPS_NAME(dps_forward_tiles)(
    const DPS_T *restrict x, ptrdiff_t stride, const int64_t *restrict order,
    const DPS_T *restrict w, ptrdiff_t padded, const DPS_T *restrict bias,
    DPS_T *restrict out, ptrdiff_t m, ptrdiff_t f, ptrdiff_t k, ptrdiff_t ahead, ptrdiff_t reach)
{
    ptrdiff_t tile = dps_tile(k);
    for (ptrdiff_t c = 0; c < k; c += tile) {
        ptrdiff_t used = k - c < tile ? k - c : tile;
        if (c) reach = 0; /* they come with the first tile */
        const DPS_T *b = bias ? bias + c : bias;
        if (tile == 4)
            DPS_NAME(dps_forward_4)(
                x, stride, order, w + c, padded, b, out + c, m, f, k, used, ahead, reach);
        else if (tile == 8)
            DPS_NAME(dps_forward_8)(
                x, stride, order, w + c, padded, b, out + c, m, f, k, used, ahead, reach);
        else
            DPS_NAME(dps_forward_16)(
                x, stride, order, w + c, padded, b, out + c, m, f, k, used, ahead, reach);
    }
}

/* w += rows^T . d, where w is padded to tiles; for `ahead` and `reach` see dps_add_rows. */
static void DPS_NAME(dps_backward_tiles)(
    const DPS_T *restrict x, ptrdiff_t stride, const int64_t *restrict order,
    const DPS_T *restrict d, DPS_T *restrict w, ptrdiff_t padded,
    ptrdiff_t m, ptrdiff_t f, ptrdiff_t k, ptrdiff_t ahead, ptrdiff_t reach)
{
    ptrdiff_t tile = dps_tile(k);
    for (ptrdiff_t c = 0; c < k; c += tile) {
        ptrdiff_t used = k - c < tile ? k - c : tile;
        if (c) reach = 0;
        if (tile == 4)
            DPS_NAME(dps_backward_4)(
                x, stride, order, d + c, w + c, padded, m, f, k, used, ahead, reach);
        else if (tile == 8)
            DPS_NAME(dps_backward_8)(
                x, stride, order, d + c, w + c, padded, m, f, k, used, ahead, reach);
        else
            DPS_NAME(dps_backward_16)(
                x, stride, order, d + c, w + c, padded, m, f, k, used, ahead, reach);
    }
}

#undef DPS_LANES
#undef DPS_PARTS
#undef DPS_V16
#undef DPS_V32
#undef DPS_V64
#undef DPS_VEC
#undef DPS_FOLD
#undef DPS_EIGHT
#undef DPS_FETCH
#undef DPS_SOON
#undef DPS_STREAMED
#undef DPS_EACH_PART
#undef DPS_FORWARD_TILE
#undef DPS_BACKWARD_TILE
