"""Gradients by keys: each slot's keys, cut by the ranks' slices, and sums over slots.

A slot's values are in the window's slots, in the order of its keys. Each rank merges the part in
its own slice. The channel defines the order in which ranks write (mapped.pyx).
"""
from libc.stdint cimport int64_t, uintptr_t
from libc.string cimport memcpy

from dps._kernels.buffer cimport Buffer
from dps._kernels.keys cimport KeyList, need, next_batch
from dps._kernels.typed_ops cimport typed_ops
from dps._runtime.channel.base cimport Picks


cdef class KeySlots:
    """The keys of a window's slots.

    window: whose store has keys.
    """

    def __init__(self, window):
        self._window = window
        self.numbers = typed_ops(window.spec.dtype == "float32")
        self.n_cuts, self.width = len(window.spec.active), window.store.spec.key_width
        self.slice_keys = window.slice_width // self.width
        self.keys = <int64_t*> <uintptr_t> window.keys.ctypes.data
        self.stride = window.keys.shape[1]
        self.counts = <int64_t*> <uintptr_t> window.key_counts.ctypes.data
        self.total_keys = <int64_t*> <uintptr_t> window.total_keys.ctypes.data
        self.total_counts = <int64_t*> <uintptr_t> window.total_counts.ctypes.data
        self.merged, self.sums = KeyList(window.store.n_keys), Buffer()

    cdef int64_t* of_slot(self, int slot) noexcept nogil:
        """Return the keys of a slot."""
        return self.keys + slot * self.stride

    cdef bint fill(
        self, int slot, const Picks* picks, const char* values, int n_cuts, char* at,
        Py_ssize_t n_homes,
    ) noexcept nogil:
        """Put keys and their values in a slot, cut by slices; True if all values are finite."""
        return self.numbers.deliver(
            picks.keys, picks.n, values, self.slice_keys, n_cuts, self.of_slot(slot), at,
            self.counts + slot * self.n_cuts, self.width, n_homes,
        )

    cdef void copy(self, int to, int slot, Py_ssize_t n) noexcept nogil:
        """Copy the n keys of a slot with one slice to another slot."""
        self.counts[to * self.n_cuts] = self.counts[slot * self.n_cuts]
        memcpy(self.of_slot(to), self.of_slot(slot), n * sizeof(int64_t))

    cdef Py_ssize_t merge(
        self, const char* slots, Py_ssize_t slot_stride, const int64_t* rows, int n_slots,
        int place, double divisor,
    ) except -1 nogil:
        """Sum one slice of the slots with rows; return the number of keys."""
        cdef Py_ssize_t most = 0
        cdef int slot
        for slot in range(n_slots):
            if rows[slot]:
                most += self.counts[slot * self.n_cuts + place]
        next_batch(&self.merged.keys)
        need(&self.merged.keys, most)
        return self.numbers.merge(
            self.keys, self.stride, slots, slot_stride, self.counts, rows, n_slots, self.n_cuts,
            place, &self.merged.keys,
            self.sums.fit(most * self.width * self.numbers.itemsize), max(divisor, 1.0), self.width,
        )

    cdef void lay_out(self, int place, Py_ssize_t start, Py_ssize_t n, char* total) noexcept nogil:
        """Put the n merged keys of a slice, and their values, where all ranks read them."""
        cdef Py_ssize_t first = start // self.width, each = self.width * self.numbers.itemsize
        memcpy(self.total_keys + first, self.merged.keys.list, n * sizeof(int64_t))
        memcpy(total + first * each, self.sums.at, n * each)
        self.total_counts[place] = n
