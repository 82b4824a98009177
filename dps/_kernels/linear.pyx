"""Forward and backward products of linear models on dense and CSR rows, without copies.

The order of additions is fixed by partial sums and row blocks of fixed sizes, so that the bits
depend neither on SIMD registers nor on the address of a row. Row i of a batch is row ``order[i]``
of the values, or row i without an order.
"""
from cython cimport floating
from libc.stdint cimport int64_t
from libc.string cimport memcpy

import numpy as np

from dps._kernels.checks cimport (
    DPS_DEBUG, contiguous_rows, index_t, indices_below, same_length
)

cdef extern from "dense.h" nogil:
    Py_ssize_t dps_tile(Py_ssize_t k) noexcept
    void dps_dot_rows_float(
        const float* x, Py_ssize_t stride, const int64_t* order, const float* w, float bias,
        float* out, Py_ssize_t m, Py_ssize_t f, Py_ssize_t ahead, Py_ssize_t reach) noexcept
    void dps_add_rows_float(
        const float* x, Py_ssize_t stride, const int64_t* order, const float* d, float* grad,
        Py_ssize_t m, Py_ssize_t f, Py_ssize_t ahead, Py_ssize_t reach) noexcept
    void dps_forward_tiles_float(
        const float* x, Py_ssize_t stride, const int64_t* order, const float* w,
        Py_ssize_t padded, const float* bias, float* out, Py_ssize_t m, Py_ssize_t f,
        Py_ssize_t k, Py_ssize_t ahead, Py_ssize_t reach) noexcept
    void dps_backward_tiles_float(
        const float* x, Py_ssize_t stride, const int64_t* order, const float* d, float* w,
        Py_ssize_t padded, Py_ssize_t m, Py_ssize_t f, Py_ssize_t k, Py_ssize_t ahead,
        Py_ssize_t reach) noexcept
    void dps_dot_rows_double(
        const double* x, Py_ssize_t stride, const int64_t* order, const double* w, double bias,
        double* out, Py_ssize_t m, Py_ssize_t f, Py_ssize_t ahead, Py_ssize_t reach) noexcept
    void dps_add_rows_double(
        const double* x, Py_ssize_t stride, const int64_t* order, const double* d, double* grad,
        Py_ssize_t m, Py_ssize_t f, Py_ssize_t ahead, Py_ssize_t reach) noexcept
    void dps_forward_tiles_double(
        const double* x, Py_ssize_t stride, const int64_t* order, const double* w,
        Py_ssize_t padded, const double* bias, double* out, Py_ssize_t m, Py_ssize_t f,
        Py_ssize_t k, Py_ssize_t ahead, Py_ssize_t reach) noexcept
    void dps_backward_tiles_double(
        const double* x, Py_ssize_t stride, const int64_t* order, const double* d, double* w,
        Py_ssize_t padded, Py_ssize_t m, Py_ssize_t f, Py_ssize_t k, Py_ssize_t ahead,
        Py_ssize_t reach) noexcept


cdef extern from "sparse.h" nogil:
    void dps_dot_sparse(
        bint single, bint wide, const void* x, const void* indices, const void* indptr,
        const int64_t* order, const void* w, double bias, void* out, Py_ssize_t m) noexcept
    void dps_add_sparse(
        bint single, bint wide, const void* x, const void* indices, const void* indptr,
        const int64_t* order, const void* d, void* grad, Py_ssize_t m,
        Py_ssize_t n_ahead) noexcept

cdef enum:
    LANES = 16  # partial sums over rows


cdef inline Py_ssize_t _row(const int64_t* order, Py_ssize_t i) noexcept nogil:
    return order[i] if order is not NULL else i


cdef Py_ssize_t padded_outputs(Py_ssize_t k) noexcept nogil:
    """Return the number of outputs in whole tiles."""
    cdef Py_ssize_t tile = dps_tile(k)
    return (k + tile - 1) // tile * tile


