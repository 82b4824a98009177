"""A binary loss for each class against the others. It must not know which loss that is."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dps._kernels.losses import LossKernel
from dps.losses.base import Loss, Task, as_columns
from dps.losses.margin import MarginLoss

__all__ = ["OneVsRest"]


@dataclass(frozen=True)
class OneVsRest(Loss):
    """The sum over classes of a binary loss of that class against the others.

    Parameters
    ----------
    base : MarginLoss
        Its kernel takes one column of class codes as one-vs-rest targets.

    Examples
    --------
    >>> import numpy as np
    >>> from dps.losses import Hinge
    >>> raw, out = np.array([[2.0, 0.5, -1.0]]), np.empty((1, 3))
    >>> OneVsRest(Hinge()).evaluate(np.array([1.0]), raw, None, out), out
    (3.5, array([[ 1., -1.,  0.]]))
    """

    name: ClassVar[str] = "one_vs_rest"
    task: ClassVar[Task] = "classification"
    base: MarginLoss

    def evaluate(self, y: Any, raw: Any, weight: Any, out: Any) -> float:
        """Return the weighted sum and write derivatives, see `Loss.evaluate`; ``y`` has codes."""
        return self.base.evaluate(as_columns(y), raw, weight, out)

    @property
    def kernel(self) -> LossKernel | None:  # type: ignore[override]
        """That of the binary loss."""
        return self.base.native

    def n_outputs(self, n_classes: int) -> int:
        """Return ``n_classes``, see `Loss.n_outputs`."""
        return n_classes

    @property
    def curvature(self) -> float:  # type: ignore[override]
        """The largest second derivative of the binary loss."""
        return self.base.curvature

    @property
    def has_probabilities(self) -> bool:
        """Whether the binary loss has probabilities."""
        return self.base.has_probabilities

    def probabilities(self, raw: Any) -> Any:
        """Return the binary probabilities divided by their sum, as scikit-learn's `SGDClassifier`.

        A row of zeros becomes uniform; see `Loss.probabilities`.
        """
        columns = [self.base.probabilities(column.reshape(-1, 1))[:, 1] for column in raw.T]
        positive = np.stack(columns, axis=1)
        total = positive.sum(axis=1, keepdims=True)
        positive[total[:, 0] == 0] = 1
        return positive / np.where(total == 0, raw.shape[1], total)
