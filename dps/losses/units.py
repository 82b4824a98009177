"""Units in which the targets of a regression vary by about one.

Gradients, penalties and tolerances of steps in these units do not depend on the units or the offset
of y. Which units these are follows from the kernel of a loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dps._kernels.losses import LossKernel
from dps.losses.base import Loss, Task


@dataclass(frozen=True)
class _InUnits(Loss):
    """A loss of targets and raw outputs in their units."""

    name: ClassVar[str] = "in_units"
    task: ClassVar[Task] = "regression"

    kernel: LossKernel  # type: ignore[misc]


@dataclass(frozen=True)
class Units:
    """Units of y, raw outputs and losses; arrays are (k,), one number an output.

    Examples
    --------
    >>> from dps.losses import SquaredError
    >>> units = units_of(SquaredError(), np.array([5.0]), np.array([2.0]))
    >>> y = units.of_targets(np.array([7.0]))
    >>> y, units.targets(y), units.raw(y[:, None]), units.size
    (array([1.]), array([7.]), array([[7.]]), 4.0)
    """

    loss: Loss  # in units
    size: float  # a loss of y is as many times that; of several outputs on average
    # y is ``y_shift + y_scale * targets``.
    y_shift: NDArray[np.float64]
    y_scale: NDArray[np.float64]
    # Raw outputs are ``start + reach * outputs`` of a model whose outputs vary by about one, and in
    # units ``output_shift + output_scale * outputs``.
    start: NDArray[np.float64]
    reach: NDArray[np.float64]
    output_shift: NDArray[np.float64]
    output_scale: NDArray[np.float64]

    def of_targets(self, y: Any) -> Any:
        """Y in units."""
        return (np.asarray(y, np.float64) - self.y_shift) / self.y_scale

    def targets(self, targets: Any) -> Any:
        """The y of targets in units."""
        return self.y_shift + self.y_scale * targets

    def raw(self, raw: Any) -> Any:
        """Raw outputs of those in units."""
        outputs = (raw - self.output_shift) / self.output_scale
        return self.start + self.reach * outputs


def units_of(loss: Loss, start: NDArray[np.float64], reach: NDArray[np.float64]) -> Units:
    """Return units for a loss with a kernel, from the start and the reach of raw outputs.

    Several outputs count alike. With a width in the loss they share a unit, as they share the
    width.
    """
    kernel = loss.native
    assert kernel is not None
    zeros, ones = np.zeros_like(start), np.ones_like(start)
    shared = math.sqrt(float(np.mean(reach**2)))
    if kernel.name == "squared":
        return Units(loss, shared**2, start, reach, start, reach, zeros, ones)
    if kernel.name == "quantile":
        return Units(loss, float(reach.mean()), start, reach, start, reach, zeros, ones)
    if kernel.name in ("huber", "epsilon_insensitive"):
        size = shared**2 if kernel.name == "huber" else shared
        narrow = _InUnits(LossKernel(kernel.name, kernel.epsilon / shared))
        return Units(narrow, size, start, shared * ones, start, reach, zeros, reach / shared)
    if kernel.name in ("poisson", "gamma"):  # of the mean, which is the exponential
        means = np.exp(start)
        size = float(means.mean())
        divided = _InUnits(LossKernel(kernel.name, math.log(size)))
        size = size if kernel.name == "poisson" else 1.0
        return Units(divided, size, zeros, means, start, reach, zeros, reach)
    return Units(loss, 1.0, zeros, ones, start, reach, start, reach)
