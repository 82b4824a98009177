from cython cimport floating
from libc.stdint cimport int64_t

cdef struct UpdateSpec:
    int kind
    bint nesterov
    double momentum
    double beta1
    double beta2
    double epsilon
    int state_rows          # without the running mean
    int64_t averaged_from   # updates left out of the running mean; below 0 there is none


cdef class UpdateKernel:
    cdef UpdateSpec spec
    cdef readonly str name


cdef bint update(
    const UpdateSpec* spec, floating* p, const floating* g, floating* state, Py_ssize_t stride,
    Py_ssize_t n, int64_t step, double lr, double l1, double l2,
) noexcept nogil
