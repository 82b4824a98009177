"""Curvature pairs of a quasi-Newton search: steps and the changes of the gradient.

This module has the two loops of L-BFGS (Nocedal and Wright, 2006, algorithm 7.4). All arithmetic is
in double; a sum has the same bits on every processor.
"""
from libc.math cimport sqrt

import numpy as np

from dps._kernels.checks cimport same_length

cdef extern from "vectors.h" nogil:
    double dps_dot(const double* a, const double* b, Py_ssize_t n) noexcept
    void dps_add_scaled(double* out, const double* x, double by, Py_ssize_t n) noexcept
    void dps_scale(double* out, const double* x, double by, Py_ssize_t n) noexcept
    void dps_differ(double* out, const double* to, const double* from_, Py_ssize_t n) noexcept


cdef class CurvaturePairs:
    """The last pairs of a search in ``size`` dimensions, ``memory`` at most.

    There is one more row than pairs, for the next pair before it counts.
    """

    def __init__(self, Py_ssize_t size, Py_ssize_t memory, double cosine):
        """`cosine`: least cosine of the angle between a step and its change."""
        if size < 0 or memory < 1:
            raise ValueError(f"there is no memory of {memory} pairs in {size} dimensions")
        self.size = size
        self.rows = memory + 1
        self.steps = np.zeros((self.rows, size))
        self.changes = np.zeros((self.rows, size))
        self.curvatures = np.zeros(self.rows)
        self.weights = np.zeros(self.rows)
        self.cosine = cosine
        self.scale = 1.0

    def __len__(self):
        return self.kept

    def add(
        self, const double[::1] start, const double[::1] end, const double[::1] before,
        const double[::1] after,
    ):
        """Keep a step and the change of the gradient, if they are informative; True if kept."""
        for name, vector in (("start", start), ("end", end), ("before", before), ("after", after)):
            same_length(name, vector.shape[0], self.size)
        return self.size > 0 and self.keep(&start[0], &end[0], &before[0], &after[0])

    def direction(self, const double[::1] gradient, double[::1] out):
        """Write minus the estimated inverse Hessian times the gradient; return its slope."""
        same_length("gradient", gradient.shape[0], self.size)
        same_length("out", out.shape[0], self.size)
        return self.turn(&gradient[0], &out[0]) if self.size else 0.0

    cdef bint keep(
        self, const double* start, const double* end, const double* before, const double* after
    ) noexcept nogil:
        """Keep the step from ``start`` to ``end`` and the change of the gradient; True if kept.

        It is not kept if the cosine of the angle between them is too small: the change is then
        mostly rounding error.
        """
        cdef double curvature, length, change
        cdef double* step
        cdef double* difference
        if self.size == 0:
            return False
        step, difference = &self.steps[self.following, 0], &self.changes[self.following, 0]
        dps_differ(step, end, start, self.size)
        dps_differ(difference, after, before, self.size)
        curvature = dps_dot(step, difference, self.size)
        length = dps_dot(step, step, self.size)
        change = dps_dot(difference, difference, self.size)
        if not (curvature > self.cosine * sqrt(length) * sqrt(change) and change > 0):
            return False
        self.curvatures[self.following] = curvature
        self.scale = curvature / change
        self.following = (self.following + 1) % self.rows
        self.kept = min(self.kept + 1, self.rows - 1)
        return True

    cdef double turn(self, const double* gradient, double* out) noexcept nogil:
        """`direction` without checks of its arguments."""
        cdef Py_ssize_t age, row
        cdef double weight
        if self.size == 0:
            return 0
        dps_scale(out, gradient, -1, self.size)
        for age in range(1, self.kept + 1):
            row = (self.following - age + self.rows) % self.rows
            weight = dps_dot(&self.steps[row, 0], out, self.size) / self.curvatures[row]
            dps_add_scaled(out, &self.changes[row, 0], -weight, self.size)
            self.weights[row] = weight
        dps_scale(out, out, self.scale, self.size)
        for age in range(self.kept, 0, -1):
            row = (self.following - age + self.rows) % self.rows
            weight = dps_dot(&self.changes[row, 0], out, self.size) / self.curvatures[row]
            dps_add_scaled(out, &self.steps[row, 0], self.weights[row] - weight, self.size)
        return dps_dot(gradient, out, self.size)
