"""Weighted sums of the columns of some rows, and of their squared distances from a centre.

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


cdef void _dense(
    const Rows* rows, const int64_t* order, Py_ssize_t m, const double* centre, double* out,
    floating* room,
) noexcept nogil:
    cdef Py_ssize_t i, j, f = rows.n_features
    cdef const floating* weight = <const floating*> rows.weight
    cdef const floating* x
    cdef double w
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
        if centre is NULL:
            for j in range(f):
                out[j] += w * x[j]
        else:
            for j in range(f):
                out[j] += w * ((x[j] - centre[j]) * (x[j] - centre[j]))


cdef void _sparse(
    const Rows* rows, const index_t* indices, const index_t* indptr, const int64_t* order,
    Py_ssize_t m, const double* centre, double* out, double* present, floating example,
) noexcept nogil:
    """What rows lack is zero; ``present`` is the weight of what they have, column by column."""
    cdef Py_ssize_t i, p, j, f = rows.n_features
    cdef const floating* data = <const floating*> rows.values
    cdef const floating* weight = <const floating*> rows.weight
    cdef double w, total = 0, absent
    for i in range(m):
        w = weight[order[i]] if weight is not NULL else 1
        total += w
        for p in range(indptr[order[i]], indptr[order[i] + 1]):
            j = indices[p]
            if centre is NULL:
                out[j] += w * data[p]
            else:
                out[j] += w * ((data[p] - centre[j]) * (data[p] - centre[j]))
                present[j] += w
    if centre is not NULL:
        for j in range(f):
            absent = total - present[j]
            if absent > 1e-9 * total:  # less is rounding
                out[j] += absent * centre[j] * centre[j]


cdef void _any(
    const Rows* rows, const int64_t* order, Py_ssize_t m, const double* centre, double* out,
    double* room, floating example,
) noexcept nogil:
    if rows.kind == CSR:
        _sparse(
            rows, <const int*> rows.indices, <const int*> rows.indptr, order, m, centre, out, room,
            example,
        )
    elif rows.kind == CSR_WIDE:
        _sparse(
            rows, <const int64_t*> rows.indices, <const int64_t*> rows.indptr, order, m, centre,
            out, room, example,
        )
    else:
        _dense(rows, order, m, centre, out, <floating*> room)


def column_sums(
    BlockRows block, const int64_t[::1] order, const double[::1] centre, double[::1] out,
):
    """out += sums over rows ``order`` of w x, or of w (x - centre)^2 unless centre is None."""
    cdef Py_ssize_t f = block.rows.n_features
    cdef double[::1] room = np.zeros(max(1, f))
    cdef const double* middle = NULL
    same_length("out", out.shape[0], f)
    if centre is not None:
        same_length("centre", centre.shape[0], f)
    if order.shape[0] == 0 or f == 0:
        return
    if centre is not None:
        middle = &centre[0]
    if DPS_DEBUG:
        indices_below("order", &order[0], order.shape[0], block.rows.length)
    with nogil:
        if block.rows.single:
            _any(&block.rows, &order[0], order.shape[0], middle, &out[0], &room[0], <float> 0)
        else:
            _any(&block.rows, &order[0], order.shape[0], middle, &out[0], &room[0], <double> 0)
