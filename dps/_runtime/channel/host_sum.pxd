from libc.stdint cimport int64_t

from dps._runtime.channel.base cimport ShardChannel
from dps._runtime.channel.mapped cimport MappedChannel


cdef class HostReducer(MappedChannel):
    cdef readonly bint leads
    cdef char* answered  # notes and status of the leader's answer
    cdef Py_ssize_t answer_stride

    cdef int sum_up(
        self, int64_t op, const char* given, int64_t rows, const double* notes, int64_t sequence
    ) except -1 nogil
    cdef int _sum_keys(self) except -1 nogil
    cdef void take_means(self, int number, ShardChannel channel) noexcept nogil
    cdef int publish(self, int status, const double* notes) noexcept nogil
    cdef int await_answer(self, double* notes) except -1 nogil
