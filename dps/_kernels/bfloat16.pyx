"""Vectors as bfloat16 and back; rounding errors are carried to the next vector.

Rounding is to the nearest, ties to even.
"""
from cython cimport floating
from libc.stdint cimport uint16_t

cdef extern from "bfloat16.h" nogil:
    void dps_narrow_float(uint16_t* out, const float* x, float* error, Py_ssize_t n) noexcept
    void dps_narrow_double(uint16_t* out, const double* x, double* error, Py_ssize_t n) noexcept
    void dps_narrow_change_float(
        uint16_t* out, const float* x, float* known, Py_ssize_t n
    ) noexcept
    void dps_narrow_change_double(
        uint16_t* out, const double* x, double* known, Py_ssize_t n
    ) noexcept
    void dps_widen_float(float* out, const uint16_t* x, Py_ssize_t n) noexcept
    void dps_widen_double(double* out, const uint16_t* x, Py_ssize_t n) noexcept
    void dps_add_widened_float(float* out, const uint16_t* x, Py_ssize_t n) noexcept
    void dps_add_widened_double(double* out, const uint16_t* x, Py_ssize_t n) noexcept


cdef void narrow(
    uint16_t* out, const floating* x, floating* error, Py_ssize_t n
) noexcept nogil:
    """out = x + error, rounded; ``error`` becomes the difference."""
    if floating is float:
        dps_narrow_float(out, x, error, n)
    else:
        dps_narrow_double(out, x, error, n)


cdef void narrow_change(
    uint16_t* out, const floating* x, floating* known, Py_ssize_t n
) noexcept nogil:
    """out = x - known, rounded; known += out."""
    if floating is float:
        dps_narrow_change_float(out, x, known, n)
    else:
        dps_narrow_change_double(out, x, known, n)


cdef void widen(floating* out, const uint16_t* x, Py_ssize_t n) noexcept nogil:
    """out = x"""
    if floating is float:
        dps_widen_float(out, x, n)
    else:
        dps_widen_double(out, x, n)


cdef void add_widened(floating* out, const uint16_t* x, Py_ssize_t n) noexcept nogil:
    """out += x"""
    if floating is float:
        dps_add_widened_float(out, x, n)
    else:
        dps_add_widened_double(out, x, n)
