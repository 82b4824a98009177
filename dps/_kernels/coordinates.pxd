cdef class Coordinates:
    cdef readonly Py_ssize_t size

    cdef void to_params(self, const double* point, double* out) noexcept nogil
    cdef void to_point(self, const double* params, double* out) noexcept nogil
    cdef void to_gradient(self, const double* gradient, double* out) noexcept nogil


cdef class Standardised(Coordinates):
    cdef readonly object mean
    cdef readonly object scale
    cdef const double* _mean
    cdef const double* _scale
    cdef const double* _mix
    cdef const double* _unmix
    cdef double* _room
    cdef object _arrays
    cdef double scale_0
    cdef Py_ssize_t n_features
    cdef Py_ssize_t n_outputs
    cdef bint intercept

    cdef void _shift(self, const double* coef, double* out) noexcept nogil
    cdef void _mixed(self, const double* by, const double* x, double* out) noexcept nogil
