"""Sums over gradient slots in rank order, and copies that check for finite values.

The order of additions gives all ranks the same bits. Arithmetic is IEEE and in the arrays' own
type.
"""
from cython cimport floating
from libc.stdint cimport int64_t
from libc.string cimport memcpy, memset

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
    """Compute the sum over active ranks divided by ``by``; False, and zeros, without any."""
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


cdef bint is_finite(const floating* x, Py_ssize_t n) noexcept nogil:
    """True if all elements are finite."""
    if floating is float:
        return dps_is_finite_float(x, n)
    else:
        return dps_is_finite_double(x, n)


cdef bint copy_checked(floating* dst, const floating* src, Py_ssize_t n) noexcept nogil:
    """dst = src; True if all elements are finite."""
    if floating is float:
        return dps_copy_checked_float(dst, src, n)
    else:
        return dps_copy_checked_double(dst, src, n)
