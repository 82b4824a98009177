"""Weighted sums of the columns of some rows, their squares and products, about a centre.

Sums are in double, whatever the rows' type.
"""
from cython cimport floating
from libc.stdint cimport int64_t
from libc.string cimport memcpy, memset

import numpy as np

from dps._kernels.checks cimport DPS_DEBUG, index_t, indices_below, same_length
from dps._kernels.gather cimport fill_rows
from dps._kernels.rows cimport COLUMNS, CSR, CSR_WIDE, DENSE, BlockRows, Rows


cdef extern from "vectors.h" nogil:
    void dps_add_scaled(double* out, const double* x, double by, Py_ssize_t n) noexcept

cdef extern from *:
    """
    #define dps_prefetch(p) __builtin_prefetch(p, 0, 3)

    #define DPS_ADD_MOMENTS(T)                                                                   \\
        DPS_CLONES static void dps_add_moments_##T(                                              \\
            const T *restrict x, const double *restrict centre, double w,                        \\
            double *restrict sums, double *restrict squares, ptrdiff_t n)                        \\
        {                                                                                        \\
            for (ptrdiff_t j = 0; j < n; j++) {                                                  \\
                double value = x[j] - centre[j];                                                 \\
                sums[j] += w * value;                                                            \\
                squares[j] += w * (value * value);                                               \\
            }                                                                                    \\
        }
    DPS_ADD_MOMENTS(float)
    DPS_ADD_MOMENTS(double)
    """
    void dps_add_moments_float(
        const float* x, const double* centre, double w, double* sums, double* squares, Py_ssize_t n
    ) noexcept nogil
    void dps_add_moments_double(
        const double* x, const double* centre, double w, double* sums, double* squares,
        Py_ssize_t n
    ) noexcept nogil
    void dps_prefetch(const void* p) noexcept nogil

cdef enum:
    AHEAD = 16  # rows that are prefetched ahead of the current one
    TOGETHER = 8  # rows whose products are added together


cdef const floating* _dense_row(
    const Rows* rows, const int64_t* order, Py_ssize_t i, floating* room
) noexcept nogil:
    """Return row ``order[i]``, copied to ``room`` unless its values are contiguous."""
    if rows.kind == DENSE:
        return <const floating*> rows.values + order[i] * rows.stride
    if rows.kind == COLUMNS:
        fill_rows(rows.columns, rows.n_features, order, i, 1, room)
    else:
        memcpy(room, rows.values + order[i] * rows.stride, rows.n_features * sizeof(floating))
    return room


cdef void _dense(
    const Rows* rows, const int64_t* order, Py_ssize_t m, const double* centre, double* sums,
    double* squares, floating* room,
) noexcept nogil:
    cdef Py_ssize_t i, f = rows.n_features
    cdef const floating* weight = <const floating*> rows.weight
    cdef const floating* x
    cdef double w
    for i in range(m):
        x = _dense_row(rows, order, i, room)
        w = weight[order[i]] if weight is not NULL else 1
        if floating is float:
            dps_add_moments_float(x, centre, w, sums, squares, f)
        else:
            dps_add_moments_double(x, centre, w, sums, squares, f)


cdef void _sparse(
    const Rows* rows, const index_t* indices, const index_t* indptr, const int64_t* order,
    Py_ssize_t m, const double* centre, double* sums, double* squares, double* pairs,
    double* present, floating example,
) noexcept nogil:
    """Sum sparse rows; ``present`` is the weight of stored elements, NULL about zero.

    Both sums of a column are side by side in ``pairs``, which is zero at first.
    """
    cdef Py_ssize_t i, p, j, f = rows.n_features
    cdef const floating* data = <const floating*> rows.values
    cdef const floating* weight = <const floating*> rows.weight
    cdef double w = 1, value, total = 0, absent
    for i in range(m):
        if weight is not NULL:
            w = weight[order[i]]
        total += w
        if i + AHEAD < m:
            p = indptr[order[i + AHEAD]]
            dps_prefetch(data + p)
            dps_prefetch(indices + p)
        for p in range(indptr[order[i]], indptr[order[i] + 1]):
            j = indices[p]
            value = data[p] - centre[j]
            pairs[2 * j] += w * value
            pairs[2 * j + 1] += w * (value * value)
            if present is not NULL:
                present[j] += w
    for j in range(f):
        sums[j] += pairs[2 * j]
        squares[j] += pairs[2 * j + 1]
        if present is not NULL:
            absent = total - present[j]
            if absent > 1e-9 * total:  # smaller shares are rounding
                sums[j] -= absent * centre[j]
                squares[j] += absent * (centre[j] * centre[j])


cdef void _any(
    const Rows* rows, const int64_t* order, Py_ssize_t m, const double* centre, double* sums,
    double* squares, double* present, double* room, floating example,
) noexcept nogil:
    if rows.kind == CSR:
        _sparse(
            rows, <const int*> rows.indices, <const int*> rows.indptr, order, m, centre, sums,
            squares, room, present, example,
        )
    elif rows.kind == CSR_WIDE:
        _sparse(
            rows, <const int64_t*> rows.indices, <const int64_t*> rows.indptr, order, m, centre,
            sums, squares, room, present, example,
        )
    else:
        _dense(rows, order, m, centre, sums, squares, <floating*> room)


