"""A binary loss for each class against the others. It must not know which loss that is."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dps.losses.columnwise import Columnwise

__all__ = ["OneVsRest"]


@dataclass(frozen=True)
class OneVsRest(Columnwise):
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

    def probabilities(self, raw: Any) -> Any:
        """Return the binary probabilities divided by their sum, as scikit-learn's `SGDClassifier`.

        A row of zeros becomes uniform; see `Loss.probabilities`.
        """
        positive = super().probabilities(raw)
        total = positive.sum(axis=1, keepdims=True)
        positive[total[:, 0] == 0] = 1
        return positive / np.where(total == 0, raw.shape[1], total)
