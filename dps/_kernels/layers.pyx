"""Dense layers on a block of rows, forward and backward, by matrix products.

It covers everything between the first layer's product, which the caller computes from inputs of any
form, and the last layer's outputs. Layers are ``gain * inputs @ weights + bias_gain * bias`` (the
neural tangent parametrisation), so that one learning rate serves all of them. Dropped units are
drawn by a hash of a key and of the position in the batch, so they do not depend on the division of
a batch into blocks.
"""
from cython cimport floating
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free

import numpy as np

from scipy.linalg.cython_blas cimport dgemm, sgemm

from dps._kernels.checks cimport same_length

cdef extern from "activation.h" nogil:
    enum:
        IDENTITY "DPS_IDENTITY"
        RELU "DPS_RELU"
        LOGISTIC "DPS_LOGISTIC_UNIT"
        TANH "DPS_TANH"
        SILU "DPS_SILU"
    uint64_t dps_mix(uint64_t x)
    void dps_add_bias_float(
        float* z, const float* bias, float gain, Py_ssize_t n, Py_ssize_t width)
    void dps_add_bias_double(
        double* z, const double* bias, double gain, Py_ssize_t n, Py_ssize_t width)
    void dps_activate_float(int kind, float* z, float* slope, Py_ssize_t n)
    void dps_activate_double(int kind, double* z, double* slope, Py_ssize_t n)
    void dps_pass_back_float(
        int kind, float* d, const float* z, const float* slope, float keep, Py_ssize_t n)
    void dps_pass_back_double(
        int kind, double* d, const double* z, const double* slope, double keep, Py_ssize_t n)
    void dps_drop_float(
        float* z, float* slope, Py_ssize_t n, uint64_t key, uint64_t first, uint32_t limit,
        float keep)
    void dps_drop_double(
        double* z, double* slope, Py_ssize_t n, uint64_t key, uint64_t first, uint32_t limit,
        double keep)

ACTIVATIONS = {
    "identity": IDENTITY, "relu": RELU, "logistic": LOGISTIC, "tanh": TANH, "silu": SILU
}


cdef void gemm(
    char ta, char tb, Py_ssize_t m, Py_ssize_t n, Py_ssize_t k, double alpha, const floating* a,
    Py_ssize_t lda, const floating* b, Py_ssize_t ldb, double beta, floating* c,
) noexcept nogil:
    """Compute C = alpha op(A) op(B) + beta C, m x n, in C order; op transposes for T."""
    cdef int rows = <int> m, columns = <int> n, inner = <int> k
    cdef int of_a = <int> lda, of_b = <int> ldb
    cdef floating scaled = <floating> alpha, kept = <floating> beta
    if m == 0 or n == 0 or k == 0:
        return
    # BLAS uses Fortran order, so it gets the transposed problem.
    if floating is float:
        sgemm(
            &tb, &ta, &columns, &rows, &inner, &scaled, <float*> b, &of_b, <float*> a, &of_a,
            &kept, c, &columns,
        )
    else:
        dgemm(
            &tb, &ta, &columns, &rows, &inner, &scaled, <double*> b, &of_b, <double*> a, &of_a,
            &kept, c, &columns,
        )


cdef void _forward(
    Layers self, const floating* params, Py_ssize_t n, bint training, uint64_t key,
    Py_ssize_t first,
) noexcept nogil:
    cdef Py_ssize_t layer, i, size
    cdef floating* z
    cdef floating* slope
    cdef floating keep
    for layer in range(self.n_layers):
        size = self.sizes[layer]
        z = <floating*> self.outputs[layer]
        if layer:
            gemm(
                c"N", c"N", n, size, self.sizes[layer - 1], self.gains[layer],
                <const floating*> self.outputs[layer - 1], self.sizes[layer - 1],
                params + self.weights[layer], size, 0, z,
            )
        if floating is float:
            dps_add_bias_float(z, params + self.biases[layer], <float> self.bias_gain, n, size)
        else:
            dps_add_bias_double(z, params + self.biases[layer], self.bias_gain, n, size)
        if layer == self.n_layers - 1:
            return
        slope = <floating*> self.slopes[layer]
        if floating is float:
            dps_activate_float(self.activation, z, slope, n * size)
        else:
            dps_activate_double(self.activation, z, slope, n * size)
        if training and self.dropout > 0:
            if self.activation == IDENTITY:
                for i in range(n * size):
                    slope[i] = 1
            keep = <floating> (1 / (1 - self.dropout))
            if floating is float:
                dps_drop_float(
                    z, NULL if self.activation == RELU else slope, n * size,
                    dps_mix(key + layer), first * size, <uint32_t> (self.dropout * 65536), keep,
                )
            else:
                dps_drop_double(
                    z, NULL if self.activation == RELU else slope, n * size,
                    dps_mix(key + layer), first * size, <uint32_t> (self.dropout * 65536), keep,
                )


