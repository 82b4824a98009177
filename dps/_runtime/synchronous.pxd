from dps._runtime.ends cimport MappedEnd
from dps._runtime.step cimport Step


cdef class SynchronousEnd(MappedEnd):
    """Nothing of its own."""


cdef class SynchronousStep(Step):
    """Nothing of its own."""
