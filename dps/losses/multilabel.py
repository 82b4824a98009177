"""A binary loss for each of the labels a row may have. It must not know which loss that is."""

from dataclasses import dataclass
from typing import Any, ClassVar

from dps.losses.columnwise import Columnwise

__all__ = ["Multilabel"]


@dataclass(frozen=True)
class Multilabel(Columnwise):
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

    def targets(self, codes: Any) -> Any:
        """Return those of the binary loss, of zeros and ones of any shape."""
        return self.base.targets(codes)
