"""The functions for one floating type, for code that only moves vectors.

The choice between float32 and float64 is made once.
"""
from cython cimport floating
from libc.stdint cimport int64_t
from libc.string cimport memcpy

from dps._kernels.bfloat16 cimport add_widened, narrow, narrow_change, widen
from dps._kernels.keys cimport Keys, deliver, merge
from dps._kernels.reduce cimport add, copy_checked, divide_by, is_finite, sum_slots


cdef void _divide(floating* x, double by, Py_ssize_t n) noexcept nogil:
    divide_by(x, <floating> by, n)


cdef bint _sum_slots(
    const floating* slots, Py_ssize_t stride, const int64_t* rows, Py_ssize_t n_ranks,
    floating* out, Py_ssize_t n, double by,
) noexcept nogil:
    return sum_slots(slots, stride, rows, n_ranks, out, n, <floating> by)


cdef Py_ssize_t _merge(
    const int64_t* keys, Py_ssize_t key_stride, const floating* slots, Py_ssize_t stride,
    const int64_t* counts, const int64_t* rows, Py_ssize_t n_slots, Py_ssize_t n_cuts,
    Py_ssize_t cut, Keys* merged, floating* sums, double total, Py_ssize_t each,
) noexcept nogil:
    return merge(
        keys, key_stride, slots, stride, counts, rows, n_slots, n_cuts, cut, merged, sums,
        <floating> total, each,
    )


cdef void _pick(
    floating* out, const floating* x, const int64_t* at, Py_ssize_t n, Py_ssize_t each
) noexcept nogil:
    cdef Py_ssize_t i
    if each == 1:
        for i in range(n):
            out[i] = x[at[i]]
    else:
        for i in range(n):
            memcpy(out + i * each, x + at[i] * each, each * sizeof(floating))


cdef void _scatter(
    floating* out, const floating* x, const int64_t* at, Py_ssize_t n, Py_ssize_t each
) noexcept nogil:
    cdef Py_ssize_t i
    if each == 1:
        for i in range(n):
            out[at[i]] = x[i]
    else:
        for i in range(n):
            memcpy(out + at[i] * each, x + i * each, each * sizeof(floating))


cdef void _choose(TypedOps* made, floating zero) noexcept:
    """Set the functions for the type of ``zero``."""
    made.itemsize = sizeof(floating)
    made.copy_checked = <CopyChecked> copy_checked[floating]
    made.is_finite = <IsFinite> is_finite[floating]
    made.add = <Add> add[floating]
    made.divide = <Divide> _divide[floating]
    made.sum_slots = <SumSlots> _sum_slots[floating]
    made.deliver = <Deliver> deliver[floating]
    made.merge = <Merge> _merge[floating]
    made.pick = <Pick> _pick[floating]
    made.scatter = <Pick> _scatter[floating]
    made.narrow = <Narrow> narrow[floating]
    made.narrow_change = <Narrow> narrow_change[floating]
    made.widen = <Widen> widen[floating]
    made.add_widened = <Widen> add_widened[floating]


cdef TypedOps typed_ops(bint single) noexcept:
    """Return the functions for float32 or float64."""
    cdef TypedOps made
    made.single = single
    if single:
        _choose(&made, <float> 0)
    else:
        _choose(&made, <double> 0)
    return made
