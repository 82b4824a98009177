"""The squared hinge loss. It must not know models."""

from dataclasses import dataclass
from typing import Any, ClassVar

from dps._kernels import losses as kernels
from dps.losses.base import as_columns
from dps.losses.margin import MarginLoss

__all__ = ["SquaredHinge"]


@dataclass(frozen=True)
class SquaredHinge(MarginLoss):
    r"""The squared hinge loss, :math:`\max(0, 1 - y f)^2`.

    With :math:`y` in {-1, +1}, as ``SGDClassifier(loss="squared_hinge")``.

    Examples
    --------
    >>> import numpy as np
    >>> out = np.empty((1, 1))
    >>> SquaredHinge().evaluate(np.array([1.0]), np.array([[0.5]]), None, out), out.item()
    (0.25, -1.0)
    """

    name: ClassVar[str] = "squared_hinge"
    curvature: ClassVar[float] = 2.0

    def evaluate(self, y: Any, raw: Any, weight: Any, out: Any) -> float:
        """Return the weighted sum and write derivatives, see `Loss.evaluate`."""
        return kernels.squared_hinge(as_columns(y), raw, weight, out)
