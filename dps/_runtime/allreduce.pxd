from libc.stdint cimport int64_t

from dps._kernels.lazy cimport Held, LazyUpdate
from dps._kernels.room cimport Room
from dps._runtime.ends cimport End, MappedEnd
from dps._runtime.step cimport Step
from dps._runtime.updates cimport BoundUpdate


cdef class AllReduceEnd(MappedEnd):
    """Nothing of its own."""


cdef class AllReduceStep(Step):
    cdef BoundUpdate update
    cdef char* state
    cdef char* means
    cdef LazyUpdate lazy
    cdef Held held
    cdef Room renumbered

    cdef int _apply_keys(self) except -1 nogil
    cdef bint _apply_mean(self, End end, bint local) except -1 nogil