def column_moments(
    BlockRows block, const int64_t[::1] order, centre, double[::1] sums, double[::1] squares,
):
    """Add the weighted sums over rows `order` of ``x - centre`` and of its square.

    `centre`, `sums`, `squares` are (n_features,) in double; a `centre` of None is zero.
    """
    cdef Py_ssize_t f = block.rows.n_features
    cdef double[::1] room = np.zeros(max(1, 2 * f))
    cdef const double[::1] middle = np.zeros(f) if centre is None else centre
    cdef double[::1] weights = np.zeros(max(1, f))
    cdef double* present = NULL if centre is None else &weights[0]
    for name, array in (("centre", middle), ("sums", sums), ("squares", squares)):
        same_length(name, array.shape[0], f)
    if order.shape[0] == 0 or f == 0:
        return
    if DPS_DEBUG:
        indices_below("order", &order[0], order.shape[0], block.rows.length)
    with nogil:
        if block.rows.single:
            _any(
                &block.rows, &order[0], order.shape[0], &middle[0], &sums[0], &squares[0],
                present, &room[0], <float> 0,
            )
        else:
            _any(
                &block.rows, &order[0], order.shape[0], &middle[0], &sums[0], &squares[0],
                present, &room[0], <double> 0,
            )


cdef void _spread_out(
    const floating* data, const index_t* indices, const index_t* indptr, int64_t row,
    Py_ssize_t f, double* out,
) noexcept nogil:
    cdef Py_ssize_t p
    memset(out, 0, f * sizeof(double))
    for p in range(indptr[row], indptr[row + 1]):
        out[indices[p]] += data[p]


cdef void _row(
    const Rows* rows, const int64_t* order, Py_ssize_t i, double* out, floating* room
) noexcept nogil:
    """Write row ``order[i]`` to ``out``, with zeros for missing elements."""
    cdef Py_ssize_t j, f = rows.n_features
    cdef const floating* data = <const floating*> rows.values
    if rows.kind == CSR:
        _spread_out(data, <const int*> rows.indices, <const int*> rows.indptr, order[i], f, out)
    elif rows.kind == CSR_WIDE:
        _spread_out(
            data, <const int64_t*> rows.indices, <const int64_t*> rows.indptr, order[i], f, out
        )
    else:
        data = _dense_row(rows, order, i, room)
        for j in range(f):
            out[j] = data[j]


cdef void _products(
    const Rows* rows, const int64_t* order, Py_ssize_t m, const double* centre,
    const double* scale, double* out, double* some, floating* room,
) noexcept nogil:
    """Sum products; ``some`` has room for `TOGETHER` rows, which share each read of ``out``."""
    cdef Py_ssize_t j, r, count, i = 0, f = rows.n_features
    cdef const floating* weight = <const floating*> rows.weight
    cdef double w[TOGETHER]
    cdef double* row
    while i < m:
        count = min(<Py_ssize_t> TOGETHER, m - i)
        for r in range(count):
            w[r] = weight[order[i + r]] if weight is not NULL else 1
            row = some + r * f
            _row(rows, order, i + r, row, room)
            for j in range(f):
                row[j] = (row[j] - centre[j]) / scale[j]
        for j in range(f):
            for r in range(count):
                row = some + r * f
                if row[j] != 0:
                    dps_add_scaled(out + j * f, row, w[r] * row[j], j + 1)
        i += count


def column_products(
    BlockRows block, const int64_t[::1] order, const double[::1] centre, const double[::1] scale,
    double[:, ::1] products,
):
    """Add the weighted products of columns ``(x - centre) / scale`` over rows `order`.

    `centre` and `scale` are (n_features,), `products` is (n_features, n_features), in double, of
    which the lower triangle is written.
    """
    cdef Py_ssize_t f = block.rows.n_features
    cdef double[::1] some = np.empty(max(1, TOGETHER * f))
    cdef double[::1] room = np.empty(max(1, f))
    for name, size in (
        ("centre", centre.shape[0]), ("scale", scale.shape[0]), ("products", products.shape[0]),
        ("a row of products", products.shape[1]),
    ):
        same_length(name, size, f)
    if order.shape[0] == 0 or f == 0:
        return
    if DPS_DEBUG:
        indices_below("order", &order[0], order.shape[0], block.rows.length)
    with nogil:
        if block.rows.single:
            _products(
                &block.rows, &order[0], order.shape[0], &centre[0], &scale[0], &products[0, 0],
                &some[0], <float*> &room[0],
            )
        else:
            _products(
                &block.rows, &order[0], order.shape[0], &centre[0], &scale[0], &products[0, 0],
                &some[0], &room[0],
            )
