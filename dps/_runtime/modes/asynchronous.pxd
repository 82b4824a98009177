from libc.stdint cimport int64_t

from dps._runtime.channel.mapped cimport MappedChannel
from dps._runtime.step cimport Step


cdef class AsynchronousChannel(MappedChannel):
    cdef int _enter(self) except -1 nogil
    cdef void _leave(self) noexcept nogil
    cdef int begin_turn(self) except -1 nogil
    cdef void end_turn(self) noexcept nogil
    cdef bint apply_whole(self, char* mean, int64_t step) except -1 nogil
    cdef bint apply_slot(self, int64_t step) except -1 nogil


cdef class AsynchronousStep(Step):
    cdef int64_t* current  # the version of each shard in `params`
    cdef int64_t* based  # that of the current gradient's parameters
    cdef int64_t* waiting  # whether a shard's answer has not been collected
    cdef int64_t batch  # the batch whose keys have been pulled
    cdef double stale_sum
    cdef double stale_max

    cdef int _collect(self, int number) except -1 nogil