cdef void pad(const floating* w, floating* tiles, Py_ssize_t f, Py_ssize_t k) noexcept nogil:
    """Copy coefficients to whole tiles; the rest of ``tiles`` is zero already."""
    cdef Py_ssize_t padded = padded_outputs(k), j
    for j in range(f):
        memcpy(tiles + j * padded, w + j * k, k * sizeof(floating))


cdef void add_unpadded(
    const floating* tiles, floating* w, Py_ssize_t f, Py_ssize_t k
) noexcept nogil:
    """Add the contents of whole tiles."""
    cdef Py_ssize_t padded = padded_outputs(k), j, c
    for j in range(f):
        for c in range(k):
            w[j * k + c] += tiles[j * padded + c]


cdef void forward(
    const floating* x, Py_ssize_t stride, const int64_t* order, const floating* w,
    const floating* bias, floating* out, Py_ssize_t m, Py_ssize_t f, Py_ssize_t k,
    Py_ssize_t ahead, Py_ssize_t reach,
) noexcept nogil:
    """out = bias + rows @ w; for several outputs w is in tiles, see `pad`.

    Half as many rows are prefetched meanwhile, from number ``ahead`` on and below ``reach``.
    """
    cdef floating shift = bias[0] if bias is not NULL else 0
    if k == 1:
        if floating is float:
            dps_dot_rows_float(x, stride, order, w, shift, out, m, f, ahead, reach)
        else:
            dps_dot_rows_double(x, stride, order, w, shift, out, m, f, ahead, reach)
    elif floating is float:
        dps_forward_tiles_float(
            x, stride, order, w, padded_outputs(k), bias, out, m, f, k, ahead, reach
        )
    else:
        dps_forward_tiles_double(
            x, stride, order, w, padded_outputs(k), bias, out, m, f, k, ahead, reach
        )


cdef void backward(
    const floating* x, Py_ssize_t stride, const int64_t* order, const floating* d,
    floating* grad, Py_ssize_t m, Py_ssize_t f, Py_ssize_t k, Py_ssize_t ahead, Py_ssize_t reach,
) noexcept nogil:
    """grad += rows.T @ d, in tiles as in `forward`, which explains ``ahead`` and ``reach``."""
    if k == 1:
        if floating is float:
            dps_add_rows_float(x, stride, order, d, grad, m, f, ahead, reach)
        else:
            dps_add_rows_double(x, stride, order, d, grad, m, f, ahead, reach)
    elif floating is float:
        dps_backward_tiles_float(
            x, stride, order, d, grad, padded_outputs(k), m, f, k, ahead, reach
        )
    else:
        dps_backward_tiles_double(
            x, stride, order, d, grad, padded_outputs(k), m, f, k, ahead, reach
        )


def dense_forward(
    const floating[:, :] X, const int64_t[::1] order, const floating[:, ::1] coef,
    const floating[::1] intercept, floating[:, ::1] out,
):
    """out = X[order] @ coef + intercept; without ``order`` the first rows of X."""
    cdef Py_ssize_t m = out.shape[0], k = out.shape[1], f = X.shape[1]
    cdef Py_ssize_t stride = X.strides[0] // <Py_ssize_t> sizeof(floating)
    cdef floating[:, ::1] tiles
    cdef const int64_t* picks = NULL
    cdef const floating* bias = NULL
    cdef const floating* x = NULL
    cdef const floating* w = NULL
    contiguous_rows("X", f, X.strides[1], sizeof(floating))
    same_length("coef", coef.shape[0], f)
    same_length("rows of coef", coef.shape[1], k)
    if order is None:
        if X.shape[0] < m:
            raise ValueError(f"X has {X.shape[0]} rows, expected at least {m}")
    else:
        same_length("order", order.shape[0], m)
    if intercept is not None:
        same_length("intercept", intercept.shape[0], k)
    if m == 0 or k == 0:
        return
    if order is not None:
        picks = &order[0]
        if DPS_DEBUG:
            indices_below("order", picks, m, X.shape[0])
    if intercept is not None:
        bias = &intercept[0]
    if f:
        x = &X[0, 0]
        w = &coef[0, 0]
    if f and k > 1:
        tiles = np.zeros((f, padded_outputs(k)), "f4" if floating is float else "f8")
        pad(w, &tiles[0, 0], f, k)
        w = &tiles[0, 0]
    with nogil:
        forward(x, stride, picks, w, bias, &out[0, 0], m, f, k, 0, 0)


