from libc.stdint cimport int64_t

# The words of a header, as functions without the interpreter take them.
cdef struct Words:
    int64_t* base
    int n_ranks
    int n_global
    int n_fields
    int stop


cdef class Header:
    cdef Words words
    cdef int64_t[::1] _memory
    cdef int _check(self, int word) except -1
    cdef int _check_rank(self, int rank, int field) except -1


cdef int64_t load(const Words* words, int word) noexcept nogil
cdef void store(const Words* words, int word, int64_t value) noexcept nogil
cdef int64_t add(const Words* words, int word, int64_t value) noexcept nogil
cdef int64_t rank_load(const Words* words, int rank, int field) noexcept nogil
cdef void rank_store(const Words* words, int rank, int field, int64_t value) noexcept nogil
cdef bint is_ready(const Words* words, int field, int word, int64_t value) noexcept nogil
cdef int wait_for(
    const Words* words, int field, int word, int64_t value, double seconds
) noexcept nogil
