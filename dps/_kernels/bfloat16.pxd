from cython cimport floating
from libc.stdint cimport uint16_t

cdef void narrow(
    uint16_t* out, const floating* x, floating* error, Py_ssize_t n
) noexcept nogil
cdef void narrow_change(
    uint16_t* out, const floating* x, floating* known, Py_ssize_t n
) noexcept nogil
cdef void widen(floating* out, const uint16_t* x, Py_ssize_t n) noexcept nogil
cdef void add_widened(floating* out, const uint16_t* x, Py_ssize_t n) noexcept nogil
