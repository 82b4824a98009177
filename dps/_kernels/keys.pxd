from cython cimport floating
from libc.stdint cimport int32_t, int64_t, uint64_t

cdef enum:
    DIRECT = 1 << 18  # number of possible keys up to which the table has an entry for each
    SPARSE = 4  # least number of hash table entries per used one

# The position of a key in a list if the batch is the list's; otherwise the entry is free.
cdef struct Entry:
    int32_t place
    int32_t batch

# The distinct keys of a batch in order of occurrence. A key stands for a number of elements of the
# vector, `width`, from that many times the key on. With a table (table.pyx) a negative key is the
# id -1 - key.
cdef struct Keys:
    int64_t* list
    Py_ssize_t count
    Py_ssize_t length  # capacity of the list
    Entry* table
    bint direct  # whether there is an entry for each possible key; else it is a hash table
    Py_ssize_t mask  # its length, a power of two, minus one
    int shift
    int32_t batch


cdef inline Py_ssize_t hashed(int64_t key, int shift) noexcept nogil:
    return <Py_ssize_t> ((<uint64_t> key * 11400714819323198485ULL) >> shift)


cdef inline Py_ssize_t touch(Keys* keys, int64_t key) noexcept nogil:
    # The position of a key, which is added if it is new; `need` has made room. A known key is
    # written again, since a branch would be mispredicted.
    cdef Py_ssize_t at
    cdef int32_t place = <int32_t> keys.count, fresh
    cdef Entry* entry
    if keys.direct:
        entry = &keys.table[key]
    else:
        at = hashed(key, keys.shift)
        entry = &keys.table[at]
        while entry.batch == keys.batch and keys.list[entry.place] != key:
            at = (at + 1) & keys.mask
            entry = &keys.table[at]
    fresh = entry.batch != keys.batch
    place = entry.place ^ ((entry.place ^ place) & -fresh)
    entry.place = place
    entry.batch = keys.batch
    keys.list[keys.count] = key
    keys.count += fresh
    return place


cdef inline int need(Keys* keys, Py_ssize_t more) except -1 nogil:
    # Make room for more keys.
    if (
        keys.count + more > keys.length
        or not keys.direct and SPARSE * (keys.count + more) > keys.mask
    ):
        grow(keys, more)
    return 0


cdef class KeyList:
    cdef Keys keys


cdef int grow(Keys* keys, Py_ssize_t more) except -1 nogil
cdef void next_batch(Keys* keys) noexcept nogil
cdef bint deliver(
    const int64_t* keys, Py_ssize_t n, const floating* values, Py_ssize_t width,
    Py_ssize_t n_ranks, int64_t* slot_keys, floating* slot, int64_t* counts, Py_ssize_t each,
    int64_t n_homes,
) noexcept nogil
cdef Py_ssize_t merge(
    const int64_t* keys, Py_ssize_t key_stride, const floating* slots, Py_ssize_t stride,
    const int64_t* counts, const int64_t* rows, Py_ssize_t n_slots, Py_ssize_t n_cuts,
    Py_ssize_t cut, Keys* merged, floating* sums, floating total, Py_ssize_t each,
) noexcept nogil