cdef void add_columns(
    const floating* d, floating* grad, Py_ssize_t m, Py_ssize_t k
) noexcept nogil:
    """grad += d.sum(0), for one output in a fixed number of partial sums."""
    cdef Py_ssize_t i, c, j, whole = m - m % LANES if k == 1 else 0
    cdef floating lane[LANES]
    cdef floating total
    for j in range(LANES):
        lane[j] = 0
    for i from 0 <= i < whole by LANES:
        for j in range(LANES):
            lane[j] += d[i + j]
    for c in range(k):
        total = 0
        if whole:
            for j in range(LANES):
                total += lane[j]
        for i in range(whole, m):
            total += d[i * k + c]
        grad[c] += total


def dense_backward(
    const floating[:, :] X, const int64_t[::1] order, const floating[:, ::1] d,
    floating[:, ::1] grad_coef, floating[::1] grad_intercept,
):
    """grad_coef += X[order].T @ d and grad_intercept += d.sum(0)."""
    cdef Py_ssize_t m = d.shape[0], k = d.shape[1], f = X.shape[1]
    cdef Py_ssize_t stride = X.strides[0] // <Py_ssize_t> sizeof(floating)
    cdef floating[:, ::1] tiles
    cdef const int64_t* picks = NULL
    cdef floating* bias = NULL
    cdef floating* w = NULL
    contiguous_rows("X", f, X.strides[1], sizeof(floating))
    same_length("grad_coef", grad_coef.shape[0], f)
    same_length("rows of grad_coef", grad_coef.shape[1], k)
    if order is None:
        if X.shape[0] < m:
            raise ValueError(f"X has {X.shape[0]} rows, expected at least {m}")
    else:
        same_length("order", order.shape[0], m)
    if grad_intercept is not None:
        same_length("grad_intercept", grad_intercept.shape[0], k)
    if m == 0 or k == 0:
        return
    if order is not None:
        picks = &order[0]
        if DPS_DEBUG:
            indices_below("order", picks, m, X.shape[0])
    if grad_intercept is not None:
        bias = &grad_intercept[0]
    if f:
        w = &grad_coef[0, 0]
        if k > 1:
            tiles = np.zeros((f, padded_outputs(k)), "f4" if floating is float else "f8")
            w = &tiles[0, 0]
    with nogil:
        if f:
            backward(&X[0, 0], stride, picks, &d[0, 0], w, m, f, k, 0, 0)
            if k > 1:
                add_unpadded(w, &grad_coef[0, 0], f, k)
        if bias is not NULL:
            add_columns(&d[0, 0], bias, m, k)


cdef void forward_csr(
    const floating* data, const index_t* indices, const index_t* indptr, const int64_t* order,
    const floating* w, const floating* bias, floating* out, Py_ssize_t m, Py_ssize_t k,
) noexcept nogil:
    """out = bias + rows @ w"""
    cdef Py_ssize_t i, p, c, row
    cdef const floating* source
    cdef floating* o
    cdef floating shift = bias[0] if bias is not NULL else 0
    if k == 1:
        dps_dot_sparse(
            floating is float, index_t is int64_t, data, indices, indptr, order, w, shift, out, m
        )
        return
    for i in range(m):
        row = _row(order, i)
        o = out + i * k
        for c in range(k):
            o[c] = bias[c] if bias is not NULL else 0
        for p in range(indptr[row], indptr[row + 1]):
            source = w + <Py_ssize_t> indices[p] * k
            for c in range(k):
                o[c] += data[p] * source[c]


