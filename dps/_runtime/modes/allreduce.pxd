from libc.stdint cimport int64_t

from dps._kernels.buffer cimport Buffer
from dps._runtime.channel.base cimport ShardChannel
from dps._runtime.channel.mapped cimport MappedChannel
from dps._runtime.keyed cimport KeyedParams
from dps._runtime.step cimport Step
from dps._runtime.updates cimport BoundUpdate


cdef class AllReduceChannel(MappedChannel):
    cdef char* left_over  # rounding error of the last mean
    cdef bint rounds  # whether means are rounded

    cdef bint _is_rounded(self) noexcept nogil


cdef class AllReduceStep(Step):
    cdef BoundUpdate update
    cdef char* state
    cdef char* means
    cdef KeyedParams keyed  # None if steps do not go by keys
    cdef Buffer renumbered

    cdef int _apply_keys(self) except -1 nogil
    cdef bint _apply_mean(self, ShardChannel channel, bint local) except -1 nogil
