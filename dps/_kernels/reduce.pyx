"""Sums over gradient slots in rank order, and copies that notice what is not finite.

Owns the order of the additions, on which equal bits of all ranks rest. It must not know where the
slots lie, or who waits for whom. Arithmetic is IEEE and in the arrays' own type.
"""
from cython cimport floating
from libc.stdint cimport int64_t
from libc.string cimport memcpy, memmove, memset

from dps._kernels.checks cimport contiguous_rows, same_length

cdef extern from "reduce.h" nogil:
    void dps_add_float(float* out, const float* x, Py_ssize_t n) noexcept
    void dps_add_double(double* out, const double* x, Py_ssize_t n) noexcept
    void dps_divide_float(float* x, float by, Py_ssize_t n) noexcept
    void dps_divide_double(double* x, double by, Py_ssize_t n) noexcept
    bint dps_is_finite_float(const float* x, Py_ssize_t n) noexcept
    bint dps_is_finite_double(const double* x, Py_ssize_t n) noexcept
    bint dps_copy_checked_float(float* out, const float* x, Py_ssize_t n) noexcept
    bint dps_copy_checked_double(double* out, const double* x, Py_ssize_t n) noexcept

cdef void add(floating* out, const floating* x, Py_ssize_t n) noexcept nogil:
    """out += x"""
    if floating is float:
        dps_add_float(out, x, n)
    else:
        dps_add_double(out, x, n)


cdef void divide_by(floating* x, floating by, Py_ssize_t n) noexcept nogil:
    """x /= by"""
    if floating is float:
        dps_divide_float(x, by, n)
    else:
        dps_divide_double(x, by, n)


cdef bint sum_slots(
    const floating* slots, Py_ssize_t stride, const int64_t* rows, Py_ssize_t n_ranks,
    floating* out, Py_ssize_t n, floating by,
) noexcept nogil:
    """The sum over active ranks divided by ``by``; False, and zeros, if no rank is active."""
    cdef Py_ssize_t block = 0, size, r
    cdef bint active = False
    while block < n:
        size = min(<Py_ssize_t> BLOCK, n - block)
        active = False
        for r in range(n_ranks):
            if rows[r] == 0:
                continue
            if active:
                add(out + block, slots + r * stride + block, size)
            else:
                memcpy(out + block, slots + r * stride + block, size * sizeof(floating))
                active = True
        if not active:
            memset(out + block, 0, size * sizeof(floating))
        elif by != 1:
            divide_by(out + block, by, size)
        block += BLOCK
    return active


cdef int _check(
    Py_ssize_t ranks, Py_ssize_t width, Py_ssize_t n_rows, Py_ssize_t start, Py_ssize_t stop,
    Py_ssize_t n_out,
) except -1:
    same_length("rows", n_rows, ranks)
    if not 0 <= start <= stop <= width:
        raise ValueError(f"[{start}, {stop}) is not inside slots of width {width}")
    if n_out < stop - start:
        raise ValueError(f"out has length {n_out}, expected at least {stop - start}")
    return 0


cdef int _sum(
    const floating[:, :] slots, const int64_t[::1] rows, Py_ssize_t start, Py_ssize_t stop,
    floating[::1] out, floating by,
) except -1:
    cdef Py_ssize_t stride = slots.strides[0] // <Py_ssize_t> sizeof(floating)
    cdef const floating* first = NULL
    cdef const int64_t* counts = NULL
    if stop == start:
        return 0
    if rows.shape[0]:
        first = &slots[0, start]
        counts = &rows[0]
    with nogil:
        sum_slots(first, stride, counts, rows.shape[0], &out[0], stop - start, by)
    return 0


def sum_of_slots(
    const floating[:, :] slots, const int64_t[::1] rows, Py_ssize_t start, Py_ssize_t stop,
    floating[::1] out,
):
    """out[:stop-start] = the sum of slots[r, start:stop] in rank order, over ranks with rows."""
    contiguous_rows("slots", slots.shape[1], slots.strides[1], sizeof(floating))
    _check(slots.shape[0], slots.shape[1], rows.shape[0], start, stop, out.shape[0])
    _sum(slots, rows, start, stop, out, <floating> 1)


def mean_of_slots(
    const floating[:, :] slots, const int64_t[::1] rows, Py_ssize_t start, Py_ssize_t stop,
    floating[::1] out, double total,
):
    """`sum_of_slots` divided by ``total``; zeros, without a division, if no rank has rows."""
    cdef Py_ssize_t r
    cdef bint active = False
    contiguous_rows("slots", slots.shape[1], slots.strides[1], sizeof(floating))
    _check(slots.shape[0], slots.shape[1], rows.shape[0], start, stop, out.shape[0])
    for r in range(rows.shape[0]):
        active |= rows[r] != 0
    if active and not total > 0:
        raise ValueError(f"total must be positive where a rank has rows, got {total}")
    _sum(slots, rows, start, stop, out, <floating> total)


def divide(const floating[::1] src, double by, floating[::1] out):
    """out = src / by; they may be the same."""
    same_length("out", out.shape[0], src.shape[0])
    if src.shape[0]:
        with nogil:
            memmove(&out[0], &src[0], src.shape[0] * sizeof(floating))
            divide_by(&out[0], <floating> by, src.shape[0])


cdef bint is_finite(const floating* x, Py_ssize_t n) noexcept nogil:
    """Whether all elements are finite."""
    if floating is float:
        return dps_is_finite_float(x, n)
    else:
        return dps_is_finite_double(x, n)


cdef bint copy_checked(floating* dst, const floating* src, Py_ssize_t n) noexcept nogil:
    """dst = src, and whether all elements are finite."""
    if floating is float:
        return dps_copy_checked_float(dst, src, n)
    else:
        return dps_copy_checked_double(dst, src, n)


def copy_finite(const floating[::1] src, floating[::1] dst):
    """Copy and return whether all elements are finite."""
    cdef bint finite
    same_length("dst", dst.shape[0], src.shape[0])
    if src.shape[0] == 0:
        return True
    with nogil:
        finite = copy_checked(&dst[0], &src[0], src.shape[0])
    return finite


def all_finite(const floating[::1] x):
    """Return whether all elements are finite."""
    cdef bint finite
    if x.shape[0] == 0:
        return True
    with nogil:
        finite = is_finite(&x[0], x.shape[0])
    return finite
