"""Keys of sparse gradients: collected from a batch, dealt out to slices, summed over ranks.

Owns the list of the keys of a batch, a hash table that is as large as the batch makes it, and the
form of a sparse gradient in a slot: keys and values side by side, those of the first rank's slice
first. The sums are taken in rank order, and so have the bits of those over dense slots.
"""
from cython cimport floating
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

import numpy as np

from dps._kernels.checks cimport NotFinite, none_seen, note
from dps._kernels.reduce cimport divide_by
from dps._kernels.table cimport dps_home

cdef enum:
    LAST = 0x7FFFFFFF


cdef void next_batch(Keys* keys) noexcept nogil:
    """Forget all keys."""
    keys.count = 0
    if keys.batch == LAST:
        memset(keys.table, 0, (keys.mask + 1) * sizeof(Entry))
        keys.batch = 0
    keys.batch += 1


cdef int grow(Keys* keys, Py_ssize_t more) except -1 nogil:
    """Have room for so many keys more, and as much again in the list."""
    cdef Py_ssize_t entries = keys.mask + 1, length = 2 * (keys.count + more) + 1, place, at
    cdef int64_t* list = <int64_t*> realloc(keys.list, length * sizeof(int64_t))
    cdef Entry* table
    cdef int shift = keys.shift
    if list is not NULL:
        keys.list, keys.length = list, length
    if list is NULL or keys.count + more >= LAST:
        with gil:
            raise MemoryError(f"{keys.count + more} keys of a batch")
    if keys.direct:
        return 0
    while entries <= SPARSE * (keys.count + more):
        entries *= 2
        shift -= 1
    table = <Entry*> calloc(entries, sizeof(Entry))
    if table is NULL:
        with gil:
            raise MemoryError(f"{keys.count + more} keys of a batch")
    for place in range(keys.count):
        at = hashed(keys.list[place], shift)
        while table[at].batch == keys.batch:
            at = (at + 1) & (entries - 1)
        table[at] = Entry(<int32_t> place, keys.batch)
    free(keys.table)
    keys.table, keys.mask, keys.shift = table, entries - 1, shift
    return 0


cdef class KeyList:
    """A list of distinct keys below `size`, in the order in which they come.

    Memory is for as many as there are, and some MB at the most for what is below `size`.
    """

    def __cinit__(self, Py_ssize_t size, *args):
        self.keys.batch = 1
        self.keys.direct = size <= DIRECT
        self.keys.mask, self.keys.shift = 1, 63
        if self.keys.direct:
            self.keys.mask = size
            self.keys.table = <Entry*> calloc(size + 1, sizeof(Entry))
            if self.keys.table is NULL:
                raise MemoryError
        grow(&self.keys, 31)

    def __dealloc__(self):
        free(self.keys.table)
        free(self.keys.list)

    def begin(self):
        """Begin a new batch."""
        next_batch(&self.keys)

    def add(self, keys):
        """Places of these keys."""
        cdef int64_t key
        places = []
        for key in keys:
            if self.keys.direct and not 0 <= key < self.keys.mask:
                raise IndexError(f"key {key} is not in the vector")
            need(&self.keys, 1)
            places.append(touch(&self.keys, key))
        return places

    def array(self):
        """A copy of the keys."""
        return np.array([self.keys.list[i] for i in range(self.keys.count)], np.int64)


cdef inline Py_ssize_t _slice(int64_t key, int64_t width, int64_t n_homes) noexcept nogil:
    # An id lies somewhere in the slice of its home.
    if key < 0:
        key = dps_home(-1 - key, n_homes)
    # Short numbers are divided in half the time.
    if (key | width) >> 32 == 0:
        return <uint32_t> key / <uint32_t> width
    return key / width


