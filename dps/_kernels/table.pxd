from libc.stdint cimport int32_t, int64_t, uint64_t

cpdef enum:
    # Values of `ids` without a row.
    FREE = 0
    LEFT = -1  # it had a row; other rows may follow
    MAKING = -2  # minus the id whose row is being created
    # The row of an id without a row.
    NOWHERE = -1
    FULL = -2
    NOT_YET = -3  # it has been seen too seldom

cdef extern from "table.h" nogil:
    int64_t dps_home(int64_t id, int64_t n)
    int64_t dps_owner(int64_t id, int64_t n)

# The rows of a shard's part of a table, which are the first of its vectors. An id has a home, one
# of the rows, and lies there or behind it, in the same region: of each region one rank has charge.
cdef struct Table:
    Py_ssize_t n_rows  # 0: no table
    Py_ssize_t n_homes  # rows that are homes: all except those of a short last region
    Py_ssize_t region  # rows per region
    int64_t* ids  # (n_rows,) id + 1 of the row, or one of the above
    int32_t* counts  # (n_rows,) pushes of ids with that home that have no row; or NULL
    int64_t* seen  # (n_rows,) last update; or NULL
    int64_t* since  # (n_rows,) update up to which a row is up to date, see lazy.pyx
    int32_t min_count
    Py_ssize_t width
    Py_ssize_t zeros  # elements of a new row that are zero, before the random ones
    double scale  # scale of the others
    bint normal  # whether these are normally distributed, not uniformly
    uint64_t seed
    Py_ssize_t state_rows
    const double* start  # (state_rows,) optimizer state of a new row
    bint single
    Py_ssize_t size  # size of the shard's vectors
    char* params            # (size,)
    char* state             # (state_rows, size)


cdef class TableRows:
    cdef Table table
    cdef tuple _arrays      # keeps the memory alive


cdef int64_t find(const Table* table, int64_t id) noexcept nogil
cdef int64_t make(const Table* table, int64_t id, int64_t now) noexcept nogil
cdef void draw(const Table* table, int64_t id, void* out) noexcept nogil
cdef void expire(
    const Table* table, Py_ssize_t first, Py_ssize_t last, int64_t before
) noexcept nogil
