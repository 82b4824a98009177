"""The step of a proximal quasi-Newton search: to the minimum of a quadratic model and an L1 norm.

The model is L-BFGS's own in compact form (Byrd, Nocedal and Schnabel, 1994). It is nearly
minimised: by coordinate descent, which ends at exact zeros (Scheinberg and Tang, 2016), then by
conjugate gradients among the coordinates that are not zero. All in double.
"""
from libc.math cimport copysign, sqrt
from libc.stdint cimport uintptr_t
from libc.string cimport memset

import numpy as np

from dps._kernels.buffer cimport Buffer
from dps._kernels.checks cimport same_length
from dps.training.lbfgs.pairs cimport CurvaturePairs

cdef extern from "vectors.h" nogil:
    double dps_dot(const double* a, const double* b, Py_ssize_t n) noexcept
    void dps_add_scaled(double* out, const double* x, double by, Py_ssize_t n) noexcept

cdef enum:
    SWEEPS = 3  # passes over the coordinates; more of them saved no step of the search

cdef double EXACT = 1e-4  # share of the initial squares at which conjugate gradients end
# Share of the largest pivot or curvature below which there is only rounding error.
cdef double REGULAR = 1e-10


cdef inline double _shrunk(double x, double by) noexcept nogil:
    cdef double size = abs(x) - by
    return copysign(size, x) if size > 0 else 0


cdef bint _invert(double* m, Py_ssize_t n, Py_ssize_t stride) noexcept nogil:
    """Invert a positive definite matrix in place, by Gauss and Jordan; False if it is not one."""
    cdef Py_ssize_t i, j, row
    cdef double pivot, factor, largest = 0
    for i in range(n):
        largest = max(largest, m[i * stride + i])
    for i in range(n):
        pivot = m[i * stride + i]
        if not pivot > REGULAR * largest:
            return False
        m[i * stride + i] = 1
        for j in range(n):
            m[i * stride + j] /= pivot
        for row in range(n):
            factor = m[row * stride + i]
            if row == i or factor == 0:
                continue
            m[row * stride + i] = 0
            for j in range(n):
                m[row * stride + j] -= factor * m[i * stride + j]
    return True


