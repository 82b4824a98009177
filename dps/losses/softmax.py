"""The softmax cross entropy of several classes. It must not know models."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dps._kernels.losses import LossKernel
from dps.losses.base import Loss, Task

__all__ = ["Softmax"]


@dataclass(frozen=True)
class Softmax(Loss):
    r"""The multinomial log loss, :math:`\log \sum_k \exp f_k - f_c` for class code :math:`c`.

    Users reach it through the log loss; ``LogisticRegression`` minimises the same.

    Examples
    --------
    >>> import numpy as np
    >>> raw, out = np.zeros((1, 2)), np.empty((1, 2))
    >>> Softmax().evaluate(np.array([0.0]), raw, None, out), out
    (0.6931471805599453, array([[-0.5,  0.5]]))
    """

    name: ClassVar[str] = "softmax"
    task: ClassVar[Task] = "classification"
    curvature: ClassVar[float] = 0.25
    kernel: ClassVar[LossKernel] = LossKernel("softmax")

    def n_outputs(self, n_classes: int) -> int:
        """Return ``n_classes``, see `Loss.n_outputs`."""
        return n_classes

    @property
    def has_probabilities(self) -> bool:
        """True."""
        return True

    def probabilities(self, raw: Any) -> Any:
        """Return the softmax of each row, see `Loss.probabilities`."""
        powers = np.exp(raw - raw.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)
