from cython cimport floating
from libc.stdint cimport int64_t, uint64_t

from dps._kernels.buffer cimport Buffer
from dps._kernels.rows cimport Gradient, Rows


cdef class BlockGradient(Gradient):
    cdef tuple _arrays          # keeps the memory alive
    cdef Py_ssize_t n_features
    cdef Py_ssize_t n_outputs
    cdef Py_ssize_t count  # number of waiting rows
    cdef Py_ssize_t done  # rows of the batch before them
    cdef Py_ssize_t stored  # values of waiting sparse rows
    cdef Py_ssize_t y_width
    cdef bint weighted  # whether a waiting row has a weight other than one
    cdef uint64_t key
    cdef char* y                # (block, y_width)
    cdef char* weight           # (block,)
    cdef char* raw_out  # where raw outputs are written, if requested

    cdef char* _room(self, Py_ssize_t elements, Py_ssize_t itemsize=*) except NULL
    cdef bint _fit(
        self, Buffer first, Py_ssize_t nbytes, Buffer second, Py_ssize_t others
    ) noexcept nogil
    cdef double take_through(self, const void* params, void* out) noexcept nogil


cdef Py_ssize_t row_of(const int64_t* order, Py_ssize_t at) noexcept nogil
cdef void take_targets(
    BlockGradient self, const Rows* rows, const int64_t* order, Py_ssize_t at, Py_ssize_t first,
    Py_ssize_t n, const floating* example,
) noexcept nogil
