"""Keys of sparse gradients: collected from a batch, dealt out to slices, summed over ranks.

Owns the form of a sparse gradient in a slot: keys and values side by side, those of the first
rank's slice first. The sums are taken in rank order, and so have the bits of those over dense
slots. It must not know optimizers, or who waits for whom.
"""
from cython cimport floating
from libc.stdint cimport int32_t, int64_t, uint32_t, uintptr_t
from libc.string cimport memset

import numpy as np

from dps._kernels.checks cimport (
    DPS_DEBUG, NotFinite, indices_below, none_seen, note, same_length
)
from dps._kernels.reduce cimport divide_by

cdef enum:
    LAST = 0x7FFFFFFF


cdef void next_batch(Keys* keys) noexcept nogil:
    """Forget all keys."""
    keys.count = 0
    if keys.batch == LAST:
        memset(keys.marks, 0, keys.size * sizeof(int32_t))
        keys.batch = 0
    keys.batch += 1


cdef class KeyList:
    """A list of distinct keys below ``size``."""

    def __init__(self, Py_ssize_t size):
        marks, room = np.zeros(size, np.int32), np.empty(size + 1, np.int64)
        self._arrays = (marks, room)
        self.keys.marks = <int32_t*> <uintptr_t> marks.ctypes.data
        self.keys.list = <int64_t*> <uintptr_t> room.ctypes.data
        self.keys.size = size
        self.keys.batch = 0
        next_batch(&self.keys)

    def begin(self):
        """Begin a new batch."""
        next_batch(&self.keys)

    def array(self):
        """A copy of the keys."""
        return self._arrays[1][: self.keys.count].copy()


cdef inline Py_ssize_t _slice(int64_t key, int64_t width) noexcept nogil:
    # Short numbers are divided in half the time.
    if (key | width) >> 32 == 0:
        return <uint32_t> key / <uint32_t> width
    return key / width


cdef bint deliver(
    const int64_t* keys, Py_ssize_t n, const floating* values, bint spread, Py_ssize_t width,
    Py_ssize_t n_ranks, int64_t* slot_keys, floating* slot, int64_t* counts,
) noexcept nogil:
    """Fill a slot, slice by slice of ``width`` elements; whether all values are finite.

    Values lie side by side as the keys do, or ``spread`` over the whole vector. ``counts``
    (n_ranks) says how many are of each slice; they keep their order.
    """
    cdef NotFinite seen = NotFinite(0, 0)
    cdef Py_ssize_t i, place, q
    cdef int64_t before = 0, count
    cdef floating value
    memset(counts, 0, n_ranks * sizeof(int64_t))
    if n_ranks > 1:
        for i in range(n):
            counts[_slice(keys[i], width)] += 1
    else:
        counts[0] = n
    for q in range(n_ranks):        # where each slice begins
        count = counts[q]
        counts[q] = before
        before += count
    for i in range(n):
        q = _slice(keys[i], width) if n_ranks > 1 else 0
        place = counts[q]
        counts[q] += 1
        value = values[keys[i]] if spread else values[i]
        slot_keys[place] = keys[i]
        slot[place] = value
        note(&seen, value)
    for q in range(n_ranks - 1, 0, -1):     # from ends to lengths
        counts[q] -= counts[q - 1]
    return none_seen(seen)


cdef Py_ssize_t merge(
    const int64_t* keys, const floating* slots, Py_ssize_t stride, const int64_t* counts,
    const int64_t* rows, Py_ssize_t n_ranks, Py_ssize_t rank, Py_ssize_t start, int64_t* marks,
    int64_t* merged, floating* sums, floating total,
) noexcept nogil:
    """The mean over all ranks' slots in the slice of one rank, which begins at ``start``.

    Rows of ``keys`` and ``slots`` are ``stride`` apart; ``counts`` is (n_ranks, n_ranks).
    ``marks``, as long as the slice, is zero before and after. Returns how many keys there are.
    """
    cdef Py_ssize_t n = 0, r, q, i, first
    cdef int64_t mark
    for r in range(n_ranks):
        if rows[r] == 0:
            continue
        first = r * stride
        for q in range(rank):
            first += counts[r * n_ranks + q]
        for i in range(first, first + counts[r * n_ranks + rank]):
            mark = marks[keys[i] - start]
            if mark == 0:
                merged[n] = keys[i]
                sums[n] = slots[i]
                n += 1
                marks[keys[i] - start] = <int64_t> n
            else:
                sums[mark - 1] = sums[mark - 1] + slots[i]
    for i in range(n):
        marks[merged[i] - start] = 0
    if n and total != 1:
        divide_by(sums, total, n)
    return n


def deliver_keys(
    const int64_t[::1] keys, const floating[::1] values, Py_ssize_t width, int64_t[::1] slot_keys,
    floating[::1] slot, int64_t[::1] counts, Py_ssize_t size,
):
    cdef Py_ssize_t n = keys.shape[0]
    cdef bint finite = True
    same_length("values", values.shape[0], n)
    if n > min(size, slot_keys.shape[0], slot.shape[0]):
        raise ValueError(f"{n} keys do not fit into a slot of {slot.shape[0]}")
    if width < 1 or (size + width - 1) // width > counts.shape[0]:
        raise ValueError(f"{counts.shape[0]} slices of {width} do not cover {size} elements")
    if n:
        indices_below("keys", <const int*> &keys[0], n, size)
    with nogil:
        if n:
            finite = deliver(
                &keys[0], n, &values[0], False, width, counts.shape[0], &slot_keys[0], &slot[0],
                &counts[0],
            )
        else:
            memset(&counts[0], 0, counts.shape[0] * sizeof(int64_t))
    return finite


def merge_keys(
    const int64_t[:, ::1] keys, const floating[:, ::1] slots, const int64_t[:, ::1] counts,
    const int64_t[::1] rows, Py_ssize_t rank, Py_ssize_t start, int64_t[::1] marks,
    int64_t[::1] merged, floating[::1] sums, double total,
):
    cdef Py_ssize_t n, n_ranks = rows.shape[0], r, i, first
    for length in (keys.shape[0], slots.shape[0], counts.shape[0], counts.shape[1]):
        same_length("ranks", length, n_ranks)
    same_length("keys", keys.shape[1], slots.shape[1])
    same_length("merged", merged.shape[0], marks.shape[0])
    same_length("sums", sums.shape[0], marks.shape[0])
    if marks.shape[0] == 0:
        return 0
    if DPS_DEBUG:
        for r in range(n_ranks):
            first = sum(counts[r, :rank])
            for i in range(first, first + counts[r, rank]):
                if not start <= keys[r, i] < start + marks.shape[0]:
                    raise IndexError(f"key {keys[r, i]} is outside of the slice of rank {rank}")
    with nogil:
        n = merge(
            &keys[0, 0], &slots[0, 0], slots.shape[1], &counts[0, 0], &rows[0], n_ranks, rank,
            start, &marks[0], &merged[0], &sums[0], <floating> total,
        )
    return n
