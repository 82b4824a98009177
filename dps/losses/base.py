"""The interface of a loss: targets, a weighted sum, derivatives and probabilities.

Classes are given as codes 0 to C - 1.
"""

from abc import ABC
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dps._kernels.losses import LossKernel
from dps._native import written_in_python
from dps._parameters import Configuration

Task = Literal["classification", "regression"]


def as_columns(y: Any) -> Any:
    """Return ``y`` with two dimensions, a vector as one column.

    y: ndarray of shape (n,) or (n, k).
    Returns ndarray of shape (n, 1) or (n, k).

    Examples
    --------
    >>> import numpy as np
    >>> as_columns(np.zeros(3)).shape
    (3, 1)
    """
    return y if y.ndim == 2 else y[:, None]


#: Raw outputs between which jumps of the derivative are searched, and how often each interval is
#: halved.
_GRID = np.exp2(np.arange(-20, 40, 1 / 16))
_CUTS = 36


def _bend_of(loss: "Loss") -> float:
    """Return the largest second derivative near zero, from derivatives; infinite with a jump.

    Intervals between raw outputs are halved, and the half with the larger change of the derivative
    is halved again. A change that remains is a jump.
    """
    if loss.task == "regression":
        targets = np.array([0.0, 1.0, -1.0, 100.0])
        targets = targets[np.asarray(loss.allows(targets), bool)]
    else:
        loss = loss.for_classes(2)
        if loss.n_outputs(2) != 1:
            return inf
        targets = np.asarray(loss.targets(np.arange(2.0)), np.float64)
    found = 0.0
    for y in targets:

        def slope(raw: Any, y: float = y) -> Any:
            out = np.empty((len(raw), 1))
            loss.evaluate(np.full(len(raw), y), np.ascontiguousarray(raw[:, None]), None, out)
            return out[:, 0]

        with np.errstate(all="ignore"):
            points = y + np.r_[-_GRID[::-1], 0.0, _GRID]
            left, right = points[:-1], points[1:]
            at_left, at_right = slope(left), slope(right)
            change = np.abs(at_right - at_left)
            known = np.isfinite(change)
            near = known & (np.abs(left) <= 1) & (np.abs(right) <= 1)
            found = max(found, float((change / (right - left))[near].max(initial=0.0)))
            size = np.maximum(np.abs(at_left), np.abs(at_right))
            size = np.maximum(size, 1e-3 * size[near].max(initial=0.0))  # smaller ones are rounding
            for _ in range(_CUTS):
                middle = left + (right - left) / 2
                at_middle = slope(middle)
                first = np.abs(at_middle - at_left) >= np.abs(at_right - at_middle)
                left, right = np.where(first, left, middle), np.where(first, middle, right)
                at_left = np.where(first, at_left, at_middle)
                at_right = np.where(first, at_middle, at_right)
            left_over = np.abs(at_right - at_left)
        if (left_over[known] > 1e-6 * size[known]).any():
            return inf
    return found if found > 0 else inf


@dataclass(frozen=True)
class Units:
    """Units of y, raw outputs and losses, in which targets vary by about one.

    Gradients, penalties and tolerances of steps in these units do not depend on the units or the
    offset of y. Arrays are (k,), one number per output.

    Examples
    --------
    >>> from dps.losses import SquaredError
    >>> units = SquaredError()._units(np.array([5.0]), np.array([2.0]))
    >>> y = units.of_targets(np.array([7.0]))
    >>> y, units.targets(y), units.raw(y[:, None]), units.size
    (array([1.]), array([7.]), array([[7.]]), 4.0)
    """

    loss: "Loss"  # the loss in units
    size: float  # factor of a loss in units to one of y; the mean over several outputs
    # y is ``y_shift + y_scale * targets``.
    y_shift: NDArray[np.float64]
    y_scale: NDArray[np.float64]
    # Raw outputs are ``start + reach * outputs`` of a model whose outputs vary by about one; in
    # units they are ``output_shift + output_scale * outputs``.
    start: NDArray[np.float64]
    reach: NDArray[np.float64]
    output_shift: NDArray[np.float64]
    output_scale: NDArray[np.float64]

    def of_targets(self, y: Any) -> Any:
        """Return y in units."""
        return (np.asarray(y, np.float64) - self.y_shift) / self.y_scale

    def targets(self, targets: Any) -> Any:
        """Return y from targets in units."""
        return self.y_shift + self.y_scale * targets

    def raw(self, raw: Any) -> Any:
        """Return raw outputs from those in units."""
        outputs = (raw - self.output_shift) / self.output_scale
        return self.start + self.reach * outputs