cdef inline bint _deliver(
    const int64_t* keys, Py_ssize_t n, const floating* values, Py_ssize_t width, Py_ssize_t n_ranks,
    int64_t* slot_keys, floating* slot, int64_t* counts, Py_ssize_t each, int64_t n_homes,
) noexcept nogil:
    cdef NotFinite seen = NotFinite(0, 0)
    cdef Py_ssize_t i, c, place, q
    cdef int64_t before = 0, count
    cdef floating value
    memset(counts, 0, n_ranks * sizeof(int64_t))
    if n_ranks > 1:
        for i in range(n):
            counts[_slice(keys[i], width, n_homes)] += 1
    else:
        counts[0] = n
    for q in range(n_ranks):        # where each slice begins
        count = counts[q]
        counts[q] = before
        before += count
    for i in range(n):
        q = _slice(keys[i], width, n_homes) if n_ranks > 1 else 0
        place = counts[q]
        counts[q] += 1
        slot_keys[place] = keys[i]
        for c in range(each):
            value = values[i * each + c]
            slot[place * each + c] = value
            note(&seen, value)
    for q in range(n_ranks - 1, 0, -1):     # from ends to lengths
        counts[q] -= counts[q - 1]
    return none_seen(seen)


cdef bint deliver(
    const int64_t* keys, Py_ssize_t n, const floating* values, Py_ssize_t width, Py_ssize_t n_ranks,
    int64_t* slot_keys, floating* slot, int64_t* counts, Py_ssize_t each, int64_t n_homes,
) noexcept nogil:
    """Fill a slot, slice by slice of ``width`` keys; whether all values are finite.

    Values, ``each`` of a key, lie side by side as the keys do. ``counts`` (n_ranks) says how many
    keys are of each slice; they keep their order. Keys below 0 are ids of a table with ``n_homes``.
    """
    if each == 1:   # the compiler's to unroll
        return _deliver(keys, n, values, width, n_ranks, slot_keys, slot, counts, 1, n_homes)
    return _deliver(keys, n, values, width, n_ranks, slot_keys, slot, counts, each, n_homes)


cdef inline Py_ssize_t _merge(
    const int64_t* keys, Py_ssize_t key_stride, const floating* slots, Py_ssize_t stride,
    const int64_t* counts, const int64_t* rows, Py_ssize_t n_slots, Py_ssize_t n_cuts,
    Py_ssize_t cut, Keys* merged, floating* sums, Py_ssize_t each,
) noexcept nogil:
    cdef Py_ssize_t n = 0, r, q, i, c, first, place
    cdef const floating* values
    for r in range(n_slots):
        if rows[r] == 0:
            continue
        first = 0
        for q in range(cut):
            first += counts[r * n_cuts + q]
        values = slots + r * stride
        for i in range(first, first + counts[r * n_cuts + cut]):
            place = touch(merged, keys[r * key_stride + i])
            if place == n:
                for c in range(each):
                    sums[n * each + c] = values[i * each + c]
                n += 1
            else:
                for c in range(each):
                    sums[place * each + c] = sums[place * each + c] + values[i * each + c]
    return n


cdef Py_ssize_t merge(
    const int64_t* keys, Py_ssize_t key_stride, const floating* slots, Py_ssize_t stride,
    const int64_t* counts, const int64_t* rows, Py_ssize_t n_slots, Py_ssize_t n_cuts,
    Py_ssize_t cut, Keys* merged, floating* sums, floating total, Py_ssize_t each,
) noexcept nogil:
    """The mean over all slots in one of their slices; how many keys there are.

    Rows of ``keys`` are ``key_stride`` apart, those of ``slots`` ``stride``; ``counts`` is
    (n_slots, n_cuts). There are ``each`` values of a key. In ``merged``, which is empty, and
    ``sums`` there is room for all of them.
    """
    cdef Py_ssize_t n
    if each == 1:
        n = _merge(
            keys, key_stride, slots, stride, counts, rows, n_slots, n_cuts, cut, merged, sums, 1
        )
    else:
        n = _merge(
            keys, key_stride, slots, stride, counts, rows, n_slots, n_cuts, cut, merged, sums, each
        )
    if n and total != 1:
        divide_by(sums, total, n * each)
    return n
