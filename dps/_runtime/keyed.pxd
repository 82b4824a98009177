from libc.stdint cimport int64_t

from dps._kernels.buffer cimport Buffer
from dps._kernels.lazy cimport Held, LazyUpdate
from dps._kernels.table cimport Table


cdef class KeyedParams:
    cdef LazyUpdate update
    cdef object rates
    cdef int64_t epoch
    cdef Held held
    cdef Table table
    cdef int64_t lasting  # updates after which an untouched row expires
    cdef Buffer found  # rows of keys in the table
    cdef Py_ssize_t row_bytes
    cdef tuple _refs                # keeps the memory alive

    cdef Py_ssize_t _find(self, const int64_t* keys, Py_ssize_t n) except -1 nogil
    cdef Py_ssize_t make_rows(
        self, int64_t* keys, char* values, Py_ssize_t n, int64_t now
    ) except -1 nogil
    cdef int gather(
        self, const int64_t* keys, Py_ssize_t n, int64_t now, char* out
    ) except -1 nogil
    cdef bint apply(
        self, const int64_t* keys, const char* mean, Py_ssize_t n, int64_t now
    ) noexcept nogil
    cdef bint make_and_apply(
        self, int64_t* keys, char* mean, Py_ssize_t n, int64_t now
    ) except -1 nogil
    cdef bint flush(self, Py_ssize_t start, Py_ssize_t stop, int64_t now) noexcept nogil
    cdef bint _flush(self, Py_ssize_t start, Py_ssize_t stop, int64_t now) noexcept nogil
    cdef bint is_last(self, int64_t now) noexcept nogil
    cdef void expire_rows(self, Py_ssize_t start, Py_ssize_t stop, int64_t now) noexcept nogil
