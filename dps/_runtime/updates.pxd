from libc.stdint cimport int64_t

from dps._kernels.optimizers cimport UpdateSpec


cdef class BoundUpdate:
    cdef readonly Py_ssize_t most  # elements at a time

    cdef int apply(
        self, char* params, const char* mean, char* state, Py_ssize_t stride, Py_ssize_t start,
        Py_ssize_t stop, int64_t step, double rate,
    ) except -1 nogil


cdef class NativeUpdate(BoundUpdate):
    cdef UpdateSpec spec
    cdef UpdateSpec free            # without weight decay
    cdef double l1
    cdef double l2
    cdef bint single
    cdef Py_ssize_t count
    cdef const int64_t* runs  # (count, 3) first, end and kind
    cdef object _runs


cdef class PythonUpdate(BoundUpdate):
    cdef object update
    cdef object owner  # owner of the memory that the optimizer gets
    cdef object dtype
    cdef Py_ssize_t size
    cdef Py_ssize_t state_rows


cdef object view(char* at, dtype, Py_ssize_t n, owner)
