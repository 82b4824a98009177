from libc.stdint cimport int32_t, int64_t

from dps._kernels.keys cimport KeyList
from dps._kernels.lazy cimport Held, LazyUpdate
from dps._kernels.push cimport Push, Shard


cdef class KeyedPush(Push):
    cdef LazyUpdate lazy
    cdef KeyList touched
    cdef Held held              # what this rank reads and applies to
    cdef int64_t now            # steps done in the epoch
    cdef Py_ssize_t width       # of a slice
    cdef int32_t* slot_keys     # of all ranks, rows as far apart as those of slots
    cdef int64_t* slot_counts   # (n_ranks, n_ranks)
    cdef int32_t* marks
    cdef int32_t* merged
    cdef char* sums
    cdef Py_ssize_t n_merged

    cdef bint _deliver(self, const char* grad, Py_ssize_t n_ranks) noexcept nogil
    cdef void _count_push(self) noexcept nogil
    cdef int _exchange(self, const char* grad, int64_t rows) except -1 nogil
    cdef int _used(self) except -1 nogil
