from libc.stdint cimport int64_t

from dps._runtime.wire.message cimport Answer, Caller, Request

cdef enum:
    ENTRIES = 1 << 20  # largest number of callers whose last writes are noted

cdef struct LastWrite:
    int64_t caller
    int64_t number
    int64_t status


cdef class LastWrites:
    cdef LastWrite* list
    cdef readonly Py_ssize_t n

    cdef int have(self, Py_ssize_t n) except -1 nogil
    cdef void note(self, const Request* request, int64_t status) noexcept nogil
    cdef bint find(self, const Request* request, Answer* answer) noexcept nogil


cdef class MirrorLink:
    cdef Caller mirror
    cdef int64_t number  # number of the part
    cdef object mend
    cdef bint behind  # whether the mirror may lack a write
    cdef public bint torn  # whether the part is being copied to the mirror

    cdef int catch_up(self, bint written) except -1 with gil
    cdef bint pass_on(
        self, const Request* request, const int64_t* keys, const char* values,
        Py_ssize_t nbytes_of_key, Py_ssize_t itemsize
    ) noexcept nogil
    cdef bint confirm(self, int status) noexcept nogil
