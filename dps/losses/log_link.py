"""What losses of a logarithmic link share. It must not know models."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dps.losses.base import Loss, Task

__all__ = ["LogLinkLoss"]


@dataclass(frozen=True)
class LogLinkLoss(Loss):
    """A loss of the mean :math:`e^f`."""

    task: ClassVar[Task] = "regression"
    curvature: ClassVar[float] = 1.0

    def mean(self, raw: Any) -> Any:
        """Return the exponential, see `Loss.mean`."""
        return np.exp(raw)

    def start(self, mean: Any) -> Any:
        """Return the logarithm, see `Loss.start`."""
        return np.log(np.maximum(mean, np.finfo(np.float64).tiny))

    def reach(self, mean: Any, std: Any) -> Any:
        """Return the deviation as a share of the mean, see `Loss.reach`."""
        return np.minimum(std / np.maximum(mean, np.finfo(np.float64).tiny), 1.0)

    def unit(self, mean: float, std: float) -> float:
        """Return the slope squared by the second derivative at the mean, see `Loss.unit`."""
        at, step = self.start(np.full((3, 1), mean)), 2.0**-10
        at += np.array([[-step], [step], [0.0]])
        slope = np.empty((3, 1))
        self.evaluate(np.array([mean, mean, mean + std]), at, None, slope)
        return float(slope[2, 0] ** 2 * 2 * step / (slope[1, 0] - slope[0, 0]))
