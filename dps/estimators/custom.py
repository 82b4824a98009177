"""Estimators around a model that a user has written in NumPy."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Real
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted

from dps.data.arrays import side_by_side
from dps.data.partitions import is_dask
from dps.estimators.base import DistributedEstimator
from dps.estimators.custom_family import (
    CustomFamily,
    CustomRaw,
    ModelLossOfLabels,
    ModelLossOfNumbers,
    Shape,
    probabilities,
)
from dps.estimators.docs import ATTRIBUTES, PLACES, ROWS, STEPS, documented
from dps.estimators.family import Finish
from dps.estimators.making import Maker, takes_options
from dps.estimators.tasks import AnyClassifier, AnyRegressor
from dps.losses import Loss
from dps.models import Arrays, CustomModel
from dps.optimizers.schedules import Schedule
from dps.training.state import TrainState

__all__ = ["ModelClassifier", "ModelRegressor", "Stepped"]

_MODEL = """
model : object or callable
    With `layout`, ``init(rng)``, ``loss_gradient(params, batch, out)`` and ``raw(params, batch)``,
    see docs/models.md; :func:`dps.models.check` says what is wrong with one. Or a class or function
    that makes one, called with the number of columns and of classes or outputs, and with
    ``hidden=64`` where the estimator has ``model__hidden=64``.
"""

_FITTED = """
model_ : object
    The model; `model` itself, or what it has made.
params_ : dict of str to array
    Its tensors.
"""
_shared = documented(
    model=_MODEL, steps=STEPS, rows=ROWS, places=PLACES, fitted=_FITTED, attributes=ATTRIBUTES
)


@dataclass(eq=False, repr=False, kw_only=True)
class Stepped(Maker, DistributedEstimator):
    """What estimators share whose models are users' own, and take stochastic steps."""

    optimizer: Any = "auto"
    learning_rate: Any = "auto"
    alpha: float = 0.0
    max_iter: int = 100

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "optimizer": "no_validation",  # who fits says which of PyTorch's is which of dps's
        "learning_rate": [Interval(Real, 0, None, closed="neither"), str, Schedule],
        "alpha": [Interval(Real, 0, None, closed="left")],
    }

    def _family(self) -> CustomFamily:
        return CustomFamily(self, self._build, self._attributes)

    _is_own: ClassVar[bool] = True

    def _takes(self) -> str:
        """What the model is given of rows."""
        raise NotImplementedError

    #: What is known of the arrays that were given to the fit at work, where X is no table.
    _arrays = cast("Arrays | None", None)

    def _table(self, X: Any, fitting: bool = False) -> Any:
        """Arrays become a matrix; a list of lists, such as of arrays of several lengths, a column.

        Raises
        ------
        ValueError
            The arrays are others than those of the fit.
        """
        given = Arrays.of(X)
        if fitting:
            self._arrays = given
        if given is not None:
            if self._takes() != "dense":
                raise ValueError(
                    f"X has rows of the shape {given.sizes}: a model that takes {self._takes()!r} "
                    "has vectors"
                )
            return self._matrix(X, given, self._arrays)
        lists = isinstance(X, list | tuple) and len(X) > 0 and not is_dask(X)
        if self._takes() == "columns" and lists and all(np.ndim(row) == 1 for row in X):
            import pandas as pd

            return pd.DataFrame({"x0": pd.Series([list(row) for row in X], dtype=object)})
        return super()._table(X, fitting)

    def _matrix(self, X: Any, given: Arrays, known: Any) -> Any:
        """What stands for arrays, where they are as those that are known."""
        same = isinstance(known, Arrays) and (given.shapes, given.names) == (
            known.shapes,
            known.names,
        )
        if not same:
            wanted = known.sizes if isinstance(known, Arrays) else self.n_features_in_
            raise ValueError(
                f"X has rows of the shape {given.sizes}, but {type(self).__name__} is expecting "
                f"{wanted}"
            )
        return side_by_side(X)

    def _apply(self, X: Any, finish: Finish, columns: Any = None) -> Any:
        check_is_fitted(self)
        given = Arrays.of(X)
        if given is not None:
            X = self._matrix(X, given, self._model.shape.columns)
        return super()._apply(X, finish, columns)

    def _build(self, shape: Shape) -> Any:
        """The model of a fit."""
        raise NotImplementedError

    def _attributes(self, model: Any, params: NDArray[np.floating]) -> dict[str, Any]:
        """What users see of it."""
        raise NotImplementedError

    def _raw(self) -> CustomRaw:
        return CustomRaw(self._model, self._params)

    def _warm(self) -> TrainState | None:
        return TrainState(self._params, self._model) if hasattr(self, "_model") else None


