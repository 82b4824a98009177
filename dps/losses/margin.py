"""What the binary losses of a margin ``z = y * raw`` share. It must not know a loss's formula."""

from dataclasses import dataclass
from typing import Any, ClassVar

from dps.losses.base import Loss, Task

__all__ = ["MarginLoss"]


@dataclass(frozen=True)
class MarginLoss(Loss):
    """A loss of ``y * raw`` with ``y`` in {-1, +1}; several classes are trained one-vs-rest.

    Examples
    --------
    >>> import numpy as np
    >>> from dps.losses import Hinge
    >>> Hinge().targets(np.array([0.0, 1.0]))
    array([-1.,  1.])
    >>> Hinge().for_classes(3)
    OneVsRest(base=Hinge())
    """

    task: ClassVar[Task] = "classification"

    def targets(self, codes: Any) -> Any:
        """Return -1 for code 0 and +1 for code 1, see `Loss.targets`."""
        return 2 * codes - 1

    def for_classes(self, n_classes: int) -> Loss:
        """Return this loss for two classes, else one-vs-rest, see `Loss.for_classes`."""
        from dps.losses.one_vs_rest import OneVsRest

        return self if n_classes <= 2 else OneVsRest(self)
