"""The quantile loss. It must not know models."""

from dataclasses import dataclass
from typing import ClassVar

from dps._kernels.losses import LossKernel
from dps._parameters import check_real
from dps.losses.base import Loss, Task

__all__ = ["Quantile"]


@dataclass(frozen=True)
class Quantile(Loss):
    r"""The pinball loss, whose minimum is a quantile of y (Koenker and Bassett, 1978).

    .. math:: q (y - f) \text{ if } y > f, \quad (1 - q) (f - y) \text{ otherwise}

    As ``sklearn.linear_model.QuantileRegressor``.

    Parameters
    ----------
    quantile : float, default=0.5
        Between 0 and 1: the share of y that is to be below what is predicted.

    Examples
    --------
    >>> import numpy as np
    >>> out = np.empty((1, 1))
    >>> Quantile(0.75).evaluate(np.array([3.0]), np.array([[1.0]]), None, out), out.item()
    (1.5, -0.75)
    """

    name: ClassVar[str] = "quantile"
    task: ClassVar[Task] = "regression"

    quantile: float = 0.5

    def __post_init__(self) -> None:
        check_real(self, "quantile", 0.0, 1.0, closed="neither")

    @property
    def kernel(self) -> LossKernel:  # type: ignore[override]
        """The kernel ``quantile``."""
        return LossKernel("quantile", self.quantile)
