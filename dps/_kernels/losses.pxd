from cython cimport floating

cdef struct LossSpec:
    int kind
    double epsilon


cdef class LossKernel:
    cdef LossSpec spec
    cdef readonly str name


cdef double evaluate(
    LossSpec loss, const floating* y, Py_ssize_t y_width, const floating* raw,
    const floating* weight, floating* out, Py_ssize_t n, Py_ssize_t k,
) noexcept nogil
