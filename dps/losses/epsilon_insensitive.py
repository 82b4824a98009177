"""The epsilon-insensitive loss. It must not know models."""

from dataclasses import dataclass
from typing import ClassVar

from dps._kernels.losses import LossKernel
from dps._parameters import check_real
from dps.losses.base import Loss, Task

__all__ = ["EpsilonInsensitive"]


@dataclass(frozen=True)
class EpsilonInsensitive(Loss):
    r"""The absolute error beyond a tube, :math:`\max(0, |f - y| - \epsilon)` (Vapnik, 1995).

    As ``SGDRegressor(loss="epsilon_insensitive")``; :math:`\epsilon` is in the units of y.

    Parameters
    ----------
    epsilon : float, default=0.1
        Not negative.

    Examples
    --------
    >>> import numpy as np
    >>> out = np.empty((1, 1))
    >>> EpsilonInsensitive().evaluate(np.array([1.0]), np.array([[3.0]]), None, out), out.item()
    (1.9, 1.0)
    """

    name: ClassVar[str] = "epsilon_insensitive"
    task: ClassVar[Task] = "regression"

    epsilon: float = 0.1

    def __post_init__(self) -> None:
        check_real(self, "epsilon", 0.0, float("inf"))

    @property
    def kernel(self) -> LossKernel:  # type: ignore[override]
        """The kernel ``epsilon_insensitive``."""
        return LossKernel("epsilon_insensitive", self.epsilon)
