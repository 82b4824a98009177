from cython cimport floating


cdef void compensate(
    floating* grad, const floating* now, const floating* pulled, Py_ssize_t n, double strength
) noexcept nogil
