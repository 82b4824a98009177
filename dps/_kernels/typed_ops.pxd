from libc.stdint cimport int64_t, uint16_t

from dps._kernels.keys cimport Keys

# Operations on vectors of one type, as untyped function pointers that are chosen once. Each is the
# function of the same name in reduce.pyx, keys.pyx, bfloat16.pyx or below.
ctypedef bint (*CopyChecked)(void* out, const void* x, Py_ssize_t n) noexcept nogil
ctypedef bint (*IsFinite)(const void* x, Py_ssize_t n) noexcept nogil
ctypedef void (*Add)(void* out, const void* x, Py_ssize_t n) noexcept nogil
ctypedef void (*Divide)(void* x, double by, Py_ssize_t n) noexcept nogil
ctypedef bint (*SumSlots)(
    const void* slots, Py_ssize_t stride, const int64_t* rows, Py_ssize_t n_ranks, void* out,
    Py_ssize_t n, double by,
) noexcept nogil
ctypedef bint (*Deliver)(
    const int64_t* keys, Py_ssize_t n, const void* values, Py_ssize_t width, Py_ssize_t n_ranks,
    int64_t* slot_keys, void* slot, int64_t* counts, Py_ssize_t each, int64_t n_homes,
) noexcept nogil
ctypedef Py_ssize_t (*Merge)(
    const int64_t* keys, Py_ssize_t key_stride, const void* slots, Py_ssize_t stride,
    const int64_t* counts, const int64_t* rows, Py_ssize_t n_slots, Py_ssize_t n_cuts,
    Py_ssize_t cut, Keys* merged, void* sums, double total, Py_ssize_t each,
) noexcept nogil
ctypedef void (*Pick)(
    void* out, const void* x, const int64_t* at, Py_ssize_t n, Py_ssize_t each
) noexcept nogil
ctypedef void (*Narrow)(
    uint16_t* out, const void* x, void* remembered, Py_ssize_t n
) noexcept nogil
ctypedef void (*Widen)(void* out, const uint16_t* x, Py_ssize_t n) noexcept nogil

cdef struct TypedOps:
    Py_ssize_t itemsize
    bint single             # float32, else float64
    CopyChecked copy_checked
    IsFinite is_finite
    Add add                 # out += x
    Divide divide
    SumSlots sum_slots
    Deliver deliver
    Merge merge
    Pick pick               # out[i] = x[at[i]], rows of `each` elements
    Pick scatter            # out[at[i]] = x[i]
    Narrow narrow
    Narrow narrow_change
    Widen widen
    Widen add_widened

cdef TypedOps typed_ops(bint single) noexcept
