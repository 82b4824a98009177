from cython cimport floating
from libc.stdint cimport int64_t

from dps._kernels.checks cimport index_t

cdef Py_ssize_t padded_outputs(Py_ssize_t k) noexcept nogil
cdef void pad(const floating* w, floating* tiles, Py_ssize_t f, Py_ssize_t k) noexcept nogil
cdef void add_unpadded(
    const floating* tiles, floating* w, Py_ssize_t f, Py_ssize_t k
) noexcept nogil
cdef void forward(
    const floating* x, Py_ssize_t stride, const int64_t* order, const floating* w,
    const floating* bias, floating* out, Py_ssize_t m, Py_ssize_t f, Py_ssize_t k,
    Py_ssize_t ahead, Py_ssize_t reach,
) noexcept nogil
cdef void backward(
    const floating* x, Py_ssize_t stride, const int64_t* order, const floating* d,
    floating* grad, Py_ssize_t m, Py_ssize_t f, Py_ssize_t k, Py_ssize_t ahead, Py_ssize_t reach,
) noexcept nogil
cdef void forward_csr(
    const floating* data, const index_t* indices, const index_t* indptr, const int64_t* order,
    const floating* w, const floating* bias, floating* out, Py_ssize_t m, Py_ssize_t k,
) noexcept nogil
cdef void backward_csr(
    const floating* data, const index_t* indices, const index_t* indptr, const int64_t* order,
    const floating* d, floating* grad, Py_ssize_t m, Py_ssize_t k, Py_ssize_t n_ahead,
) noexcept nogil
cdef void add_columns(
    const floating* d, floating* grad, Py_ssize_t m, Py_ssize_t k
) noexcept nogil
