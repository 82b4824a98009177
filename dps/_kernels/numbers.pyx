"""The functions of one type of number, for code that moves vectors without looking into them.

Owns nothing but the choice between float32 and float64, which is made once. It must not know what
the vectors are.
"""
from cython cimport floating
from libc.stdint cimport int32_t, int64_t

from dps._kernels.keys cimport deliver, merge
from dps._kernels.reduce cimport copy_checked, divide_by, is_finite, sum_slots


cdef void _divide(floating* x, double by, Py_ssize_t n) noexcept nogil:
    divide_by(x, <floating> by, n)


cdef bint _sum_slots(
    const floating* slots, Py_ssize_t stride, const int64_t* rows, Py_ssize_t n_ranks,
    floating* out, Py_ssize_t n, double by,
) noexcept nogil:
    return sum_slots(slots, stride, rows, n_ranks, out, n, <floating> by)


cdef Py_ssize_t _merge(
    const int32_t* keys, const floating* slots, Py_ssize_t stride, const int64_t* counts,
    const int64_t* rows, Py_ssize_t n_ranks, Py_ssize_t rank, Py_ssize_t start, int32_t* marks,
    int32_t* merged, floating* sums, double total,
) noexcept nogil:
    return merge(
        keys, slots, stride, counts, rows, n_ranks, rank, start, marks, merged, sums,
        <floating> total,
    )


cdef void _pick(
    floating* out, const floating* x, const int32_t* at, Py_ssize_t n
) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        out[i] = x[at[i]]


cdef void _scatter(
    floating* out, const floating* x, const int32_t* at, Py_ssize_t n
) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        out[at[i]] = x[i]


cdef void _clear(floating* x, const int32_t* at, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        x[at[i]] = 0


cdef Numbers numbers_of(bint single) noexcept:
    """The functions of float32, or of float64."""
    cdef Numbers made
    made.single = single
    made.itemsize = 4 if single else 8
    if single:
        made.copy_checked = <CopyChecked> copy_checked[float]
        made.is_finite = <IsFinite> is_finite[float]
        made.divide = <Divide> _divide[float]
        made.sum_slots = <SumSlots> _sum_slots[float]
        made.deliver = <Deliver> deliver[float]
        made.merge = <Merge> _merge[float]
        made.pick = <Pick> _pick[float]
        made.scatter = <Pick> _scatter[float]
        made.clear = <Clear> _clear[float]
    else:
        made.copy_checked = <CopyChecked> copy_checked[double]
        made.is_finite = <IsFinite> is_finite[double]
        made.divide = <Divide> _divide[double]
        made.sum_slots = <SumSlots> _sum_slots[double]
        made.deliver = <Deliver> deliver[double]
        made.merge = <Merge> _merge[double]
        made.pick = <Pick> _pick[double]
        made.scatter = <Pick> _scatter[double]
        made.clear = <Clear> _clear[double]
    return made
