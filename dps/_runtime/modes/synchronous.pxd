from dps._runtime.channel.mapped cimport MappedChannel
from dps._runtime.step cimport Step


cdef class SynchronousChannel(MappedChannel):
    """Nothing of its own."""


cdef class SynchronousStep(Step):
    """Nothing of its own."""
