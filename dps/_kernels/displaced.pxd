cdef void displaced(
    bint single, const char* old, const char* new, double rows, char* out, Py_ssize_t n
) noexcept nogil
cdef void multiplied(
    bint single, const char* x, double by, char* out, Py_ssize_t n
) noexcept nogil
