"""The log loss. It must not know models."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dps._kernels.losses import LossKernel
from dps.losses.base import Loss
from dps.losses.margin import MarginLoss
from dps.losses.softmax import Softmax

__all__ = ["LogLoss"]


@dataclass(frozen=True)
class LogLoss(MarginLoss):
    r"""The logistic loss, :math:`\log(1 + \exp(-y f))`.

    With :math:`y` in {-1, +1}; several classes are trained with one softmax.

    Examples
    --------
    >>> import numpy as np
    >>> out = np.empty((1, 1))
    >>> LogLoss().evaluate(np.array([1.0]), np.array([[0.0]]), None, out), out.item()
    (0.6931471805599453, -0.5)
    """

    name: ClassVar[str] = "log_loss"
    curvature: ClassVar[float] = 0.25
    kernel: ClassVar[LossKernel] = LossKernel("log")

    def for_classes(self, n_classes: int) -> Loss:
        """Return this loss for two classes, else the softmax, see `Loss.for_classes`."""
        return self if n_classes <= 2 else Softmax()

    @property
    def has_probabilities(self) -> bool:
        """True."""
        return True

    def probabilities(self, raw: Any) -> Any:
        """Return the logistic function of ``raw`` and its rest, see `Loss.probabilities`."""
        decay = np.exp(-np.abs(raw))
        larger, smaller = 1 / (1 + decay), decay / (1 + decay)
        return np.hstack([np.where(raw > 0, smaller, larger), np.where(raw > 0, larger, smaller)])
