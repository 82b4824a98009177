from dps._runtime.channel.mapped cimport MappedChannel
from dps._runtime.step cimport Step


cdef class SynchronousChannel(MappedChannel):
    """A channel without further attributes."""


cdef class SynchronousStep(Step):
    """A step without further attributes."""
