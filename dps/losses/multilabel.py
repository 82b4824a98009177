"""A binary loss for each of the labels a row may have. It must not know which loss that is."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dps._kernels.losses import LossKernel
from dps.losses.base import Loss, Task, as_columns
from dps.losses.margin import MarginLoss

__all__ = ["Multilabel"]


@dataclass(frozen=True)
class Multilabel(Loss):
    """The sum over labels of a binary loss, as scikit-learn's `MLPClassifier` sums log losses.

    Parameters
    ----------
    base : MarginLoss
        With a kernel.

    Examples
    --------
    >>> import numpy as np
    >>> from dps.losses import Hinge
    >>> loss, raw, out = Multilabel(Hinge()), np.array([[2.0, 0.5, -1.0]]), np.empty((1, 3))
    >>> loss.evaluate(loss.targets(np.array([[1.0, 0.0, 0.0]])), raw, None, out), out
    (1.5, array([[0., 1., 0.]]))
    """

    name: ClassVar[str] = "multilabel"
    task: ClassVar[Task] = "classification"
    base: MarginLoss

    def evaluate(self, y: Any, raw: Any, weight: Any, out: Any) -> float:
        """Return the weighted sum and write derivatives, see `Loss.evaluate`."""
        return self.base.evaluate(as_columns(y), raw, weight, out)

    @property
    def kernel(self) -> LossKernel | None:  # type: ignore[override]
        """That of the binary loss."""
        return self.base.native

    def targets(self, codes: Any) -> Any:
        """Return those of the binary loss, of zeros and ones of any shape."""
        return self.base.targets(codes)

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
        """Return the probability of each label, (n, k); they need not sum to one."""
        columns = [self.base.probabilities(column.reshape(-1, 1))[:, 1] for column in raw.T]
        return np.stack(columns, axis=1)
