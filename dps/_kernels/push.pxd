from libc.stdint cimport int64_t

from dps._kernels.activity cimport Activity
from dps._kernels.keys cimport Keys
from dps._kernels.optimizers cimport UpdateSpec
from dps._kernels.window cimport Words

cdef enum:
    # How a push ended; what is below 0 is an exception.
    PUSHED
    BAD_GRADIENT
    BAD_UPDATE
    STOPPED

# Where the words that a push touches lie; dps/server/window.py says what they mean.
cdef struct Places:
    int stop
    int version
    int open
    int arrived
    int done
    int free
    int rows
    int settled_epochs
    int settled_version

# How a vector is updated: runs of coordinates, equally penalised.
cdef struct Segments:
    UpdateSpec spec
    double l1
    double l2
    Py_ssize_t count
    const int64_t* runs     # (count, 3): first, last, penalised

cdef struct Shard:
    Words words
    Py_ssize_t size
    Py_ssize_t n_ranges
    const int64_t* ranges   # (n_ranges, 2) of the whole vector
    char* params
    char* state             # rows of `size`
    char* slots             # of all ranks
    Py_ssize_t slot_stride  # in elements
    char* total
    Py_ssize_t start        # the elements that this rank works on for all
    Py_ssize_t stop
    char* scratch           # of a few elements
    int64_t* counts
    int64_t based           # the version that this rank's parameters have
    Segments update


cdef class Push:
    cdef readonly int64_t sequence
    cdef readonly int64_t version
    cdef readonly double stale_sum
    cdef readonly double stale_max
    cdef readonly Py_ssize_t size
    cdef readonly bint single
    cdef int rank
    cdef int n_shards
    cdef Shard* shards
    cdef Places places
    cdef char* params               # (size,), what the next gradient is taken at
    cdef double tick
    cdef object until               # called where a wait is long
    cdef Activity activity
    cdef list _arrays               # keeps the memory alive
    cdef Keys* keys                 # what the batch has touched; NULL: pushes are whole vectors

    cdef int pull(self, Py_ssize_t first) except -1 nogil
    cdef int push(self, const char* grad, int64_t rows, double rate) except -1 nogil
    cdef int _enter(self) except -1 nogil
    cdef int wait(self, int shard, int field, int word, int64_t value) except -1 nogil
    cdef char* _keep(self, array) except? NULL
    cdef int _bind(self, Segments* segments, how) except -1
    cdef int _arrive(self, const char* grad, int64_t rows) noexcept nogil
    cdef int64_t _await(self, int number) except -1 nogil
    cdef void _mean(
        self, const Shard* shard, const char* grad, Py_ssize_t first, Py_ssize_t n, int64_t total
    ) noexcept nogil
    cdef bint _update(
        self, const Segments* how, char* params, const char* mean, char* state, Py_ssize_t stride,
        Py_ssize_t start, Py_ssize_t stop, int64_t step, double rate,
    ) noexcept nogil
    cdef bint _give_out(self, const Shard* shard, const char* flat, char* part) noexcept nogil
    cdef void _take_in(self, const Shard* shard, const char* part, char* flat) noexcept nogil


cdef class ExchangePush(Push):
    cdef bint _use(
        self, Shard* shard, Py_ssize_t first, Py_ssize_t last, int64_t step, double rate
    ) noexcept nogil
    cdef void _stepped(self, Shard* shard, int64_t step) noexcept nogil
    cdef void _finish(self, int number) noexcept nogil
    cdef int _settle(self, int number) except -1 nogil
