"""Weighted sums of the columns of some rows, and of their squares, about a centre.

Owns how the spread of features is measured, in double whatever the rows' type. It must not know
which rows those are, or what the spread is for.
"""
from cython cimport floating
from libc.stdint cimport int64_t
from libc.string cimport memcpy

import numpy as np

from dps._kernels.checks cimport DPS_DEBUG, index_t, indices_below, same_length
from dps._kernels.gather cimport fill_rows
from dps._kernels.rows cimport COLUMNS, CSR, CSR_WIDE, DENSE, BlockRows, Rows


cdef extern from *:
    """
    #define dps_prefetch(p) __builtin_prefetch(p, 0, 3)
    """
    void dps_prefetch(const void* p) noexcept nogil

cdef enum:
    AHEAD = 16      # rows after which one that is asked for now is at work


cdef void _dense(
    const Rows* rows, const int64_t* order, Py_ssize_t m, const double* centre, double* sums,
    double* squares, floating* room,
) noexcept nogil:
    cdef Py_ssize_t i, j, f = rows.n_features
    cdef const floating* weight = <const floating*> rows.weight
    cdef const floating* x
    cdef double w, value
    for i in range(m):
        if rows.kind == DENSE:
            x = <const floating*> rows.values + order[i] * rows.stride
        else:
            if rows.kind == COLUMNS:
                fill_rows(rows.columns, f, order, i, 1, room)
            else:
                memcpy(room, rows.values + order[i] * rows.stride, f * sizeof(floating))
            x = room
        w = weight[order[i]] if weight is not NULL else 1
        for j in range(f):
            value = x[j] - centre[j]
            sums[j] += w * value
            squares[j] += w * (value * value)


cdef void _sparse(
    const Rows* rows, const index_t* indices, const index_t* indptr, const int64_t* order,
    Py_ssize_t m, const double* centre, double* sums, double* squares, double* pairs,
    double* present, floating example,
) noexcept nogil:
    """Missing elements are zero; ``present``, NULL about zero, is the weight of the others.

    A column's two sums grow side by side in ``pairs``, which is zero.
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
            if absent > 1e-9 * total:  # less is rounding
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