cdef class ProximalStep:
    """Steps to the minimum of ``g . d + d . B d / 2 + |weights * (at + d)|_1``.

    `B` is the pairs' estimate of the Hessian, in compact form. Coordinates that are zero, and that
    the gradient does not move, stay; the others are minimised one by one.

    weights: (n,) array, of the L1 norm; 0 where there is none.
    """

    def __init__(self, CurvaturePairs pairs, weights):
        self._weights = np.ascontiguousarray(weights, np.float64)
        same_length("weights", self._weights.size, pairs.size)
        self.weights = <const double*> <uintptr_t> self._weights.ctypes.data
        self.pairs = pairs
        self.steps = np.zeros((pairs.rows, pairs.rows))
        self.crossed = np.zeros((pairs.rows, pairs.rows))
        self.lower = np.zeros((pairs.rows, pairs.rows))
        self.inverse = np.zeros((2 * pairs.rows, 2 * pairs.rows))
        self.along = np.zeros(2 * pairs.rows)
        self.across = np.zeros(2 * pairs.rows)
        self.free, self.wide, self.turned, self.work = Buffer(), Buffer(), Buffer(), Buffer()

    def direction(self, const double[::1] at, const double[::1] gradient, double[::1] out):
        """Write the step; return the change of the norm and of the linear part, which is negative.
        """
        for name, length in (
            ("at", at.shape[0]), ("gradient", gradient.shape[0]), ("out", out.shape[0])
        ):
            same_length(name, length, self.pairs.size)
        return self.turn(&at[0], &gradient[0], &out[0]) if out.shape[0] else 0.0

    cdef double norm(self, const double* point) noexcept nogil:
        """The L1 norm with weights."""
        cdef double total = 0
        cdef Py_ssize_t i
        for i in range(self.pairs.size):
            total += self.weights[i] * abs(point[i])
        return total

    cdef void take_in(self) noexcept nogil:
        """Multiply the newest pair by all others."""
        cdef Py_ssize_t newest = self.row(0), n = self.pairs.size, age, row
        cdef double product
        for age in range(self.pairs.kept):
            row = self.row(age)
            product = dps_dot(&self.pairs.steps[newest, 0], &self.pairs.steps[row, 0], n)
            self.steps[newest, row] = self.steps[row, newest] = product
            self.crossed[newest, row] = dps_dot(
                &self.pairs.steps[newest, 0], &self.pairs.changes[row, 0], n
            )
            self.crossed[row, newest] = dps_dot(
                &self.pairs.steps[row, 0], &self.pairs.changes[newest, 0], n
            )

    cdef double turn(
        self, const double* at, const double* gradient, double* out
    ) except? 1 nogil:
        """`direction` without checks of its arguments."""
        cdef double slope = self._turn(at, gradient, out)
        if slope <= 0:
            return slope
        self.pairs.kept = 0  # rounding has made the model worthless: start a new one
        return min(0.0, self._turn(at, gradient, out))

    cdef double _turn(
        self, const double* at, const double* gradient, double* out
    ) except? 1 nogil:
        cdef double total = 0
        cdef Py_ssize_t c, j
        cdef Py_ssize_t* free
        self.curvature = 1 / self.pairs.scale
        self.width = 2 * self.pairs.kept
        if not self._invert():
            return 1
        self.count = self._choose(at, gradient, out)
        if not self._gather():
            return 1
        memset(&self.along[0], 0, self.width * sizeof(double))
        self._descend(at, gradient, out)
        self._slide(at, gradient, out)
        free = <Py_ssize_t*> self.free.at
        for c in range(self.count):
            j = free[c]
            total += gradient[j] * out[j] + self.weights[j] * (abs(at[j] + out[j]) - abs(at[j]))
        return total

    cdef void _descend(
        self, const double* at, const double* gradient, double* out
    ) noexcept nogil:
        """Go over the free coordinates, one by one."""
        cdef Py_ssize_t width = self.width, c, j
        cdef Py_ssize_t* free = <Py_ssize_t*> self.free.at
        cdef const double* turned = <double*> self.turned.at
        cdef double before, after, steep
        cdef int _sweep
        for _sweep in range(SWEEPS):
            for c in range(self.count):
                j = free[c]
                steep = turned[c * (width + 1) + width]
                before = at[j] + out[j]
                after = before - self._slope(c, gradient[j], out[j]) / steep
                after = _shrunk(after, self.weights[j] / steep)
                if after == before:
                    continue
                # To zero exactly, not nearly.
                out[j] = after - at[j]
                dps_add_scaled(&self.along[0], turned + c * (width + 1), after - before, width)

    cdef double _slope(self, Py_ssize_t c, double gradient, double step) noexcept nogil:
        """Return the slope of the quadratic model along a free coordinate."""
        cdef const double* wide = <double*> self.wide.at
        cdef double taken = dps_dot(wide + c * self.width, &self.along[0], self.width)
        return gradient + self.curvature * step - taken

    cdef int _slide(
        self, const double* at, const double* gradient, double* out
    ) except -1 nogil:
        """Move to the model's minimum with the same signs and zeros, or to the first new zero.

        It uses conjugate gradients: coordinate descent is slow if coordinates interact.
        """
        cdef Py_ssize_t n = self.count, width = self.width, c, j, hit = -1
        cdef Py_ssize_t* free = <Py_ssize_t*> self.free.at
        cdef const double* wide = <double*> self.wide.at
        cdef const double* turned = <double*> self.turned.at
        cdef double* step = <double*> self.work.fit(4 * n * sizeof(double))
        cdef double* left = step + n
        cdef double* way = step + 2 * n
        cdef double* bent = step + 3 * n
        cdef double* along = &self.across[0]
        cdef double x, square, next_square, length, start, share = 1
        cdef Py_ssize_t _turn
        for c in range(n):
            j = free[c]
            x = at[j] + out[j]
            step[c] = left[c] = 0
            if x != 0:
                left[c] = -self._slope(c, gradient[j], out[j]) - copysign(self.weights[j], x)
            way[c] = left[c]
        start = square = dps_dot(left, left, n)
        for _turn in range(width + 2):
            if not square > EXACT * start:
                break
            memset(along, 0, width * sizeof(double))
            for c in range(n):
                if way[c] != 0:
                    dps_add_scaled(along, turned + c * (width + 1), way[c], width)
            for c in range(n):
                j = free[c]
                bent[c] = 0
                if at[j] + out[j] != 0:
                    bent[c] = self.curvature * way[c] - dps_dot(wide + c * width, along, width)
            length = dps_dot(way, bent, n)
            if not length > 0:
                break
            length = square / length
            dps_add_scaled(step, way, length, n)
            dps_add_scaled(left, bent, -length, n)
            next_square = dps_dot(left, left, n)
            for c in range(n):
                way[c] = left[c] + next_square / square * way[c]
            square = next_square
        for c in range(n):
            x = at[free[c]] + out[free[c]]
            if x * step[c] < 0 and abs(x) < share * abs(step[c]):
                share, hit = abs(x / step[c]), c
        for c in range(n):
            j = free[c]
            if step[c] != 0:
                dps_add_scaled(&self.along[0], turned + c * (width + 1), share * step[c], width)
                out[j] = -at[j] if c == hit else out[j] + share * step[c]
        return 0

    cdef Py_ssize_t _choose(
        self, const double* at, const double* gradient, double* out
    ) except -1 nogil:
        """Choose the coordinates that may move; return their number."""
        cdef Py_ssize_t j, count = 0
        cdef Py_ssize_t* free
        for j in range(self.pairs.size):
            out[j] = 0
            count += at[j] != 0 or abs(gradient[j]) > self.weights[j]
        free = <Py_ssize_t*> self.free.fit(count * sizeof(Py_ssize_t))
        count = 0
        for j in range(self.pairs.size):
            if at[j] != 0 or abs(gradient[j]) > self.weights[j]:
                free[count] = j
                count += 1
        return count

    cdef bint _invert(self) noexcept nogil:
        """Invert the middle matrix ``[[A, L], [L', -I]]`` of the compact form.

        Pairs are scaled to a curvature of one. A is the curvature times the products of their
        steps; L is the part below the diagonal of the products of steps and changes. The inverse is
        ``[[K, K L], [L' K, L' K L - I]]``, with K the inverse of ``A + L L'``.
        Returns whether there is one.
        """
        cdef Py_ssize_t kept = self.pairs.kept, a, b, c, i, j
        cdef double weight, total
        for a in range(kept):  # from the newest to the oldest
            i = self.row(a)
            for b in range(kept):
                j = self.row(b)
                weight = self.length(i) * self.length(j)
                self.inverse[a, b] = self.curvature * weight * self.steps[i, j]
                self.lower[a, b] = weight * self.crossed[i, j] if a < b else 0
        for a in range(kept):
            for b in range(kept):
                total = 0
                for c in range(max(a, b) + 1, kept):
                    total += self.lower[a, c] * self.lower[b, c]
                self.inverse[a, b] += total
        if not _invert(&self.inverse[0, 0], kept, self.inverse.shape[1]):
            return False
        for a in range(kept):
            for b in range(kept):
                total = 0
                for c in range(b):
                    total += self.inverse[a, c] * self.lower[c, b]
                self.inverse[a, kept + b] = self.inverse[kept + b, a] = total
        for a in range(kept):
            for b in range(kept):
                total = -1 if a == b else 0
                for c in range(a):
                    total += self.lower[c, a] * self.inverse[c, kept + b]
                self.inverse[kept + a, kept + b] = total
        return True

    cdef Py_ssize_t row(self, Py_ssize_t age) noexcept nogil:
        """Return the row of the pair with `age` newer ones."""
        return (self.pairs.following - 1 - age + self.pairs.rows) % self.pairs.rows

    cdef double length(self, Py_ssize_t row) noexcept nogil:
        """Return the factor that scales the curvature of a pair to one."""
        return 1 / sqrt(self.pairs.curvatures[row])

    cdef bint _gather(self) except -1 nogil:
        """Gather the pairs at the free coordinates, and times the inverse; False if indefinite."""
        cdef Py_ssize_t kept = self.pairs.kept, width = 2 * kept, count = self.count, a, c, i, row
        cdef Py_ssize_t* free = <Py_ssize_t*> self.free.at
        cdef double* wide = <double*> self.wide.fit(count * width * sizeof(double))
        cdef double* turned = <double*> self.turned.fit(count * (width + 1) * sizeof(double))
        cdef double* here
        cdef double left, weight
        for a in range(kept):
            row = self.row(a)
            weight = self.length(row)
            for c in range(count):
                wide[c * width + a] = self.curvature * weight * self.pairs.steps[row, free[c]]
                wide[c * width + kept + a] = weight * self.pairs.changes[row, free[c]]
        for c in range(count):
            here = turned + c * (width + 1)
            memset(here, 0, width * sizeof(double))
            for i in range(width):
                dps_add_scaled(here, &self.inverse[i, 0], wide[c * width + i], width)
            left = self.curvature - dps_dot(here, wide + c * width, width)
            if not left > REGULAR * self.curvature:
                return False
            here[width] = left
        return True
