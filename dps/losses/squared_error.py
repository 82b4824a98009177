"""The squared loss. It must not know models."""

from dataclasses import dataclass
from typing import ClassVar

from dps._kernels.losses import LossKernel
from dps.losses.base import Loss, Task

__all__ = ["SquaredError"]


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
