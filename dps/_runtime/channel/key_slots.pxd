from libc.stdint cimport int64_t

from dps._kernels.buffer cimport Buffer
from dps._kernels.keys cimport KeyList
from dps._kernels.typed_ops cimport TypedOps
from dps._runtime.channel.base cimport Picks


cdef class KeySlots:
    cdef TypedOps numbers
    cdef int n_cuts  # slices into which a slot's keys are cut
    cdef Py_ssize_t width  # elements per key
    cdef Py_ssize_t slice_keys  # keys per slice
    cdef int64_t* keys  # keys of all slots
    cdef Py_ssize_t stride
    cdef int64_t* counts            # (n_slots, n_cuts)
    cdef int64_t* total_keys
    cdef int64_t* total_counts
    cdef KeyList merged
    cdef Buffer sums                # at the merged keys
    cdef object _window             # keeps the memory alive

    cdef int64_t* of_slot(self, int slot) noexcept nogil
    cdef bint fill(
        self, int slot, const Picks* picks, const char* values, int n_cuts, char* at,
        Py_ssize_t n_homes,
    ) noexcept nogil
    cdef void copy(self, int to, int slot, Py_ssize_t n) noexcept nogil
    cdef Py_ssize_t merge(
        self, const char* slots, Py_ssize_t slot_stride, const int64_t* rows, int n_slots,
        int place, double divisor,
    ) except -1 nogil
    cdef void lay_out(self, int place, Py_ssize_t start, Py_ssize_t n, char* total) noexcept nogil
