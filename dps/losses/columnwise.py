"""A binary loss for each column of raw outputs. It must not know which loss that is."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dps._kernels.losses import LossKernel
from dps.losses.base import Loss, Task, as_columns
from dps.losses.margin import MarginLoss

__all__ = ["Columnwise"]


@dataclass(frozen=True)
class Columnwise(Loss):
    """The sum of a binary loss over columns; subclasses say what the columns are.

    Parameters
    ----------
    base : MarginLoss
    """

    task: ClassVar[Task] = "classification"
    base: MarginLoss

    def evaluate(self, y: Any, raw: Any, weight: Any, out: Any) -> float:
        """Return the weighted sum and write derivatives, see `Loss.evaluate`."""
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
        """Return the binary probability of each column, (n, k); they need not sum to one."""
        columns = [self.base.probabilities(column.reshape(-1, 1))[:, 1] for column in raw.T]
        return np.stack(columns, axis=1)
