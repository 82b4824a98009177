from dps.training.lbfgs.pairs cimport CurvaturePairs
from dps.training.lbfgs.proximal cimport ProximalStep


cdef class LBFGS:
    cdef readonly bint converged
    cdef readonly bint extending
    cdef readonly Py_ssize_t size
    cdef CurvaturePairs pairs
    cdef ProximalStep proximal  # or None
    cdef object _vectors        # keeps the memory alive
    cdef double* next  # the point of the next evaluation
    cdef double* optimum        # the best point so far
    cdef double* gradient  # its gradient
    cdef double* direction
    cdef double value  # value at the best point
    cdef double tolerance
    cdef double relative
    cdef double precision
    cdef double slope
    cdef double step
    cdef int trials
    cdef bint begun  # whether there is a value

    cdef void restart(self) noexcept nogil
    cdef int take(self, double value, const double* gradient) except -1 nogil
    cdef bint _decreased(self, double value) noexcept nogil
    cdef void _shorten(self, double value) noexcept nogil
    cdef int _turn(self, double gain) except -1 nogil
    cdef double worthwhile(self) noexcept nogil
    cdef void _go(self) noexcept nogil
