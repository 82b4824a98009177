"""Keys of sparse gradients: collected from a batch, split by slices, summed over ranks.

This module has the list of a batch's keys, with a hash table that grows with the batch, and the
form of a sparse gradient in a slot: keys and values side by side, beginning with the first rank's
slice. Sums are taken in rank order, so they have the bits of sums over dense slots.
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
    """Make room for more keys in the table, and for as many again in the list."""
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
    """A list of distinct keys below `size`, in order of occurrence.

    Memory is proportional to the number of keys, plus some MB at most for `size`.
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
        """Return the positions of keys, adding new ones."""
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
    # An id belongs to the slice of its home row.
    if key < 0:
        key = dps_home(-1 - key, n_homes)
    # Division of short numbers takes half the time.
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
    for q in range(n_ranks):  # start of each slice
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
    for q in range(n_ranks - 1, 0, -1):  # from ends to lengths
        counts[q] -= counts[q - 1]
    return none_seen(seen)


cdef bint deliver(
    const int64_t* keys, Py_ssize_t n, const floating* values, Py_ssize_t width, Py_ssize_t n_ranks,
    int64_t* slot_keys, floating* slot, int64_t* counts, Py_ssize_t each, int64_t n_homes,
) noexcept nogil:
    """Fill a slot, slice by slice of ``width`` keys; True if all values are finite.

    Values, ``each`` per key, are side by side like the keys. ``counts`` (n_ranks) gets the number
    of keys per slice, in which keys keep their order. Negative keys are ids of a table with
    ``n_homes``.
    """
    if each == 1:  # the compiler unrolls it
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
    """Compute the mean over all slots in one of their slices; return the number of keys.

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
