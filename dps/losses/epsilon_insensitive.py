"""The epsilon-insensitive loss. It must not know models."""

from dataclasses import dataclass
from typing import Any, ClassVar

from dps._kernels import losses as kernels
from dps._parameters import check_real
from dps.losses.base import Loss, Task, as_columns

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

    def evaluate(self, y: Any, raw: Any, weight: Any, out: Any) -> float:
        """Return the weighted sum and write derivatives, see `Loss.evaluate`."""
        return kernels.epsilon_insensitive(as_columns(y), raw, weight, out, self.epsilon)
