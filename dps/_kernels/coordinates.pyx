"""Coordinates in which a search takes its steps: the parameters themselves, or those of features
that vary alike and independently.

The model, its penalty and its parameters stay on the user's scale. All arithmetic is in double.
"""
from libc.stdint cimport uintptr_t
from libc.string cimport memcpy, memset

import numpy as np

from dps._kernels.checks cimport vector_of

cdef extern from "vectors.h" nogil:
    double dps_dot(const double* a, const double* b, Py_ssize_t n) noexcept
    void dps_add_scaled(double* out, const double* x, double by, Py_ssize_t n) noexcept


cdef const double* _numbers(str name, array, Py_ssize_t n) except? NULL:
    return <const double*> vector_of(name, array, "float64", n)


cdef class Coordinates:
    """The parameters themselves as coordinates of a search, `size` of them."""

    def __init__(self, Py_ssize_t size):
        self.size = size

    def params(self, point):
        """The flat parameters at a point."""
        result = np.empty(self.size)
        self.to_params(
            _numbers("point", point, self.size), <double*> <uintptr_t> result.ctypes.data
        )
        return result

    def point(self, params):
        """The point of flat parameters."""
        result = np.empty(self.size)
        self.to_point(
            _numbers("params", params, self.size), <double*> <uintptr_t> result.ctypes.data
        )
        return result

    def gradient(self, gradient):
        """The gradient with respect to the point, from that of the parameters."""
        result = np.empty(self.size)
        self.to_gradient(
            _numbers("gradient", gradient, self.size), <double*> <uintptr_t> result.ctypes.data
        )
        return result

    cdef void to_params(self, const double* point, double* out) noexcept nogil:
        """The parameters at a point."""
        memcpy(out, point, self.size * sizeof(double))

    cdef void to_point(self, const double* params, double* out) noexcept nogil:
        """The point of parameters."""
        memcpy(out, params, self.size * sizeof(double))

    cdef void to_gradient(self, const double* gradient, double* out) noexcept nogil:
        """The gradient with respect to the point, from that of the parameters."""
        memcpy(out, gradient, self.size * sizeof(double))


cdef class Standardised(Coordinates):
    """The point u with ``coef = mix @ u / scale`` and ``intercept = u_0 / scale_0 - mean . coef``.

    These are the coefficients of the features ``mix @ ((x - mean) / scale)``; no row is touched.
    Used by one thread at a time.

    mean: (n_features,) float64 array, zeros without an intercept.
    scale: (n_features,) float64 array, not zero.
    scale_0: not zero.
    intercept: whether there is one: the last `n_outputs` parameters.
    mix, unmix: (n_features, n_features) float64 arrays, symmetric, each the inverse of the other;
        None: features are not mixed.
    """

    def __init__(
        self, mean, scale, double scale_0, Py_ssize_t n_outputs, bint intercept, mix=None,
        unmix=None,
    ):
        cdef Py_ssize_t n_features = len(mean)
        if n_outputs < 1:
            raise ValueError(f"a model has one output at least, got {n_outputs}")
        super().__init__((n_features + intercept) * n_outputs)
        self._mean = _numbers("mean", mean, n_features)
        self._scale = _numbers("scale", scale, n_features)
        self._mix = self._unmix = self._room = NULL
        if mix is not None:
            room = np.empty(max(1, n_features * n_outputs))
            self._arrays = [np.ravel(mix), np.ravel(unmix), room]  # keeps the memory alive
            self._mix = _numbers("mix", self._arrays[0], n_features * n_features)
            self._unmix = _numbers("unmix", self._arrays[1], n_features * n_features)
            self._room = <double*> <uintptr_t> room.ctypes.data
        self.mean, self.scale = mean, scale
        self.scale_0 = scale_0
        self.n_features = n_features
        self.n_outputs = n_outputs
        self.intercept = intercept

    cdef void to_params(self, const double* point, double* out) noexcept nogil:
        cdef Py_ssize_t f, j, k = self.n_outputs, at = self.n_features * k
        cdef const double* coef = point
        if self._mix is not NULL:
            self._mixed(self._mix, point, self._room)
            coef = self._room
        for f in range(self.n_features):
            for j in range(k):
                out[f * k + j] = coef[f * k + j] / self._scale[f]
        if self.intercept:
            self._shift(out, out + at)
            for j in range(k):
                out[at + j] = point[at + j] / self.scale_0 - out[at + j]

    cdef void to_point(self, const double* params, double* out) noexcept nogil:
        cdef Py_ssize_t f, j, k = self.n_outputs, at = self.n_features * k
        cdef double* coef = out if self._unmix is NULL else self._room
        for f in range(self.n_features):
            for j in range(k):
                coef[f * k + j] = params[f * k + j] * self._scale[f]
        if self._unmix is not NULL:
            self._mixed(self._unmix, coef, out)
        if self.intercept:
            self._shift(params, out + at)
            for j in range(k):
                out[at + j] = (params[at + j] + out[at + j]) * self.scale_0

    cdef void to_gradient(self, const double* gradient, double* out) noexcept nogil:
        cdef Py_ssize_t f, j, k = self.n_outputs, at = self.n_features * k
        cdef double* slope = out if self._mix is NULL else self._room
        cdef double value
        for f in range(self.n_features):
            for j in range(k):
                value = gradient[f * k + j]
                if self.intercept:
                    value -= self._mean[f] * gradient[at + j]
                slope[f * k + j] = value / self._scale[f]
        if self._mix is not NULL:
            self._mixed(self._mix, slope, out)
        if self.intercept:
            for j in range(k):
                out[at + j] = gradient[at + j] / self.scale_0

    cdef void _mixed(self, const double* by, const double* x, double* out) noexcept nogil:
        """Multiply a symmetric matrix by the coefficients of all outputs."""
        cdef Py_ssize_t f, g, k = self.n_outputs, n = self.n_features
        for f in range(n):
            if k == 1:
                out[f] = dps_dot(by + f * n, x, n)
                continue
            memset(out + f * k, 0, k * sizeof(double))
            for g in range(n):
                dps_add_scaled(out + f * k, x + g * k, by[f * n + g], k)

    cdef void _shift(self, const double* coef, double* out) noexcept nogil:
        """The part of each output that comes from the means of the features."""
        cdef Py_ssize_t f, j, k = self.n_outputs
        if k == 1:
            out[0] = dps_dot(self._mean, coef, self.n_features)
            return
        memset(out, 0, k * sizeof(double))
        for f in range(self.n_features):
            for j in range(k):
                out[j] += self._mean[f] * coef[f * k + j]
