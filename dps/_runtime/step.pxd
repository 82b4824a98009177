from libc.stdint cimport int64_t

from dps._kernels.buffer cimport Buffer
from dps._kernels.rows cimport KeyedRows
from dps._kernels.typed_ops cimport TypedOps
from dps._runtime.shared.activity cimport Activity
from dps._runtime.channel.base cimport ShardChannel, Picks
from dps._runtime.channel.host_sum cimport HostReducer
from dps._runtime.wire.message cimport Request


# The shards' ranges of keys of the whole vector.
cdef struct KeyMap:
    Py_ssize_t width  # elements per key
    int64_t table_rows  # rows of the table for ids, which are keys below 0
    const int64_t* starts  # first key of each shard, ascending

# The rank's position in an epoch.
cdef struct Way:
    int64_t epoch
    int64_t last  # steps of the epoch
    Py_ssize_t missed  # steps that other ranks have completed meanwhile


cdef class Step:
    cdef public int64_t sequence
    cdef readonly int64_t version       # updates before the first push
    cdef readonly Py_ssize_t size
    cdef readonly int rank
    cdef readonly int n_shards
    cdef readonly Activity activity
    cdef public int coding  # `Coding` of whole vectors on their way to other hosts
    cdef readonly bint ahead  # whether a push may be in progress while its rank computes
    cdef TypedOps numbers
    cdef list _refs                     # keeps channels and memory alive
    cdef void** _channels
    cdef HostReducer host  # where ranks of a host sum first; None: nowhere
    cdef char* params  # (size,) parameters for the next gradient
    cdef char* at_keys  # parameters by keys, side by side
    cdef Buffer _at_keys
    cdef char* total  # (size,) result of a mean or a broadcast
    cdef readonly KeyedRows keys  # keys that the batch touches; None: pushes are whole vectors
    cdef KeyMap key_map
    cdef object rates
    cdef Way way
    cdef double notes[8]  # notes that came with the answer

    cdef char* keep(self, array) except? NULL
    cdef Request* request(self, int number, int64_t op) noexcept nogil
    cdef int push(self, const char* grad, int64_t rows, double rate) except -1 nogil
    cdef int pull_keys(self) except -1 nogil
    cdef int collect(self) except -1 nogil
    cdef int pushed(self, double rate) except -1 nogil
    cdef char* _taken(self) noexcept nogil
    cdef int _exchange(
        self, int64_t op, const char* given, int64_t rows, double rate, char* taken
    ) except -1 nogil
    cdef int _exchange_by_host(
        self, int64_t op, const char* given, int64_t rows, double rate, char* taken
    ) except -1 nogil
    cdef int _exchange_with_all(
        self, int64_t op, const char* given, int64_t rows, double rate, char* taken
    ) except -1 nogil
    cdef int _ask(self, int64_t op, char* taken) except -1 nogil
    cdef int _split(self, int64_t* keys, Py_ssize_t n) except -1 nogil
    cdef int _make_room(self) except -1 nogil
    cdef int mean(self, const char* given, int64_t rows, const double* notes) except -1 nogil
    cdef int broadcast(self, const char* given, const double* notes) except -1 nogil
    cdef int _collective(
        self, int64_t op, const char* given, int64_t rows, const double* notes
    ) except -1 nogil
    cdef const char* _vector(self, values) except NULL
