from libc.stdint cimport int64_t

from dps._runtime.modes.asynchronous cimport AsynchronousChannel, AsynchronousStep


cdef class BoundedChannel(AsynchronousChannel):
    cdef readonly int64_t max_delay

    cdef int await_others(self, int64_t clock) except -1 nogil
    cdef int before_apply(self) except -1 nogil
    cdef int after_apply(self, int status) noexcept nogil


cdef class BoundedStep(AsynchronousStep):
    cdef readonly int64_t clock  # steps taken, in the numbering of all ranks
    cdef int64_t epochs  # number of epochs that this rank has ended
    cdef int64_t epoch_steps  # those of the rank with the most steps
    cdef double distance

    cdef void _measure(self) noexcept nogil
