from libc.stdint cimport int64_t

from dps._kernels.buffer cimport Buffer
from dps._runtime.allreduce cimport AllReduceStep
from dps._runtime.updates cimport BoundUpdate


cdef class LocalStep(AllReduceStep):
    cdef AllReduceStep reduction
    cdef int64_t period
    cdef int64_t synchronised       # the step after which copies were last averaged
    cdef int64_t rows               # since then
    cdef int64_t epoch_rows
    cdef int64_t reductions
    cdef bint alone
    cdef BoundUpdate outer
    cdef double rate
    cdef char* outer_state
    cdef char* base                 # what all copies were then
    cdef char* given                # to the others
    cdef Py_ssize_t state_rows
    cdef Buffer part                # of a gradient by keys
    cdef const int64_t* runs        # (n_runs, 3) of elements, with their kinds
    cdef Py_ssize_t n_runs

    cdef bint _stopped(self) noexcept nogil

    cdef int _step_here(self, const char* grad, int64_t rows, double rate) except -1 nogil
    cdef int _synchronise(self) except -1 nogil
    cdef int _average_state(self) except -1 nogil
    cdef int _exchanged(self, int64_t rows, char* taken) except -1 nogil
