from cython cimport floating
from libc.stdint cimport int64_t, uint64_t

cdef void gemm(
    char ta, char tb, Py_ssize_t m, Py_ssize_t n, Py_ssize_t k, double alpha, const floating* a,
    Py_ssize_t lda, const floating* b, Py_ssize_t ldb, double beta, floating* c,
) noexcept nogil


cdef class Layers:
    cdef bint single
    cdef int activation
    cdef double dropout
    cdef double bias_gain
    cdef Py_ssize_t n_layers
    cdef const int64_t* sizes       # (n_layers,) units
    cdef const int64_t* weights  # (n_layers,) first weight of each layer in the parameters
    cdef const int64_t* biases
    cdef const double* gains  # (n_layers,) gains of the weights
    cdef tuple _arrays
    cdef char** outputs  # (n_layers,) outputs of each layer, (block, size)
    cdef char** slopes
    cdef char* back         # (block, widest)
    cdef char* back_too

    cdef char* _room(self, Py_ssize_t elements) except NULL
    cdef void forward(
        self, const void* params, Py_ssize_t n, bint training, uint64_t key, Py_ssize_t first
    ) noexcept nogil
    cdef char* backward(self, const void* params, void* out, Py_ssize_t n) noexcept nogil
    cdef char* spare(self, const char* d) noexcept nogil