cdef void backward_csr(
    const floating* data, const index_t* indices, const index_t* indptr, const int64_t* order,
    const floating* d, floating* grad, Py_ssize_t m, Py_ssize_t k, Py_ssize_t n_ahead,
) noexcept nogil:
    """grad += rows.T @ d; the ``n_ahead`` rows after the m may be prefetched."""
    cdef Py_ssize_t i, p, c, row
    cdef floating* target
    if k == 1:
        dps_add_sparse(
            floating is float, index_t is int64_t, data, indices, indptr, order, d, grad, m,
            n_ahead,
        )
        return
    for i in range(m):
        row = _row(order, i)
        for p in range(indptr[row], indptr[row + 1]):
            target = grad + <Py_ssize_t> indices[p] * k
            for c in range(k):
                target[c] += data[p] * d[i * k + c]


cdef int _check_csr(
    const floating[::1] data, const index_t[::1] indices, const index_t[::1] indptr,
    const int64_t[::1] order, Py_ssize_t m, Py_ssize_t f,
) except -1:
    cdef Py_ssize_t rows = indptr.shape[0] - 1
    same_length("indices", indices.shape[0], data.shape[0])
    if order is not None:
        same_length("order", order.shape[0], m)
    elif rows < m:
        raise ValueError(f"indptr has {rows} rows, expected at least {m}")
    if DPS_DEBUG and m:
        indices_below("indptr", &indptr[0], rows + 1, data.shape[0] + 1)
        if data.shape[0]:
            indices_below("indices", &indices[0], data.shape[0], f)
        if order is not None:
            indices_below("order", &order[0], m, rows)
    return 0


def csr_forward(
    const floating[::1] data, const index_t[::1] indices, const index_t[::1] indptr,
    const int64_t[::1] order, const floating[:, ::1] coef, const floating[::1] intercept,
    floating[:, ::1] out,
):
    """`dense_forward` for CSR rows; ``indptr`` may be a slice of a longer one."""
    cdef Py_ssize_t m = out.shape[0], k = out.shape[1]
    cdef const int64_t* picks = NULL
    cdef const floating* bias = NULL
    cdef const floating* values = NULL
    cdef const index_t* columns = NULL
    cdef const floating* w = NULL
    same_length("rows of coef", coef.shape[1], k)
    if intercept is not None:
        same_length("intercept", intercept.shape[0], k)
    _check_csr(data, indices, indptr, order, m, coef.shape[0])
    if m == 0 or k == 0:
        return
    if order is not None:
        picks = &order[0]
    if intercept is not None:
        bias = &intercept[0]
    if data.shape[0] and coef.shape[0]:
        values = &data[0]
        columns = &indices[0]
        w = &coef[0, 0]
    with nogil:
        forward_csr(values, columns, &indptr[0], picks, w, bias, &out[0, 0], m, k)


def csr_backward(
    const floating[::1] data, const index_t[::1] indices, const index_t[::1] indptr,
    const int64_t[::1] order, const floating[:, ::1] d, floating[:, ::1] grad_coef,
    floating[::1] grad_intercept,
):
    """`dense_backward` for CSR rows."""
    cdef Py_ssize_t m = d.shape[0], k = d.shape[1]
    cdef const int64_t* picks = NULL
    cdef floating* bias = NULL
    same_length("rows of grad_coef", grad_coef.shape[1], k)
    if grad_intercept is not None:
        same_length("grad_intercept", grad_intercept.shape[0], k)
    _check_csr(data, indices, indptr, order, m, grad_coef.shape[0])
    if m == 0 or k == 0:
        return
    if order is not None:
        picks = &order[0]
    if grad_intercept is not None:
        bias = &grad_intercept[0]
    with nogil:
        if data.shape[0] and grad_coef.shape[0]:
            backward_csr(
                &data[0], &indices[0], &indptr[0], picks, &d[0, 0], &grad_coef[0, 0], m, k, 0
            )
        if bias is not NULL:
            add_columns(&d[0, 0], bias, m, k)
