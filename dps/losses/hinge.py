"""The hinge loss. It must not know models."""

from dataclasses import dataclass
from typing import ClassVar

from dps._kernels.losses import LossKernel
from dps.losses.margin import MarginLoss

__all__ = ["Hinge"]


@dataclass(frozen=True)
class Hinge(MarginLoss):
    r"""The hinge loss of a linear support vector machine, :math:`\max(0, 1 - y f)`.

    With :math:`y` in {-1, +1}, as ``SGDClassifier(loss="hinge")``.

    Examples
    --------
    >>> import numpy as np
    >>> out = np.empty((1, 1))
    >>> Hinge().evaluate(np.array([1.0]), np.array([[0.5]]), None, out), out.item()
    (0.5, -1.0)
    """

    name: ClassVar[str] = "hinge"
    kernel: ClassVar[LossKernel] = LossKernel("hinge")
