cdef class CurvaturePairs:
    cdef double[:, ::1] steps
    cdef double[:, ::1] changes
    cdef double[::1] curvatures     # step . change
    cdef double[::1] weights
    cdef Py_ssize_t size
    cdef Py_ssize_t rows
    cdef Py_ssize_t kept
    cdef Py_ssize_t following  # row of the next pair
    cdef double scale               # the inverse curvature along the last step
    cdef double cosine

    cdef bint keep(
        self, const double* start, const double* end, const double* before, const double* after
    ) noexcept nogil
    cdef double turn(self, const double* gradient, double* out) noexcept nogil
