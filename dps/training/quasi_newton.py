"""L-BFGS for a convex function whose evaluations are somebody else's work.

It is told a value and a gradient and says where it wants the next ones; it knows
neither data nor ranks.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dps._kernels.pairs import CurvaturePairs

__all__ = ["LBFGS"]

_SUFFICIENT = 1e-4  # Armijo's share of the decrease that the slope promises
_AS_STEEP = 0.9  # of the slope at a step's end: it was much too short
_FARTHER = 4.0  # then the next one is so many times as long
_TRUSTED = 100.0  # gains of so many times the tolerance let a small promise be believed
_CURVED = 1e-10  # cosine between step and change from which a pair counts
_TRIALS = 20  # points along a direction before it is given up


class LBFGS:
    """Limited-memory BFGS (Nocedal and Wright, 2006, algorithm 7.4) with backtracking.

    A step is shortened by quadratic interpolation until the decrease is sufficient, and
    followed by a longer one where the slope has hardly changed. For a convex function
    ``s . y`` is never negative; a pair in which it vanishes is left out. Coordinates should
    be such that the function curves by about one: the first step relies on it.

    Parameters
    ----------
    start : (n,) array
    tolerance : float
        The gain that the quadratic model must still promise for another step.
    precision : float
        Relative error of the values told.
    memory : int, default=10
        Pairs of steps and gradient differences that are kept.

    Attributes
    ----------
    point : (n,) float64 array
        Where the function is to be evaluated next.
    best : (n,) float64 array
        The best point so far.
    converged : bool
    extending : bool
        Whether the next point lies farther in the same direction.

    Examples
    --------
    >>> search = LBFGS(np.array([3.0, -1.0]), tolerance=1e-12, precision=1e-16)
    >>> curvature = np.array([1.0, 10.0])
    >>> while not search.converged:
    ...     x = search.point
    ...     _ = search.tell(float(curvature @ x**2) / 2, curvature * x)
    >>> bool(np.abs(search.best).max() < 1e-5)
    True
    """

    def __init__(
        self,
        start: NDArray[np.float64],
        tolerance: float,
        precision: float,
        memory: int = 10,
    ) -> None:
        self.point = np.array(start, np.float64)
        self.best = self.point
        self.converged = self.extending = False
        self._tolerance = tolerance
        self._precision = precision
        self._pairs = CurvaturePairs(len(self.point), memory, _CURVED)
        self._value = math.inf
        self._gradient: NDArray[np.float64] | None = None
        self._direction = np.zeros_like(self.point)
        self._slope = 0.0
        self._step = 1.0
        self._trials = 0

    def resume(self, tolerance: float) -> None:
        """Go on from the best point, on another function that curves alike."""
        self.point = self.best
        self.converged = self.extending = False
        self._tolerance = tolerance
        self._value, self._gradient = math.inf, None

    def tell(self, value: float, gradient: NDArray[np.float64] | None) -> bool:
        """Take the function's value and gradient at `point`, and choose the next point.

        Parameters
        ----------
        value : float
            Infinite or NaN where the function has no value.
        gradient : (n,) array or None
            None where there is none.

        Returns
        -------
        bool
            Whether the point has become the best one.
        """
        old = self._gradient
        if old is not None and not self._decreased(value):
            self._shorten(value)
            return False
        if gradient is None or not math.isfinite(value):
            raise ValueError("the function has no value where the search starts")
        gradient = np.array(gradient, np.float64)
        start, gain = self.best, self._value - value
        self._value, self._gradient, self.best = value, gradient, self.point
        self.extending = False
        if old is not None:
            slope = float(gradient @ self._direction)
            if slope < _AS_STEEP * self._slope:  # nothing curves here: go on, much farther
                self._slope, self._step, self._trials = slope, _FARTHER * self._step, 0
                self.point = self.best + self._step * self._direction
                self.extending = True
                return True
            self._pairs.add(start, self.best, old, gradient)
        self._turn(gain)
        return True

    def _decreased(self, value: float) -> bool:
        # Near the optimum the values' own error hides the decrease.
        error = self._precision * abs(self._value)
        return value <= self._value + _SUFFICIENT * self._step * self._slope + error

    def _shorten(self, value: float) -> None:
        self._trials += 1
        if self._trials >= _TRIALS:
            self.converged, self.point = True, self.best
            return
        shorter = 0.1
        if math.isfinite(value):
            # The minimum of the parabola through both values and the slope.
            excess = value - self._value - self._step * self._slope
            shorter = min(0.5, max(1e-6, -self._slope * self._step / (2.0 * excess)))
        self._step *= shorter
        self.point = self.best + self._step * self._direction

    def _turn(self, gain: float) -> None:
        """Choose a new direction: minus the inverse Hessian's estimate times the gradient.

        `gain` is what the step before has brought.
        """
        assert self._gradient is not None
        direction = np.empty_like(self._gradient)
        self._slope = self._pairs.direction(self._gradient, direction)
        self._direction = direction
        self._step, self._trials = 1.0, 0
        # What the quadratic model promises to gain, or steepest descent if that is more. Both
        # know little of directions in which nothing has moved yet, so they are trusted only
        # after a step that has gained little.
        steepest = float(self._gradient @ self._gradient)
        promise = max(-self._slope, steepest) / 2.0
        least = max(self._tolerance, self._precision * abs(self._value))
        self.converged = promise <= least and gain <= _TRUSTED * least
        self.point = self.best if self.converged else self.best + direction
