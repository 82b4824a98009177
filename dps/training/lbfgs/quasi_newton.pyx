"""L-BFGS for a convex function that its caller evaluates, and an L1 norm.

It takes in a value and a gradient, and returns the next point to evaluate. All arithmetic is in
double; every point has the same bits on every processor.
"""
from libc.math cimport INFINITY
from libc.stdint cimport uintptr_t
from libc.string cimport memcpy

import numpy as np

from dps._kernels.checks cimport same_length
from dps.training.lbfgs.pairs cimport CurvaturePairs
from dps.training.lbfgs.proximal cimport ProximalStep

cdef extern from "vectors.h" nogil:
    double dps_dot(const double* a, const double* b, Py_ssize_t n) noexcept
    void dps_add_scaled(double* out, const double* x, double by, Py_ssize_t n) noexcept

cdef double SUFFICIENT = 1e-4  # Armijo's share of the decrease that the slope promises
cdef double AS_STEEP = 0.9  # share of the slope that remains after a step that was much too short
cdef double FARTHER = 4  # the next step is this many times as long
cdef double TRUSTED = 100  # a small promise is believed after a gain of fewer tolerances
cdef double SMALL = 1e-4  # share of the tolerance below which it is not reduced for a small value
cdef double CURVED = 1e-10  # least cosine between step and change for a pair to count
cdef int TRIALS = 20  # points along a direction before it is given up

cdef enum:
    MEMORY = 10  # number of pairs
    PROXIMAL = 30  # number of pairs with an L1 norm, which saves a third of the steps
    FEW = 1 << 15  # parameters up to which these cost no more than a pass


