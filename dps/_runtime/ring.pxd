from libc.stdint cimport int64_t

from dps._runtime.allreduce cimport AllReduceStep
from dps._runtime.channels cimport ShardChannel
from dps._runtime.mapped cimport MappedChannel


cdef class RingStep(AllReduceStep):
    cdef int place
    cdef int n_places
    cdef const int64_t* cuts            # (n_places + 1,)
    cdef MappedChannel own
    cdef ShardChannel right

    cdef int _go_round(self, char* values, int64_t own_rows) except -1 nogil
    cdef int _chunk(self, int shift) noexcept nogil
    cdef Py_ssize_t _first(self, int chunk) noexcept nogil
    cdef Py_ssize_t _length(self, int chunk) noexcept nogil
    cdef int _put(self, int number, int chunk, const char* values, int64_t rows) except -1 nogil
    cdef int64_t _await(self, int number) except -1 nogil
    cdef int64_t _sequence(self, int number) noexcept nogil
    cdef const char* _came(self, int number) noexcept nogil
