"""Losses of numbers."""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dps._kernels.losses import LossKernel
from dps._parameters import check_real
from dps.losses.base import Loss, Task, Units

_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _InUnits(Loss):
    """A loss of targets and raw outputs in their units."""

    name: ClassVar[str] = "in_units"
    task: ClassVar[Task] = "regression"

    kernel: LossKernel  # type: ignore[misc]


def _standard(loss: Loss, size: float, start: _Floats, reach: _Floats) -> Units:
    """Return units in which outputs start at zero and vary by one."""
    return Units(loss, size, start, reach, start, reach, np.zeros_like(start), np.ones_like(start))


def _shared(reach: _Floats) -> float:
    """Return the common unit of several outputs."""
    return math.sqrt(float(np.mean(reach**2)))


def _in_one_unit(loss: Loss, width: float, size: float, start: _Floats, reach: _Floats) -> Units:
    """Return units of a loss with one width for all outputs."""
    assert loss.native is not None
    shared, zeros = _shared(reach), np.zeros_like(start)
    narrow = _InUnits(LossKernel(loss.native.name, width / shared))
    return Units(
        narrow, size, start, np.full_like(reach, shared), start, reach, zeros, reach / shared
    )


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
    _peer = "Ridge"

    def _units(self, start: _Floats, reach: _Floats) -> Units:
        return _standard(self, _shared(reach) ** 2, start, reach)


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
    _peer = "SGDRegressor"
    task: ClassVar[Task] = "regression"
    curvature: ClassVar[float] = 1.0

    epsilon: float = 0.1

    def __post_init__(self) -> None:
        check_real(self, "epsilon", 0.0, float("inf"))

    @property
    def kernel(self) -> LossKernel:  # type: ignore[override]
        """The kernel ``huber``."""
        return LossKernel("huber", self.epsilon)

    def _units(self, start: _Floats, reach: _Floats) -> Units:
        return _in_one_unit(self, self.epsilon, _shared(reach) ** 2, start, reach)


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
    _peer = "SGDRegressor"
    task: ClassVar[Task] = "regression"

    epsilon: float = 0.1

    def __post_init__(self) -> None:
        check_real(self, "epsilon", 0.0, float("inf"))

    @property
    def kernel(self) -> LossKernel:  # type: ignore[override]
        """The kernel ``epsilon_insensitive``."""
        return LossKernel("epsilon_insensitive", self.epsilon)

    def _units(self, start: _Floats, reach: _Floats) -> Units:
        return _in_one_unit(self, self.epsilon, _shared(reach), start, reach)


@dataclass(frozen=True)
class Quantile(Loss):
    r"""The pinball loss, whose minimum is a quantile of y (Koenker and Bassett, 1978).

    .. math:: q (y - f) \text{ if } y > f, \quad (1 - q) (f - y) \text{ otherwise}

    As ``sklearn.linear_model.QuantileRegressor``.

    Parameters
    ----------
    quantile : float, default=0.5
        Between 0 and 1: the share of y that should lie below the prediction.

    Examples
    --------
    >>> import numpy as np
    >>> out = np.empty((1, 1))
    >>> Quantile(0.75).evaluate(np.array([3.0]), np.array([[1.0]]), None, out), out.item()
    (1.5, -0.75)
    """

    name: ClassVar[str] = "quantile"
    _peer = "QuantileRegressor"
    task: ClassVar[Task] = "regression"

    quantile: float = 0.5

    def __post_init__(self) -> None:
        check_real(self, "quantile", 0.0, 1.0, closed="neither")

    @property
    def kernel(self) -> LossKernel:  # type: ignore[override]
        """The kernel ``quantile``."""
        return LossKernel("quantile", self.quantile)

    def _units(self, start: _Floats, reach: _Floats) -> Units:
        return _standard(self, float(reach.mean()), start, reach)


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

    def _units(self, start: _Floats, reach: _Floats) -> Units:
        """Return units of the mean."""
        assert self.native is not None
        means, zeros = np.exp(start), np.zeros_like(start)
        size = float(means.mean())
        divided = _InUnits(LossKernel(self.native.name, math.log(size)))
        return Units(divided, size, zeros, means, start, reach, zeros, reach)


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
    _peer = "PoissonRegressor"
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
    _peer = "GammaRegressor"
    kernel: ClassVar[LossKernel] = LossKernel("gamma")
    domain: ClassVar[str] = "positive"

    def allows(self, y: Any) -> Any:
        """Return True for each positive target, see `Loss.allows`."""
        return np.asarray(y) > 0

    def _units(self, start: _Floats, reach: _Floats) -> Units:
        """Return units of the mean, which do not change the loss."""
        return replace(super()._units(start, reach), size=1.0)
