from dps._runtime.ends cimport MappedEnd
from dps._runtime.step cimport Step


cdef class SynchronousEnd(MappedEnd):
    cdef bint _settle(self) noexcept nogil


cdef class SynchronousStep(Step):
    """Nothing of its own."""
