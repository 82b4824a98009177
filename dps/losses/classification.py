"""Losses of labels."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dps._kernels.losses import LossKernel
from dps.losses.base import Loss, Task, as_columns

#: Rows whose probabilities are computed together, so that temporary arrays stay in the cache.
_TOGETHER = 1 << 13


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
        return self if n_classes <= 2 else OneVsRest(self)


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


@dataclass(frozen=True)
class LogLoss(MarginLoss):
    r"""The logistic loss, :math:`\log(1 + \exp(-y f))`.

    With :math:`y` in {-1, +1}; several classes are trained with one softmax.

    Examples
    --------
    >>> import numpy as np
    >>> out = np.empty((1, 1))
    >>> LogLoss().evaluate(np.array([1.0]), np.array([[0.0]]), None, out), out.item()
    (0.6931471805599453, -0.5)
    """

    name: ClassVar[str] = "log_loss"
    _peer = "LogisticRegression"
    curvature: ClassVar[float] = 0.25
    kernel: ClassVar[LossKernel] = LossKernel("log")

    def for_classes(self, n_classes: int) -> Loss:
        """Return this loss for two classes, else the softmax, see `Loss.for_classes`.

        A subclass, which may compute something else, is trained one-vs-rest.
        """
        another = type(self) is not LogLoss
        return super().for_classes(n_classes) if n_classes <= 2 or another else Softmax()

    @property
    def has_probabilities(self) -> bool:
        """True."""
        return True

    def probabilities(self, raw: Any) -> Any:
        """Return the logistic function of ``raw`` and its rest, see `Loss.probabilities`."""
        found = np.empty((len(raw), 2), raw.dtype)
        for start in range(0, len(raw), _TOGETHER):
            some, out = raw[start : start + _TOGETHER, 0], found[start : start + _TOGETHER]
            decay = np.exp(-np.abs(some))
            larger, smaller = 1 / (1 + decay), decay / (1 + decay)
            out[:, 0] = np.where(some > 0, smaller, larger)
            out[:, 1] = np.where(some > 0, larger, smaller)
        return found


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
    _peer = "SGDClassifier"
    kernel: ClassVar[LossKernel] = LossKernel("hinge")


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
    _peer = "SGDClassifier"
    curvature: ClassVar[float] = 2.0
    kernel: ClassVar[LossKernel] = LossKernel("squared_hinge")


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
    _peer = "SGDClassifier"
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


@dataclass(frozen=True)
class Columnwise(Loss):
    """The sum of a binary loss over columns; subclasses define the columns."""

    task: ClassVar[Task] = "classification"
    base: MarginLoss

    def evaluate(self, y: Any, raw: Any, weight: Any, out: Any) -> float:
        """Return the weighted sum and write derivatives, see `Loss.evaluate`."""
        return self.base.evaluate(as_columns(y), raw, weight, out)

    @property
    def kernel(self) -> LossKernel | None:  # type: ignore[override]
        """The kernel of the binary loss."""
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
        """True if the binary loss has probabilities."""
        return self.base.has_probabilities

    def probabilities(self, raw: Any) -> Any:
        """Return the binary probability of each column, (n, k); they need not sum to one."""
        columns = [self.base.probabilities(column.reshape(-1, 1))[:, 1] for column in raw.T]
        return np.stack(columns, axis=1)


@dataclass(frozen=True)
class OneVsRest(Columnwise):
    """The sum over classes of a binary loss of that class against the others.

    base: its kernel takes one column of class codes as one-vs-rest targets.

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


@dataclass(frozen=True)
class Multilabel(Columnwise):
    """The sum over labels of a binary loss, as scikit-learn's `MLPClassifier` sums log losses.

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
        """Return the binary loss's targets for zeros and ones of any shape."""
        return self.base.targets(codes)