cdef class LBFGS:
    """Limited-memory BFGS (Nocedal and Wright, 2006, algorithm 7.4) with backtracking.

    A step is shortened by quadratic interpolation until the decrease is sufficient, and
    followed by a longer one where the slope has hardly changed. For a convex function
    ``s . y`` is never negative; a pair in which it vanishes is left out. Coordinates should
    be such that the function curves by about one: the first step relies on it.

    With an L1 norm the steps are proximal ones, see `ProximalStep`, and end at exact zeros.

    start: (n,) array.
    tolerance: the gain that the quadratic model must still promise for another step.
    precision: relative error of the values that it is given.
    relative: the same, as a share of the value, where that is less; a hundredth of it at least.
    weights: (n,) array, of an L1 norm, which is minimised with the function.
    """

    def __init__(
        self, start, double tolerance, double precision, double relative=INFINITY, weights=None,
    ):
        cdef double* vectors
        self.size = len(start)
        self._vectors = np.zeros((4, self.size))
        self._vectors[:2] = start
        vectors = <double*> <uintptr_t> self._vectors.ctypes.data
        self.next, self.optimum = vectors, vectors + self.size
        self.gradient, self.direction = vectors + 2 * self.size, vectors + 3 * self.size
        self.tolerance = tolerance
        self.precision = precision
        self.relative = relative
        memory = MEMORY if weights is None or self.size > FEW else PROXIMAL
        self.pairs = CurvaturePairs(self.size, memory, CURVED)
        self.proximal = None if weights is None else ProximalStep(self.pairs, weights)
        self.value = INFINITY
        self.step = 1
        self.slope = self.trials = 0
        self.begun = self.converged = self.extending = False

    @property
    def point(self):
        """Return the next point to evaluate, (n,), as a copy."""
        return self._vectors[0].copy()

    @property
    def best(self):
        """Return the best point so far, (n,), as a copy."""
        return self._vectors[1].copy()

    def resume(self, double tolerance):
        """Continue from the best point, on another function with similar curvature."""
        self.tolerance = tolerance
        self.restart()

    cdef void restart(self) noexcept nogil:
        """Continue from the best point, on another function."""
        self.value = INFINITY
        self.begun = self.converged = self.extending = False
        memcpy(self.next, self.optimum, self.size * sizeof(double))

    def observe(self, double value, gradient):
        """Take in the function's value and gradient at `point`, and choose the next point.

        value: infinite or NaN where the function has no value.
        gradient: (n,) array or None, None where there is none.
        Returns whether the point has become the best one.
        """
        if gradient is None:
            return bool(self.take(value, NULL))
        gradient = np.require(gradient, np.float64, ["C", "A"])
        same_length("gradient", gradient.size, self.size)
        return bool(self.take(value, <const double*> <uintptr_t> gradient.ctypes.data))

    cdef int take(self, double value, const double* gradient) except -1 nogil:
        """Native `observe`; NULL without a gradient."""
        cdef double gain, slope
        if self.proximal is not None:
            value += self.proximal.norm(self.next)
        gain = self.value - value
        if self.begun and not self._decreased(value):
            self._shorten(value)
            return False
        if gradient is NULL or value - value != 0:
            raise ValueError("the function has no value where the search starts")
        self.extending = False
        if self.begun:
            slope = dps_dot(gradient, self.direction, self.size)
            # No curvature here: go much farther, unless it is rounding.
            if (
                slope < AS_STEEP * self.slope
                and self.proximal is None
                and gain > self.precision * abs(value)
            ):
                self.slope, self.step, self.trials = slope, FARTHER * self.step, 0
                self.extending = True
            elif self.pairs.keep(self.optimum, self.next, self.gradient, gradient):
                if self.proximal is not None:
                    self.proximal.take_in()
        self.begun = True
        self.value = value
        memcpy(self.optimum, self.next, self.size * sizeof(double))
        memcpy(self.gradient, gradient, self.size * sizeof(double))
        if self.extending:
            self._go()
        else:
            self._turn(gain)
        return True

    cdef bint _decreased(self, double value) noexcept nogil:
        # Near the optimum the error of the values hides the decrease.
        cdef double error = self.precision * abs(self.value)
        return value <= self.value + SUFFICIENT * self.step * self.slope + error

    cdef void _shorten(self, double value) noexcept nogil:
        cdef double excess, shorter = 0.1
        self.trials += 1
        # A decrease below rounding cannot be found.
        if self.trials >= TRIALS or -self.step * self.slope <= self.precision * abs(self.value):
            self.converged = True
            memcpy(self.next, self.optimum, self.size * sizeof(double))
            return
        if value - value == 0:
            # The minimum of the parabola through both values and the slope.
            excess = value - self.value - self.step * self.slope
            shorter = min(0.5, max(1e-6, -self.slope * self.step / (2 * excess)))
        self.step *= shorter
        self._go()

    cdef int _turn(self, double gain) except -1 nogil:
        """Choose a new direction: minus the estimated inverse Hessian times the gradient.

        With an L1 norm, go to the minimum of that and the quadratic model together. ``gain`` is
        that of the last step.
        """
        cdef double promise, least
        self.step, self.trials = 1, 0
        # The gain that the quadratic model promises, or steepest descent if that is more. Both
        # know little of directions in which nothing has moved yet, so they are trusted only
        # after a step that has gained little.
        if self.proximal is None:
            self.slope = self.pairs.turn(self.gradient, self.direction)
            promise = max(-self.slope, dps_dot(self.gradient, self.gradient, self.size)) / 2
        else:
            self.slope = self.proximal.turn(self.optimum, self.gradient, self.direction)
            promise = -self.slope
        least = max(self.worthwhile(), self.precision * abs(self.value))
        self.converged = promise <= least and gain <= TRUSTED * least
        if not self.converged:
            self._go()
        return 0

    cdef double worthwhile(self) noexcept nogil:
        """Return the least gain worth a step: the tolerance, or less of it for a small value.

        It does not vanish: if the minimum is zero, each step gains a share of the rest.
        """
        return min(self.tolerance, max(self.relative * abs(self.value), SMALL * self.tolerance))

    cdef void _go(self) noexcept nogil:
        """Set the next point: the best one plus a step."""
        memcpy(self.next, self.optimum, self.size * sizeof(double))
        dps_add_scaled(self.next, self.direction, self.step, self.size)