@dataclass(frozen=True)
class Loss(Configuration, ABC):
    """A loss of a raw model output, summed over rows with weights.

    Attributes
    ----------
    name : str
        Its name for users.
    task : {"classification", "regression"}
    curvature : float
        The largest second derivative; for an exponential loss the one at a mean of 1. It is
        infinite if the derivative jumps. Quasi-Newton methods need a finite one, or a kernel that
        smooths kinks. For a loss written in Python it is found from the derivatives, see `bend`.
    domain : str or None
        Description of valid targets of a regression, see `allows`.
    kernel : LossKernel or None
        The kernel of `evaluate` and of native loops.

    Examples
    --------
    >>> import numpy as np
    >>> from dps.losses import SquaredError
    >>> out = np.empty((2, 1))
    >>> SquaredError().evaluate(np.array([1.0, 2.0]), np.array([[1.0], [4.0]]), None, out)
    2.0
    >>> out.ravel()
    array([0., 2.])
    """

    name: ClassVar[str]
    task: ClassVar[Task]
    curvature: ClassVar[float] = inf
    kernel: ClassVar[LossKernel | None] = None
    domain: ClassVar[str | None] = None
    _in_python: ClassVar[bool] = False
    #: Class in `sklearn.linear_model` with that loss; fields of the loss are its parameters.
    _peer: ClassVar[str | None] = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._in_python = written_in_python(cls, "evaluate", "kernel")

    @property
    def native(self) -> LossKernel | None:
        """The kernel, unless a subclass has written `evaluate` in Python."""
        return None if self._in_python else self.kernel

    @cached_property
    def bend(self) -> float:
        """`curvature`, or for a loss in Python what its derivatives show."""
        if self.curvature < inf or self.native is not None:
            return self.curvature
        try:
            return _bend_of(self)
        except Exception:  # training raises the error
            return inf

    def evaluate(self, y: Any, raw: Any, weight: Any, out: Any) -> float:
        """Return the weighted sum of losses and write their derivatives.

        A loss either has a kernel or writes this method.

        Parameters
        ----------
        y : ndarray of shape (n,) or (n, k)
            What `targets` returned, or the values of a regression.
        raw : ndarray of shape (n, k)
            C-contiguous, float32 or float64 as all others.
        weight : ndarray of shape (n,) or None
            One weight a row.
        out : ndarray of shape (n, k)
            Receives the weighted derivatives with respect to ``raw``.

        Returns
        -------
        float
        """
        if self.kernel is None:
            raise NotImplementedError(f"{type(self).__name__} has neither evaluate nor a kernel")
        return self.kernel.evaluate(as_columns(y), raw, weight, out)

    def allows(self, y: Any) -> Any:
        """Return which targets of a regression are in the loss's domain.

        Parameters
        ----------
        y : ndarray of any shape

        Returns
        -------
        ndarray of bool of that shape
        """
        return np.ones(np.shape(y), bool)

    def mean(self, raw: Any) -> Any:
        """Return the predictions of a regression: raw outputs, or the inverse of the link.

        Parameters
        ----------
        raw : ndarray of shape (n, k)

        Returns
        -------
        ndarray of shape (n, k)
        """
        return raw

    def start(self, mean: Any) -> Any:
        """Return the raw outputs that a regression starts from.

        Parameters
        ----------
        mean : ndarray of shape (k,)
            Means of the targets.

        Returns
        -------
        ndarray of shape (k,)
        """
        return np.asarray(mean, np.float64)

    def reach(self, mean: Any, std: Any) -> Any:
        """Return the standard deviation of raw outputs that corresponds to that of the targets.

        Parameters
        ----------
        mean, std : ndarray of shape (k,)
            Means and standard deviations of the targets.

        Returns
        -------
        ndarray of shape (k,)
        """
        return std

    def unit(self, mean: float, std: float) -> float:
        """Return the scale of `tol` in a regression.

        It is the squared derivative of the loss for a prediction that is one standard deviation
        off.

        Parameters
        ----------
        mean, std : float
            Mean and standard deviation of the targets.

        Returns
        -------
        float
        """
        slope = np.empty((1, 1))
        self.evaluate(np.array([std]), np.zeros((1, 1)), None, slope)
        return float(slope[0, 0] ** 2)

    def _units(self, start: NDArray[np.float64], reach: NDArray[np.float64]) -> Units:
        """Return units for outputs that start at `start` and vary by `reach`; by default of y.

        Several outputs count alike. If the loss has a width, they share it and therefore a unit.
        """
        zeros, ones = np.zeros_like(start), np.ones_like(start)
        return Units(self, 1.0, zeros, ones, start, reach, start, reach)

    def targets(self, codes: Any) -> Any:
        """Return the targets for `evaluate` from class codes.

        Parameters
        ----------
        codes : ndarray of shape (n,)
            Class codes 0..C-1 in the floating dtype of the model.

        Returns
        -------
        ndarray of shape (n,)
        """
        return codes

    def for_classes(self, n_classes: int) -> "Loss":
        """Return the loss for this many classes.

        Parameters
        ----------
        n_classes : int

        Returns
        -------
        Loss
        """
        return self

    def n_outputs(self, n_classes: int) -> int:
        """Return the number of raw outputs: 1 for two classes, else one per class.

        Parameters
        ----------
        n_classes : int

        Returns
        -------
        int
        """
        return 1 if n_classes <= 2 else n_classes

    @property
    def has_probabilities(self) -> bool:
        """True if raw outputs can be turned into probabilities."""
        return False

    def probabilities(self, raw: Any) -> Any:
        """Return class probabilities.

        Parameters
        ----------
        raw : ndarray of shape (n, k)

        Returns
        -------
        ndarray of shape (n, n_classes)

        Raises
        ------
        AttributeError
            If the loss has none, see `has_probabilities`.
        """
        raise AttributeError(f"the loss {self.name!r} has no probabilities")
