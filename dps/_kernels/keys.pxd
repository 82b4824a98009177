from cython cimport floating
from libc.stdint cimport int32_t, int64_t

# The elements of the parameter vector that a batch touches, each once, as they come.
cdef struct Keys:
    int64_t* list
    Py_ssize_t count
    int32_t* marks          # of each element the batch that touched it last
    int32_t batch
    Py_ssize_t size


cdef inline Py_ssize_t touch(Keys* keys, Py_ssize_t count, int64_t key) noexcept nogil:
    # How many there are then. Written in any case, so that there is no branch to guess wrong.
    cdef int32_t seen = keys.marks[key]
    keys.list[count] = key
    keys.marks[key] = keys.batch
    return count + (seen != keys.batch)


cdef class KeyList:
    cdef Keys keys
    cdef tuple _arrays


cdef void next_batch(Keys* keys) noexcept nogil
cdef bint deliver(
    const int64_t* keys, Py_ssize_t n, const floating* values, bint spread, Py_ssize_t width,
    Py_ssize_t n_ranks, int64_t* slot_keys, floating* slot, int64_t* counts,
) noexcept nogil
cdef Py_ssize_t merge(
    const int64_t* keys, const floating* slots, Py_ssize_t stride, const int64_t* counts,
    const int64_t* rows, Py_ssize_t n_ranks, Py_ssize_t rank, Py_ssize_t start, int64_t* marks,
    int64_t* merged, floating* sums, floating total,
) noexcept nogil
