from libc.stdint cimport int64_t

from dps._kernels.buffer cimport Buffer
from dps._kernels.keys cimport KeyList
from dps._kernels.lazy cimport Held, LazyUpdate
from dps._kernels.table cimport Table
from dps._runtime.channel.whole cimport WholeChannel


cdef class MappedChannel(WholeChannel):
    cdef LazyUpdate lazy
    cdef object rates
    cdef int64_t epoch
    cdef Held held
    cdef Py_ssize_t slice_keys      # of a slice
    cdef int64_t* slot_keys         # of all ranks
    cdef Py_ssize_t key_stride
    cdef int64_t* slot_counts       # (n_ranks, n_ranks)
    cdef int64_t* total_keys
    cdef int64_t* total_counts
    cdef Table table
    cdef int64_t lasting            # updates that a row of it stays untouched
    cdef Buffer found               # rows of the picks, in the table
    cdef KeyList merged
    cdef Buffer sums                # at the merged keys

    cdef Py_ssize_t merge_keys(self, const int64_t* rows, int n_slots) except -1 nogil
    cdef Py_ssize_t find_rows(self) except -1 nogil
    cdef Py_ssize_t make_rows(
        self, int64_t* keys, char* values, Py_ssize_t n, int64_t now
    ) except -1 nogil
    cdef bint flush_keys(self, Py_ssize_t start, Py_ssize_t stop, int64_t now) noexcept nogil
    cdef bint _flush(self, Py_ssize_t start, Py_ssize_t stop, int64_t now) noexcept nogil
    cdef void expire_rows(self, Py_ssize_t first, Py_ssize_t last) noexcept nogil
    cdef void lay_out(self, Py_ssize_t n) noexcept nogil
    cdef int use_keys(self, Py_ssize_t n) except -1 nogil
    cdef bint apply_keys(
        self, int64_t* keys, char* mean, Py_ssize_t n, int64_t step
    ) except -1 nogil
    cdef int begin_epoch(self) except -1 nogil
    cdef tuple rates_of_epoch(self)
    cdef const char* values_of_picks(self) except? NULL nogil
    cdef int gather_keys(self, int64_t now, char* taken) except -1 nogil
