from cython cimport floating

cdef struct LossSpec:
    int kind
    double epsilon
    double width  # width of the parabola in place of a kink; 0: none
    bint gap  # whether the gap to the proven bound is summed in place of the loss


cdef class LossKernel:
    cdef LossSpec spec
    cdef readonly str name
    cdef readonly bint kinked


cdef double evaluate(
    LossSpec loss, const floating* y, Py_ssize_t y_width, const floating* raw,
    const floating* weight, floating* out, Py_ssize_t n, Py_ssize_t k,
) noexcept nogil
