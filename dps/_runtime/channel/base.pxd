from libc.stdint cimport int64_t

from dps._kernels.buffer cimport Buffer
from dps._kernels.typed_ops cimport TypedOps
from dps._runtime.wire.message cimport Answer, Request

# Keys in a shard's own numbers, and the places of their values among those of all shards.
cdef struct Picks:
    int64_t* keys
    int64_t* at  # NULL: the places are 0, 1, 2, ...
    Py_ssize_t n

# A sparse mean, in parts.
cdef struct Sparse:
    Py_ssize_t n_parts
    const int64_t** keys
    const char** values
    int64_t* counts


cdef class ErrorFeedback:
    cdef TypedOps numbers
    cdef Py_ssize_t size
    cdef Buffer narrowed
    cdef Buffer left  # rounding error of each element

    cdef const char* narrow(
        self, const char* x, Py_ssize_t first, Py_ssize_t n, bint last
    ) except NULL nogil


cdef class ShardChannel:
    cdef readonly Py_ssize_t size
    cdef readonly int n_ranks
    cdef TypedOps numbers
    cdef Request request
    cdef Answer answer
    cdef Picks picks
    cdef Sparse mean  # of updates by keys that each rank applies
    cdef readonly Py_ssize_t key_width  # elements per key; 0: whole vectors only
    cdef Py_ssize_t n_keys
    cdef Py_ssize_t key_bytes  # bytes of the elements of a key
    cdef Buffer values  # values of the picks, side by side
    cdef Buffer pick_keys
    cdef Buffer pick_at
    cdef readonly Py_ssize_t first  # the first of its elements in the whole vector
    cdef readonly int64_t first_key
    cdef readonly bint far
    cdef list _arrays  # keeps the memory alive

    cdef char* keep(self, array) except? NULL
    cdef void pick_all(self, int64_t* keys, Py_ssize_t n) noexcept nogil
    cdef int pick_none(self, Py_ssize_t most) except -1 nogil
    cdef int begin(self, const char* given) except -1 nogil
    cdef int finish(self, char* taken) except -1 nogil
    cdef int heartbeat(self) except -1 nogil
    cdef int put(
        self, int place, const char* values, Py_ssize_t nbytes, int64_t rows, int64_t sequence
    ) except -1 nogil
    cdef void _place(self, const char* part, char* whole) noexcept nogil
    cdef void _globalise(self, int64_t* keys, Py_ssize_t n) noexcept nogil
