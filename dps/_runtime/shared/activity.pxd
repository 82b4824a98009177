from libc.stdint cimport int64_t

cpdef enum:
    # Words of a row; activity.pyx says what they mean and who writes them.
    PUSHES = 0
    BYTES = 1
    APPLY = 2
    EPOCH = 3
    STEPS = 4
    ROWS = 5
    EPOCH_ROWS = 6
    LOSS = 7
    LOAD = 8
    COMPUTE = 9
    PULL = 10
    PUSH = 11
    WAIT = 12
    STALE_SUM = 13
    STALE_MAX = 14
    LEAD_MAX = 15
    STALENESS = 16
    BUCKETS = 32
    WIDTH = STALENESS + BUCKETS


cdef class Activity:
    cdef readonly bint timed
    cdef readonly list rows  # NumPy arrays; they keep the memory alive
    cdef int64_t** _rows
    cdef int64_t* _row  # row of the first shard
    cdef int _n
    cdef int64_t _mark
    cdef int _skip  # steps without reading a clock
    cdef int64_t _part[5]  # times of the last timed step, from LOAD on

    cdef int64_t wait_begins(self) noexcept nogil
    cdef void wait_ends(self, int64_t began, int64_t known) noexcept nogil
    cdef int64_t waited_so_far(self) noexcept nogil
    cdef void waited_afar(self, int64_t nanoseconds) noexcept nogil
    cdef void rest(self) noexcept nogil
    cdef void step_ends(self) noexcept nogil
    cdef void flush(self) noexcept nogil
    cdef void _share(self) noexcept nogil
    cdef void spend(self, int phase, int shard) noexcept nogil
    cdef void push(self, int shard, int64_t nbytes) noexcept nogil
    cdef void step(self, int64_t rows, int64_t epoch_rows, double loss) noexcept nogil
    cdef void age(self, int shard, int64_t staleness) noexcept nogil
    cdef void lead(self, int shard, int64_t steps) noexcept nogil