cdef char* _backward(
    Layers self, const floating* params, floating* out, Py_ssize_t n
) noexcept nogil:
    cdef Py_ssize_t layer, i, c, inputs, size
    cdef floating* d = <floating*> self.back
    cdef floating* next_d = <floating*> self.back_too
    cdef floating* bias
    cdef floating keep = 1
    if self.dropout > 0:
        keep = <floating> (1 / (1 - self.dropout))
    for layer in range(self.n_layers - 1, -1, -1):
        size = self.sizes[layer]
        bias = out + self.biases[layer]
        for i in range(n):
            for c in range(size):
                bias[c] += <floating> self.bias_gain * d[i * size + c]
        if layer == 0:
            break
        inputs = self.sizes[layer - 1]
        gemm(
            c"T", c"N", inputs, size, n, self.gains[layer], <floating*> self.outputs[layer - 1],
            inputs, d, size, 1, out + self.weights[layer],
        )
        gemm(
            c"N", c"T", n, inputs, size, self.gains[layer], d, size, params + self.weights[layer],
            size, 0, next_d,
        )
        if self.activation != IDENTITY or self.dropout > 0:
            if floating is float:
                dps_pass_back_float(
                    self.activation, next_d, <float*> self.outputs[layer - 1],
                    <float*> self.slopes[layer - 1], keep, n * inputs,
                )
            else:
                dps_pass_back_double(
                    self.activation, next_d, <double*> self.outputs[layer - 1],
                    <double*> self.slopes[layer - 1], keep, n * inputs,
                )
        d, next_d = next_d, d
    return <char*> d


cdef class Layers:
    """Dense layers of `shape`, for `block` rows at a time.

    `shape` has sizes (from inputs to outputs), weights and biases (positions of each layer's in the
    parameters), gains, activation, dropout and bias_gain. `widest` is the largest number of
    elements per row that is passed back.
    """

    def __cinit__(self, shape, Py_ssize_t block, Py_ssize_t widest, *, bint single):
        cdef Py_ssize_t layer
        fixed = {}
        for name, kind in (
            ("sizes", "i8"), ("weights", "i8"), ("biases", "i8"), ("gains", "f8")
        ):
            fixed[name] = np.require(getattr(shape, name), kind, ["C", "A"])
        self._arrays = tuple(fixed.values())
        self.single = single
        self.activation = ACTIVATIONS[shape.activation]
        self.dropout = shape.dropout
        self.bias_gain = shape.bias_gain
        self.n_layers = len(fixed["gains"])
        same_length("sizes", len(fixed["sizes"]), self.n_layers + 1)
        same_length("weights", len(fixed["weights"]), self.n_layers)
        same_length("biases", len(fixed["biases"]), self.n_layers)
        self.sizes = <const int64_t*> <uintptr_t> fixed["sizes"].ctypes.data + 1
        self.weights = <const int64_t*> <uintptr_t> fixed["weights"].ctypes.data
        self.biases = <const int64_t*> <uintptr_t> fixed["biases"].ctypes.data
        self.gains = <const double*> <uintptr_t> fixed["gains"].ctypes.data
        self.outputs = <char**> calloc(2 * self.n_layers, sizeof(char*))
        if self.outputs is NULL:
            raise MemoryError
        self.slopes = self.outputs + self.n_layers
        for layer in range(self.n_layers):
            self.outputs[layer] = self._room(block * self.sizes[layer])
            if layer + 1 < self.n_layers and self.activation != RELU:
                self.slopes[layer] = self._room(block * self.sizes[layer])
            widest = max(widest, self.sizes[layer])
        self.back = self._room(block * widest)
        self.back_too = self._room(block * widest)

    def __dealloc__(self):
        free(self.outputs)

    cdef char* _room(self, Py_ssize_t elements) except NULL:
        array = np.zeros(max(1, elements), "f4" if self.single else "f8")
        self._arrays += (array,)
        return <char*> <uintptr_t> array.ctypes.data

    cdef void forward(
        self, const void* params, Py_ssize_t n, bint training, uint64_t key, Py_ssize_t first
    ) noexcept nogil:
        """Compute the last layer's outputs from the first layer's product, in ``outputs[0]``.

        The n rows have the numbers from ``first`` on in their batch.
        """
        if self.single:
            _forward(self, <const float*> params, n, training, key, first)
        else:
            _forward(self, <const double*> params, n, training, key, first)

    cdef char* backward(self, const void* params, void* out, Py_ssize_t n) noexcept nogil:
        """Compute derivatives of the first layer's product from those of the outputs, in ``back``.

        Returns their address, and adds the derivatives of all other parameters to ``out``.
        """
        if self.single:
            return _backward(self, <const float*> params, <float*> out, n)
        return _backward(self, <const double*> params, <double*> out, n)

    cdef char* spare(self, const char* d) noexcept nogil:
        """Return memory as large as that of ``d``, which `backward` has returned."""
        return self.back if d == self.back_too else self.back_too
