from libc.stdint cimport int64_t

from dps._runtime.asynchronous cimport AsynchronousChannel, AsynchronousStep


cdef class GatheringChannel(AsynchronousChannel):
    cdef readonly int64_t aggregate
    cdef readonly int64_t drop_after
    cdef double* gathered           # see `Window`
    cdef char* marks                # of each key whether something of it has been gathered
    cdef bint counts_now            # whether the gradient at work does

    cdef int _begin(self) except -1 nogil
    cdef int _end(self, bint finite) except -1 nogil
    cdef int _gather(self) except -1 nogil
    cdef bint _apply_gathered(self) except -1 nogil
    cdef void _add_keys(self, int64_t* keys, const char* values, Py_ssize_t n) noexcept nogil


cdef class GatheringStep(AsynchronousStep):
    cdef bint finished              # at the end of an epoch
    cdef int64_t dropped            # rows, since somebody asked
    cdef int64_t last_dropped       # the push that they were counted of last
