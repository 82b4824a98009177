from libc.stdint cimport int64_t

from dps._kernels.buffer cimport Buffer
from dps._runtime.bounded cimport BoundedChannel


cdef class AgedChannel(BoundedChannel):
    cdef double age(self, int64_t step) noexcept nogil


cdef class DelayedChannel(BoundedChannel):
    cdef readonly double strength
    cdef Buffer pulled                # what the rank has pulled last, by keys as they were picked
    cdef Py_ssize_t n_runs
    cdef const int64_t* runs        # (n_runs, 2): first, last of what is trained

    cdef void _compensate(
        self, char* mean, char* now, Py_ssize_t at, Py_ssize_t n
    ) noexcept nogil
