"""The modified Huber loss. It must not know models."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dps._kernels.losses import LossKernel
from dps.losses.margin import MarginLoss

__all__ = ["ModifiedHuber"]


@dataclass(frozen=True)
class ModifiedHuber(MarginLoss):
    r"""The modified Huber loss (Zhang, 2004), a squared hinge that is linear for outliers.

    .. math:: \max(0, 1 - y f)^2 \text{ if } y f \ge -1, \quad -4 y f \text{ otherwise}

    With :math:`y` in {-1, +1}, as ``SGDClassifier(loss="modified_huber")``.

    Examples
    --------
    >>> import numpy as np
    >>> out = np.empty((1, 1))
    >>> ModifiedHuber().evaluate(np.array([1.0]), np.array([[-2.0]]), None, out), out.item()
    (8.0, -4.0)
    """

    name: ClassVar[str] = "modified_huber"
    curvature: ClassVar[float] = 2.0
    kernel: ClassVar[LossKernel] = LossKernel("modified_huber")

    @property
    def has_probabilities(self) -> bool:
        """True."""
        return True

    def probabilities(self, raw: Any) -> Any:
        """Return ``(clip(raw, -1, 1) + 1) / 2`` and its rest, see `Loss.probabilities`."""
        positive = (np.clip(raw, -1, 1) + 1) / 2
        return np.hstack([1 - positive, positive])
