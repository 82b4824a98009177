from libc.stdint cimport int64_t

cpdef enum:
    # The words of a store, see dps/server/store/store.py.
    S_VERSION = 0
    S_SNAPSHOT_0 = 1
    S_SNAPSHOT_1 = 2
    S_SNAPSHOT_2 = 3
    S_SNAPSHOT_3 = 7
    S_WRITES = 4
    S_READS = 5
    S_CLOSED = 6
    # The words of a window and of each rank, see dps/server/group/window.py.
    W_STOP = 0
    W_OPEN = 1
    W_CLOSED = 2
    W_REPORTED_EVEN = 3
    W_REPORTED_ODD = 4
    W_ANSWERED = 5
    W_TICKETS = 8
    W_TURN = 9
    W_INTERIM = 10
    W_STEP = 6
    W_TAKEN = 7
    W_COUNT = 11
    W_ARRIVED = 12
    W_DONE = 13
    W_ONE_APPLIES = 14
    R_CLAIM = 0
    R_ARRIVED = 1
    R_DONE = 2
    R_REDUCED = 3
    R_FREE = 4
    R_ENDED = 5
    R_BEAT = 6
    R_ROWS = 7
    R_WAITS = 8
    R_LEASE = 9
    R_RING = 10
    R_CLOCK = 13
    R_GIVEN = 14
    R_TICKET = 15
    R_LATE = 11
    R_LATE_ROWS = 12

# The words of a header for native functions.
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
cdef bint replace(
    const Words* words, int word, int64_t expected, int64_t value
) noexcept nogil
cdef int64_t rank_load(const Words* words, int rank, int field) noexcept nogil
cdef void rank_store(const Words* words, int rank, int field, int64_t value) noexcept nogil
cdef void rank_set(const Words* words, int rank, int field, int64_t value) noexcept nogil
cdef bint count_up(const Words* words, int word, int64_t goal) noexcept nogil
cdef bint is_ready(const Words* words, int field, int word, int64_t value) noexcept nogil
cdef int wait_for(
    const Words* words, int field, int word, int64_t value, double seconds
) noexcept nogil
