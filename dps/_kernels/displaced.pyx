"""The gradient of local steps: the displacement of a vector, times the number of its rows.

Of parameters that have gone from ``old`` to ``new`` over some rows it is ``rows * (old - new)``, so
that the sum over ranks over the sum of rows is the outer gradient; of a vector of the optimizer's
state it is a multiple of it.
"""
from cython cimport floating


cdef void _displaced(
    const floating* old, const floating* new, floating rows, floating* out, Py_ssize_t n
) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        out[i] = rows * (old[i] - new[i])


cdef void _multiplied(const floating* x, floating by, floating* out, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        out[i] = by * x[i]


cdef void displaced(
    bint single, const char* old, const char* new, double rows, char* out, Py_ssize_t n
) noexcept nogil:
    """out = rows * (old - new)"""
    if single:
        _displaced(<const float*> old, <const float*> new, <float> rows, <float*> out, n)
    else:
        _displaced(<const double*> old, <const double*> new, rows, <double*> out, n)


cdef void multiplied(
    bint single, const char* x, double by, char* out, Py_ssize_t n
) noexcept nogil:
    """out = by * x"""
    if single:
        _multiplied(<const float*> x, <float> by, <float*> out, n)
    else:
        _multiplied(<const double*> x, by, <double*> out, n)
