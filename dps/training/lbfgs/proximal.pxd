from dps._kernels.buffer cimport Buffer
from dps.training.lbfgs.pairs cimport CurvaturePairs


cdef class ProximalStep:
    cdef CurvaturePairs pairs
    cdef object _weights        # keeps the memory alive
    cdef const double* weights  # weights of the L1 norm
    cdef double[:, ::1] steps   # products of the pairs' steps
    cdef double[:, ::1] crossed     # products of steps and changes
    cdef double[:, ::1] lower   # products of newer steps and older changes
    cdef double[:, ::1] inverse  # inverse of the compact form's middle matrix
    cdef double[::1] along      # the inverse times the pairs times the step
    cdef double[::1] across  # the same for another vector
    cdef double curvature  # curvature of the model without pairs
    cdef Py_ssize_t count  # number of coordinates that may move
    cdef Py_ssize_t width  # width of the compact form, twice the pairs
    cdef Buffer free  # the coordinates that may move
    cdef Buffer wide  # the pairs at these coordinates
    cdef Buffer turned          # times the inverse, and the curvature along the coordinate
    cdef Buffer work

    cdef double norm(self, const double* point) noexcept nogil
    cdef void take_in(self) noexcept nogil
    cdef double turn(
        self, const double* at, const double* gradient, double* out
    ) except? 1 nogil
    cdef double _turn(
        self, const double* at, const double* gradient, double* out
    ) except? 1 nogil
    cdef void _descend(
        self, const double* at, const double* gradient, double* out
    ) noexcept nogil
    cdef double _slope(self, Py_ssize_t c, double gradient, double step) noexcept nogil
    cdef int _slide(
        self, const double* at, const double* gradient, double* out
    ) except -1 nogil
    cdef Py_ssize_t _choose(
        self, const double* at, const double* gradient, double* out
    ) except -1 nogil
    cdef bint _invert(self) noexcept nogil
    cdef Py_ssize_t row(self, Py_ssize_t age) noexcept nogil
    cdef double length(self, Py_ssize_t row) noexcept nogil
    cdef bint _gather(self) except -1 nogil
