from cython cimport floating
from libc.math cimport copysign, copysignf, fabs, fabsf
from libc.stdint cimport int64_t

cdef enum:
    SGD
    MOMENTUM
    ADAGRAD
    ADAM

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
    cdef readonly bint lazy     # whether coordinates without a gradient may follow later


cdef inline floating shrink(floating p, floating s, floating l1, floating l2) noexcept nogil:
    """The proximal operator of s * (l1 |p| + l2 p^2 / 2); a NaN stays NaN."""
    cdef floating size = (fabsf(p) if floating is float else fabs(p)) - s * l1
    size = 0 if size <= 0 else size
    size = copysignf(size, p) if floating is float else copysign(size, p)
    return size / (1 + s * l2)


cdef bint update(
    const UpdateSpec* spec, floating* p, const floating* g, floating* state, Py_ssize_t stride,
    Py_ssize_t n, int64_t step, double lr, double l1, double l2,
) noexcept nogil
