from libc.stdint cimport int64_t

from dps._kernels.buffer cimport Buffer
from dps._runtime.step cimport Step
from dps._runtime.synchronous cimport SynchronousChannel


cdef class BackupsChannel(SynchronousChannel):
    cdef int quorum
    cdef int64_t counted            # the step in which the last gradient counts; 0: in none
    cdef int64_t* taken_rows        # (2 n_ranks,): of slots in time, then of late ones
    cdef Buffer copied                # parameters, as they were at one time

    cdef int _offer(self) except -1 nogil
    cdef int _offer_late(self, int64_t last) except -1 nogil
    cdef int64_t _quiet(self) except -1 nogil
    cdef int _close(self, int64_t step) except -1 nogil
    cdef int _read(self, char* taken) except -1 nogil
    cdef bint _unchanged(self, int64_t state) noexcept nogil


cdef class BackupsStep(Step):
    cdef bint late
    cdef int64_t offered
    cdef int64_t dropped
    cdef int64_t came_late
    cdef double stale_sum
    cdef double stale_max

    cdef int _catch_up(self) except -1 nogil
