"""Half of the Poisson deviance. It must not know models."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dps._kernels.losses import LossKernel
from dps.losses.log_link import LogLinkLoss

__all__ = ["Poisson"]


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
        """Return what is not negative, see `Loss.allows`."""
        return np.asarray(y) >= 0
