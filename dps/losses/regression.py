"""Losses of numbers. Nothing here may know models."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dps._kernels.losses import LossKernel
from dps._parameters import check_real
from dps.losses.base import Loss, Task


@dataclass(frozen=True)
class SquaredError(Loss):
    r"""Half of the squared error, :math:`(f - y)^2 / 2`, as ``SGDRegressor``.

    Examples
    --------
    >>> import numpy as np
    >>> out = np.empty((1, 1))
    >>> SquaredError().evaluate(np.array([1.0]), np.array([[3.0]]), None, out), out.item()
    (2.0, 2.0)
    """

    name: ClassVar[str] = "squared_error"
    task: ClassVar[Task] = "regression"
    curvature: ClassVar[float] = 1.0
    kernel: ClassVar[LossKernel] = LossKernel("squared")


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


@dataclass(frozen=True)
class Poisson(LogLinkLoss):
    r"""Half of the Poisson deviance, :math:`e^f - y f`, but for a constant of y.

    The mean is :math:`e^f`, and y is a count or a frequency: 0 or more. As
    ``sklearn.linear_model.PoissonRegressor``.

    Examples
    --------
    >>> import numpy as np
    >>> out = np.empty((1, 1))
    >>> Poisson().evaluate(np.array([3.0]), np.array([[0.0]]), None, out), out.item()
    (1.0, -2.0)
    """

    name: ClassVar[str] = "poisson"
    kernel: ClassVar[LossKernel] = LossKernel("poisson")
    domain: ClassVar[str] = "0 or more"

    def allows(self, y: Any) -> Any:
        """Return True for each target that is not negative, see `Loss.allows`."""
        return np.asarray(y) >= 0


@dataclass(frozen=True)
class Gamma(LogLinkLoss):
    r"""Half of the gamma deviance, :math:`f + y e^{-f}`, but for a constant of y.

    The mean is :math:`e^f`, and y is positive: an amount or a duration. As
    ``sklearn.linear_model.GammaRegressor``.

    Examples
    --------
    >>> import numpy as np
    >>> out = np.empty((1, 1))
    >>> Gamma().evaluate(np.array([3.0]), np.array([[0.0]]), None, out), out.item()
    (3.0, -2.0)
    """

    name: ClassVar[str] = "gamma"
    kernel: ClassVar[LossKernel] = LossKernel("gamma")
    domain: ClassVar[str] = "positive"

    def allows(self, y: Any) -> Any:
        """Return True for each positive target, see `Loss.allows`."""
        return np.asarray(y) > 0
