"""Linear models of one or several outputs on dense and CSR rows."""

from contextlib import nullcontext
from copy import copy
from typing import Any, ClassVar, Self

import numpy as np

import dps._kernels.linear as kernels
from dps._checks import count, floats
from dps._cores import one_thread_each
from dps._kernels.coordinates import Standardised
from dps._kernels.linear_gradient import LinearGradient
from dps._native import written_in_python
from dps.losses import Loss, SquaredError
from dps.models.base import CSRRows, Rows
from dps.models.layout import Layout, Tensor

#: A deviation below this number of roundings of the mean counts as zero.
ROUNDINGS = 64
#: The least share of a curvature is this power of the dtype's rounding error. Along collinear
#: features gradients are rounding errors, and steps are as long as these over that share.
_ROUNDING = 0.75
#: Where rows are predicted well, a loss curves less than its bend, but a penalty does not. So the
#: penalty counts more: its directions are then not the steep ones, in which rounding errors would
#: grow.
_SURE = 4
#: Columns of a matrix up to which BLAS computes in the calling thread anyway.
_FEW = 32


class LinearModel:
    """``raw = X @ coef + intercept`` under a loss.

    Keeps a kernel with scratch memory, which is neither pickled nor safe to share: each replica has
    its own instance, used by one thread at a time.

    dtype: float32 or float64.
    centre, scale: ndarray of shape (n_features,), the features' own: ``raw = ((X - centre) / scale)
        @ coef + intercept``. No row is touched. A centre asks for an intercept; a scale is
        positive.

    Examples
    --------
    >>> import numpy as np
    >>> from dps.losses import SquaredError
    >>> from dps.models.base import DenseRows
    >>> model = LinearModel(2, 1, SquaredError())
    >>> params, grad = model.initial(), np.zeros(3)
    >>> X, y = DenseRows(np.eye(2)), np.array([1.0, 3.0])
    >>> model.loss_gradient(params, X, y, None, grad), grad
    (5.0, array([-1., -3., -4.]))
    """

    draws: ClassVar[bool] = False
    by_blas: ClassVar[bool] = False
    _in_python: ClassVar[bool] = False

    def __init__(
        self,
        n_features: int,
        n_outputs: int,
        loss: Loss,
        fit_intercept: bool = True,
        dtype: Any = np.float64,
        centre: Any = None,
        scale: Any = None,
    ) -> None:
        self.n_features = n_features
        self.n_outputs = n_outputs
        self.loss = loss
        self.fit_intercept = fit_intercept
        self.centre = centre
        self.scale = scale
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.float32, np.float64):
            raise ValueError(
                "The 'dtype' parameter of LinearModel must be float32 or float64. "
                f"Got {dtype!r} instead."
            )
        if centre is not None and not fit_intercept:
            raise ValueError("a LinearModel without an intercept has no centre")
        count(n_features, "n_features", 1)
        count(n_outputs, "n_outputs", 1)
        for name, each in (("centre", centre), ("scale", scale)):
            if each is not None:
                floats(each, name, n_features)
        if scale is not None and not (scale > 0).all():
            raise ValueError("scale is not positive")
        tensors = [Tensor("coef", (n_features, n_outputs), penalised=True)]
        if fit_intercept:
            tensors.append(Tensor("intercept", (n_outputs,), penalised=False))
        self.layout = Layout(tuple(tensors))
        self._kernel: LinearGradient | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._in_python = written_in_python(cls, "loss_gradient", "kernel")

    def __getstate__(self) -> dict[str, Any]:
        return {
            "n_features": self.n_features,
            "n_outputs": self.n_outputs,
            "loss": self.loss,
            "fit_intercept": self.fit_intercept,
            "dtype": self.dtype,
            "centre": self.centre,
            "scale": self.scale,
            "layout": self.layout,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._kernel = None

    @property
    def kernel(self) -> LinearGradient | None:
        """The gradient for native loops.

        None for a loss in Python, and if a subclass has written `loss_gradient` in Python.
        """
        return None if self._in_python else self._gradient

    @property
    def _gradient(self) -> LinearGradient | None:
        if self._kernel is None and self.loss.native is not None:
            self._kernel = LinearGradient(
                self.n_features, self.n_outputs, self.loss.native, self.fit_intercept,
                self.dtype == np.float32, self.centre, self.scale,
            )  # fmt: skip
        return self._kernel

    def initial(self, rng: Any = None) -> Any:
        """Return zeros, see `Model.initial`."""
        return np.zeros(self.layout.size, self.dtype)

    def loss_gradient(
        self,
        params: Any,
        X: Rows,
        y: Any,
        weight: Any,
        out: Any,
        rng: Any = None,
    ) -> float:
        """Add the gradient to ``out`` and return the sum of losses, see `Model.loss_gradient`."""
        gradient = self._gradient
        if gradient is not None:
            block = X.block(y, weight)
            return gradient.add_batch(block, X.order, 0, len(X), params, out)
        raw = self.raw(params, X)
        derivative = np.empty_like(raw)
        loss = self.loss.evaluate(y, raw, weight, derivative)
        coef, intercept = self._tensors(out)
        plain = coef if self.scale is None else np.zeros_like(coef)
        _backward(X, derivative, plain, intercept)
        if self.centre is not None:
            plain -= np.outer(self.centre, derivative.sum(axis=0))
        if self.scale is not None:
            coef += plain / self.scale[:, None]
        return loss

    def raw(self, params: Any, X: Rows) -> Any:
        """Return the raw outputs in a new array, see `Model.raw`."""
        out = np.empty((len(X), self.n_outputs), self.dtype)
        _forward(X, *self._tensors(self.plain(params)), out)
        return out

    def of_features(self, centre: Any, scale: Any) -> Self:
        """Return the model with another centre and scale; None: zero, and one."""
        other = copy(self)
        other.centre, other.scale, other._kernel = centre, scale, None
        return other

    def plain(self, params: Any) -> Any:
        """Return the parameters for unscaled features, with the same raw outputs."""
        if self.centre is None and self.scale is None:
            return params
        moved = np.array(params)
        coef, intercept = self._tensors(moved)
        if self.scale is not None:
            coef /= self.scale[:, None]
        if self.centre is not None:
            intercept -= (self.centre @ coef).astype(self.dtype)
        return moved

    def from_plain(self, params: Any) -> Any:
        """Return this model's parameters from coefficients of unscaled features."""
        moved = np.array(params)
        coef, intercept = self._tensors(moved)
        if self.centre is not None:
            intercept += (self.centre @ coef).astype(self.dtype)
        if self.scale is not None:
            coef *= self.scale[:, None]
        return moved

    def standardised(
        self, mean: Any, variance: Any, l2: Any, width: float = 0.0, products: Any = None
    ) -> Standardised:
        """Return coordinates in which the objective curves by about one in all directions.

        The penalty adds curvature like additional variance of a feature. A feature that neither
        varies nor is penalised is left alone.

        mean, variance: ndarray of shape (n_features,), of the features as they are.
        width: width of the parabolas in place of the loss's kinks; 0: it has none.
        products: ndarray of shape (n_features, n_features), the mean products of the features in
            standard deviations from their means, over some rows; None: taken as independent.
        """
        bend = 1 / width if width else self.loss.bend
        # The rounding error of a constant feature is not variance.
        rounding = ROUNDINGS * float(np.finfo(self.dtype).eps)
        variance = np.where(variance > (rounding * mean) ** 2, variance, 0.0)
        unit = np.ones(self.n_features) if self.scale is None else self.scale
        if self.fit_intercept:
            shift, mean = np.zeros_like(mean), mean if self.centre is None else mean - self.centre
        else:  # without an intercept nothing absorbs the means
            shift, mean = mean, np.zeros_like(mean)
        if products is not None and not isinstance(self.loss, SquaredError):
            l2 = _SURE * l2
        curvature = bend * (variance + shift**2) / unit**2 + l2
        scale = np.sqrt(np.where(curvature > 0, curvature, 1.0))
        mix, unmix = None, None
        if products is not None:
            in_scale = bend**0.5 / (unit * scale)
            spread, shift = np.sqrt(variance) * in_scale, shift * in_scale
            mix, unmix = _roots(
                products * np.outer(spread, spread) + np.outer(shift, shift),
                float(np.finfo(self.dtype).eps) ** _ROUNDING,
            )
        return Standardised(
            mean / unit, scale, bend**0.5, self.n_outputs, self.fit_intercept, mix, unmix
        )

    def _tensors(self, flat: Any) -> tuple[Any, Any]:
        views = self.layout.views(flat)
        return views["coef"], views.get("intercept")


def _roots(curvature: Any, least: float) -> tuple[Any, Any]:
    """Return the symmetric roots of a matrix's inverse and of the matrix.

    The diagonal is set to one, including the penalty. Curvatures below the share `least` of the
    largest one may be rounding, and are raised to it.
    """
    np.fill_diagonal(curvature, 1.0)
    with one_thread_each() if len(curvature) > _FEW else nullcontext():
        found, directions = np.linalg.eigh(curvature)
        root = np.sqrt(np.maximum(found, least * found[-1]))
        return (directions / root) @ directions.T, (directions * root) @ directions.T


def _forward(X: Rows, coef: Any, intercept: Any, out: Any) -> None:
    if isinstance(X, CSRRows):
        kernels.csr_forward(X.data, X.indices, X.indptr, X.order, coef, intercept, out)
    else:
        kernels.dense_forward(X.values, X.order, coef, intercept, out)


def _backward(X: Rows, d: Any, grad_coef: Any, grad_intercept: Any) -> None:
    if isinstance(X, CSRRows):
        kernels.csr_backward(X.data, X.indices, X.indptr, X.order, d, grad_coef, grad_intercept)
    else:
        kernels.dense_backward(X.values, X.order, d, grad_coef, grad_intercept)
