from libc.stdint cimport int64_t, uint64_t

from dps._kernels.buffer cimport Buffer
from dps._kernels.gather cimport Column
from dps._kernels.keys cimport KeyList

cdef enum:
    DENSE       # contiguous rows of the model's type
    CSR         # with int32 indices
    CSR_WIDE    # with int64 indices
    BYTES  # contiguous rows at unaligned addresses
    COLUMNS     # columns of any type

cdef struct Rows:
    int kind
    bint single  # float32, else float64
    bint picked  # whether targets and weights are in the order of the batch already
    Py_ssize_t length
    Py_ssize_t n_features
    Py_ssize_t stride  # distance between rows of values in elements, or in bytes for BYTES
    const char* values
    const void* indices
    const void* indptr
    const Column* columns
    const void* y
    Py_ssize_t y_width
    const void* weight      # or NULL
    void* block  # the block of the rows, for gradients in Python


cdef class BlockRows:
    cdef Rows rows
    cdef tuple _arrays      # keeps the memory alive


cdef class KeyedRows(KeyList):
    cdef Py_ssize_t n_rows
    cdef Py_ssize_t n_taken  # rows whose gradient has been added
    cdef Py_ssize_t n_stored
    cdef Buffer values          # (n_stored,) in the model's type
    cdef Buffer places          # (n_stored,) int
    cdef Buffer starts          # (n_rows + 1,) int

    cdef void begin_rows(self) noexcept nogil
    cdef Rows take(self, Py_ssize_t m) noexcept nogil


cdef class Gradient:
    cdef readonly Py_ssize_t size
    cdef readonly bint single
    cdef readonly bint keyed  # whether `touch` finds the keys of a sparse batch
    cdef readonly Py_ssize_t key_width  # elements per key
    cdef public bint tabled  # whether columns are ids of a table
    cdef Py_ssize_t first_always  # keys that every batch touches
    cdef Py_ssize_t n_always
    cdef readonly Py_ssize_t most  # rows that it takes at a time; 0: unlimited
    cdef public object owner  # owner of the memory in calls of `add`, for gradients in Python
    cdef bint failed  # whether `add` has raised
    cdef bint in_passes  # whether a batch has many blocks that touch few parameters each
    cdef void begin(self, uint64_t key) noexcept nogil
    cdef double finish(self, const void* params, void* out) noexcept nogil
    cdef double add(
        self, const Rows* rows, const int64_t* order, Py_ssize_t start, Py_ssize_t m,
        Py_ssize_t ahead, const void* params, void* out,
    ) noexcept nogil
    cdef int touch(
        self, const Rows* rows, const int64_t* order, Py_ssize_t start, Py_ssize_t m,
        Py_ssize_t ahead, KeyedRows keys,
    ) except -1 nogil
    cdef double add_touched(
        self, const Rows* rows, const int64_t* order, Py_ssize_t start, Py_ssize_t m,
        Py_ssize_t ahead, KeyedRows keys, const void* params, void* out,
    ) noexcept nogil
    cdef void raw_touched(
        self, KeyedRows keys, Py_ssize_t m, const void* params, void* out
    ) noexcept nogil
    cdef void round(self, double width, bint gap) noexcept nogil
    cdef int check(self, BlockRows block) except -1
    cdef BlockRows rows_of(self, block)
    cdef int reraise(self) except -1
    cdef Py_ssize_t _limit(
        self, BlockRows block, const int64_t[::1] order, Py_ssize_t start, Py_ssize_t stop
    ) except -1
