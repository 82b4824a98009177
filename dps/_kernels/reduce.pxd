from cython cimport floating
from libc.stdint cimport int64_t

cdef enum:
    BLOCK = 2048  # elements of a sum that stay in the first-level cache over all ranks

cdef bint sum_slots(
    const floating* slots, Py_ssize_t stride, const int64_t* rows, Py_ssize_t n_ranks,
    floating* out, Py_ssize_t n, floating by,
) noexcept nogil
cdef void add(floating* out, const floating* x, Py_ssize_t n) noexcept nogil
cdef void divide_by(floating* x, floating by, Py_ssize_t n) noexcept nogil
cdef bint copy_checked(floating* dst, const floating* src, Py_ssize_t n) noexcept nogil
cdef bint is_finite(const floating* x, Py_ssize_t n) noexcept nogil
