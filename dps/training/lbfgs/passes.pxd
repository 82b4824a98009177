from libc.stdint cimport int64_t

from dps._kernels.rows cimport BlockRows, Gradient, Rows


cdef class GradientSum:
    cdef Gradient gradient
    cdef object beat
    cdef double every
    cdef double beaten
    cdef Py_ssize_t most
    cdef Py_ssize_t summed  # rows in the sum of the model's type
    cdef bint folded  # whether some have been moved to the sum in double
    cdef double loss
    cdef object _part
    cdef object _params
    cdef double[::1] whole
    cdef char* part  # at the end, the whole sum
    cdef const char* params

    cdef void start(self, const char* params) noexcept nogil
    cdef int add_rows(
        self, const Rows* rows, const int64_t* chosen, Py_ssize_t start, Py_ssize_t stop,
        Py_ssize_t limit,
    ) except -1 nogil
    cdef int finish(self) except -1 nogil
    cdef int _close(self) except -1 nogil
    cdef int _fold(self) except -1 nogil


# The rows of a block in a pass: order[start:stop], or start:stop.
cdef struct Part:
    const Rows* rows
    const int64_t* order        # or NULL
    Py_ssize_t start
    Py_ssize_t stop
    Py_ssize_t limit


cdef class Pass:
    cdef readonly Py_ssize_t count
    cdef GradientSum sum
    cdef Part* parts
    cdef Py_ssize_t n_parts
    cdef list _arrays           # keeps the memory alive

    cdef int run(self, const char* params) except -1 nogil


cdef class StreamedPass(Pass):
    cdef object rows