@dataclass(eq=False, repr=False, kw_only=True)
class _Custom(Stepped):
    """What the two estimators share."""

    model: Any = field(kw_only=False)

    _code: ClassVar[tuple[str, ...]] = ("model",)
    _parameter_constraints: ClassVar[dict[str, Any]] = {"model": "no_validation"}

    def _takes(self) -> str:
        return str(getattr(self.model, "takes", "dense"))

    def _build(self, shape: Shape) -> CustomModel:
        given = self.model
        makes = isinstance(given, type) or (callable(given) and not hasattr(given, "layout"))
        options = self._options(makes)
        if makes:
            given = shape.made(given, options)
        missing = [
            name for name in ("layout", "init", "loss_gradient", "raw") if not hasattr(given, name)
        ]
        if missing:
            raise TypeError(
                f"The 'model' parameter of {type(self).__name__} must be a model, or make one: "
                f"{given!r} has no {' and no '.join(missing)}."
            )
        takes = getattr(given, "takes", "dense")
        if takes != self._takes():
            raise ValueError(
                f"{given!r} takes {takes!r}, which {self.model!r} does not say: set the attribute "
                "'takes' of what makes the model, too"
            )
        dtype = getattr(given, "dtype", shape.dtype)
        model = CustomModel(
            given, shape.n_features, shape.n_outputs, shape.classification, dtype, shape.columns
        )
        model.shape = shape
        return model

    def _attributes(self, model: CustomModel, params: NDArray[np.floating]) -> dict[str, Any]:
        tensors = {name: each.copy() for name, each in model.layout.views(params).items()}
        return {"model_": model.model, "params_": tensors}


@takes_options
@_shared
@dataclass(eq=False, repr=False, kw_only=True)
class ModelClassifier(_Custom, AnyClassifier):
    """A classifier around a model of one's own, trained where its data lies.

    The model's raw outputs are one a class, or one for two classes. Probabilities are their
    softmax, or the logistic function, unless the model has a method ``probabilities(raw)``.

    Parameters
    ----------
    <model>
    class_weight : dict, "balanced" or None, default=None
    <steps>
    <rows>
    <places>

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
    <fitted>
    <attributes>

    Examples
    --------
    >>> import numpy as np
    >>> from dps import ModelClassifier
    >>> class Softmax:
    ...     def __init__(self, n_features, n_classes):
    ...         self.layout = {"coef": (n_features, n_classes), "bias": (n_classes,)}
    ...
    ...     def init(self, rng):
    ...         return {"coef": 0.0, "bias": 0.0}
    ...
    ...     def raw(self, params, batch):
    ...         return batch.X @ params["coef"] + params["bias"]
    ...
    ...     def loss_gradient(self, params, batch, out):
    ...         raw = self.raw(params, batch)
    ...         powers = np.exp(raw - raw.max(axis=1, keepdims=True))
    ...         slope = powers / powers.sum(axis=1, keepdims=True)
    ...         rows = np.arange(batch.rows)
    ...         losses = -np.log(slope[rows, batch.y])
    ...         slope[rows, batch.y] -= 1
    ...         slope = batch.weighted(slope)
    ...         out["coef"] += batch.X.T @ slope
    ...         out["bias"] += slope.sum(axis=0)
    ...         return batch.weighted(losses).sum()
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = ModelClassifier(Softmax, learning_rate=0.1, max_iter=50, tol=None, random_state=0)
    >>> bool(model.fit(X, y).score(X, y) > 0.95)
    True
    """

    def _loss(self) -> Loss:
        return ModelLossOfLabels()

    def _probabilities(self) -> Finish:
        own: Finish = getattr(self.model_, "probabilities", probabilities)
        return own


@takes_options
@_shared
@dataclass(eq=False, repr=False, kw_only=True)
class ModelRegressor(_Custom, AnyRegressor):
    """A regression around a model of one's own, trained where its data lies.

    It predicts the model's raw outputs, one a column of y, or what a method ``mean(raw)`` of the
    model makes of them.

    Parameters
    ----------
    <model>
    <steps>
    <rows>
    <places>

    Attributes
    ----------
    n_outputs_ : int
    <fitted>
    <attributes>

    Examples
    --------
    >>> import numpy as np
    >>> from dps import ModelRegressor
    >>> class Bilinear:
    ...     layout = {"u": (4, 1), "v": (4, 1)}
    ...
    ...     def init(self, rng):
    ...         return {"u": rng.normal(size=(4, 1)), "v": rng.normal(size=(4, 1))}
    ...
    ...     def raw(self, params, batch):
    ...         return (batch.X @ params["u"]) * (batch.X @ params["v"])
    ...
    ...     def loss_gradient(self, params, batch, out):
    ...         residual = self.raw(params, batch)[:, 0] - batch.y
    ...         slope = batch.weighted(residual)[:, None]
    ...         out["u"] += batch.X.T @ (slope * (batch.X @ params["v"]))
    ...         out["v"] += batch.X.T @ (slope * (batch.X @ params["u"]))
    ...         return (slope[:, 0] * residual).sum() / 2
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(2000, 4))
    >>> y = (X @ [1, 2, 0, 0]) * (X @ [0, 0, 1, -1])
    >>> model = ModelRegressor(Bilinear(), learning_rate=0.02, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.99)
    True
    """

    def _loss(self) -> Loss:
        return ModelLossOfNumbers()

    def _several(self) -> int | None:
        return None if self.n_outputs_ == 1 else self.n_outputs_

    def _mean(self) -> Finish:
        own: Finish = getattr(self.model_, "mean", self._loss().mean)
        return own
