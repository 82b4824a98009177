"""The Huber loss. It must not know models."""

from dataclasses import dataclass
from typing import ClassVar

from dps._kernels.losses import LossKernel
from dps._parameters import check_real
from dps.losses.base import Loss, Task

__all__ = ["Huber"]


@dataclass(frozen=True)
class Huber(Loss):
    r"""The squared error near zero, linear beyond (Huber, 1964).

    .. math:: r^2 / 2 \text{ if } |r| \le \epsilon, \quad
        \epsilon |r| - \epsilon^2 / 2 \text{ otherwise}, \qquad r = f - y

    As ``SGDRegressor(loss="huber")``; :math:`\epsilon` is in the units of y.

    Parameters
    ----------
    epsilon : float, default=0.1
        Not negative.

    Examples
    --------
    >>> import numpy as np
    >>> out = np.empty((1, 1))
    >>> Huber().evaluate(np.array([1.0]), np.array([[3.0]]), None, out), out.item()
    (0.195, 0.1)
    """

    name: ClassVar[str] = "huber"
    task: ClassVar[Task] = "regression"
    curvature: ClassVar[float] = 1.0

    epsilon: float = 0.1

    def __post_init__(self) -> None:
        check_real(self, "epsilon", 0.0, float("inf"))

    @property
    def kernel(self) -> LossKernel:  # type: ignore[override]
        """The kernel ``huber``."""
        return LossKernel("huber", self.epsilon)
