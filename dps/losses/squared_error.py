"""The squared loss. It must not know models."""

from dataclasses import dataclass
from typing import Any, ClassVar

from dps._kernels import losses as kernels
from dps.losses.base import Loss, Task, as_columns

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

    def evaluate(self, y: Any, raw: Any, weight: Any, out: Any) -> float:
        """Return the weighted sum and write derivatives, see `Loss.evaluate`."""
        return kernels.squared(as_columns(y), raw, weight, out)
