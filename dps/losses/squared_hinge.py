"""The squared hinge loss. It must not know models."""

from dataclasses import dataclass
from typing import ClassVar

from dps._kernels.losses import LossKernel
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
    kernel: ClassVar[LossKernel] = LossKernel("squared_hinge")
