"""The gamma deviance. It must not know models."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dps._kernels.losses import LossKernel
from dps.losses.log_link import LogLinkLoss

__all__ = ["Gamma"]


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
        """Return what is positive, see `Loss.allows`."""
        return np.asarray(y) > 0
