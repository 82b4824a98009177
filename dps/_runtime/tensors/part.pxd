from libc.stdint cimport int64_t

from dps._kernels.table cimport Table
from dps._kernels.typed_ops cimport TypedOps
from dps._runtime.wire.message cimport Answer, Request
from dps._runtime.tensors.mirror cimport LastWrites, MirrorLink
from dps._runtime.updates cimport BoundUpdate
from dps._runtime.shared.words cimport Words

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass

cdef class TensorPart:
    cdef pthread_mutex_t mutex
    cdef Words words
    cdef TypedOps numbers
    cdef Table table  # no rows: the part belongs to a tensor
    cdef BoundUpdate update
    cdef double rate
    cdef double max_wait  # seconds that a function may take
    cdef char* params
    cdef char* state
    cdef Py_ssize_t size
    cdef Py_ssize_t width  # elements per key
    cdef Py_ssize_t n_keys
    cdef Py_ssize_t state_rows
    cdef Py_ssize_t room  # least number of free rows of the table
    cdef object store           # keeps the memory alive
    cdef public bint leads  # whether callers use it
    cdef MirrorLink link  # None without a mirror
    cdef LastWrites last  # last writes of callers

    cdef bint hold(self) except -1 nogil
    cdef void let_go(self) noexcept nogil
    cdef bint fits(self, const Request* request, const int64_t* keys) noexcept nogil
    cdef int run(
        self, const Request* request, int64_t* keys, char* values, char* back, Answer* answer
    ) except -1 nogil
    cdef int serve(
        self, const Request* request, int64_t* keys, char* values, char* back, Answer* answer
    ) except -1 nogil
    cdef int write_both(self, const Request* request, int64_t* keys, char* values) except -1 nogil
    cdef _do(self, int64_t op, int64_t start, keys, values, double weight, out, bint held)
    cdef int have_room(self, const int64_t* keys, Py_ssize_t n) except -1 nogil
    cdef int write(self, const Request* request, int64_t* keys, char* values) except -1 nogil
    cdef int fill(
        self, const Request* request, const int64_t* keys, const char* values
    ) except -1 nogil
    cdef bint change(
        self, int64_t op, char* at, const char* values, Py_ssize_t n, Py_ssize_t first,
        int64_t step
    ) except -1 nogil
    cdef bint look(self, const Request* request, const int64_t* keys, char* out) noexcept nogil
    cdef void copy(self, const Request* request, const int64_t* keys, char* out) noexcept nogil
