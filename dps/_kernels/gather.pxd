from cython cimport floating
from libc.stdint cimport int64_t

cdef struct Column:
    const char* data
    Py_ssize_t stride
    int code


cdef class ColumnTable:
    cdef tuple _arrays  # keeps the memory of the columns alive
    cdef Column* columns
    cdef Py_ssize_t width
    cdef Py_ssize_t length


cdef void fill_rows(
    const Column* columns, Py_ssize_t width, const int64_t* order, Py_ssize_t start,
    Py_ssize_t n, floating* out,
) noexcept nogil
