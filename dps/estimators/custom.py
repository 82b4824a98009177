"""Estimators for a user's own model in NumPy: steps of any optimizer, or L-BFGS."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted

from dps.data.collections.arrays import side_by_side
from dps.data.collections.partitions import is_dask
from dps.estimators.auto.passes import minibatch_only_parameters, passes, refuse_passes
from dps.estimators.auto.steps import check_known, rate_of, schedule_of
from dps.estimators.base.classifier import AnyClassifier
from dps.estimators.base.declare import estimator
from dps.estimators.base.estimator import DistributedEstimator
from dps.estimators.base.nested import MakesModel
from dps.estimators.base.regressor import AnyRegressor
from dps.estimators.base.user_models import (
    ModelLossOfLabels,
    ModelLossOfNumbers,
    Shape,
    columns_of,
    probabilities,
)
from dps.estimators.fit.survey import Request, Survey
from dps.estimators.predict.predict import Finish
from dps.losses import Loss
from dps.models.arrays import Arrays
from dps.models.columns import Columns
from dps.models.custom import CustomModel
from dps.optimizers import Adam, AdamW, Constant, Optimizer
from dps.optimizers.averaged import base_of
from dps.optimizers.names import get_optimizer
from dps.optimizers.schedules import Schedule
from dps.training.state import check_unchanged

if TYPE_CHECKING:
    from dps._typing import OptimizerLike, RateLike
    from dps.training.job import Job

#: Largest number of parameters for which "auto" is L-BFGS.
_MAX_LBFGS_PARAMETERS = 1000
#: Adam's published learning rate, since the scale of a user's parameters is unknown.
_ADAM = 0.001

_MODEL = """
model : object or callable
    With `layout`, ``init(rng)``, ``loss_gradient(params, batch, out)`` and ``raw(params, batch)``,
    see docs/howto/own_models.md; :func:`dps.models.check` finds what is wrong with one. Or a
    class or function that makes one, called with the number of columns and of classes or
    outputs, and with ``hidden=64`` where the estimator has ``model__hidden=64``.
"""

_FITTED = """
model_ : object
    The model; `model` itself, or what it has made.
params_ : dict of str to array
    Its tensors.
"""


@dataclass(eq=False, repr=False, kw_only=True)
class UserModelEstimator(MakesModel, DistributedEstimator):
    """The common part of estimators with users' own models."""

    optimizer: OptimizerLike = "auto"
    learning_rate: RateLike = "auto"
    alpha: float = 0.0
    max_iter: int = 100
    n_iter_no_change: int = 5

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "optimizer": "no_validation",  # `fit` translates PyTorch's optimizers
        "learning_rate": [Interval(Real, 0, None, closed="neither"), str, Schedule],
        "alpha": [Interval(Real, 0, None, closed="left")],
    }

    _is_own: ClassVar[bool] = True
    _saved: ClassVar[tuple[str, ...]] = ("_params",)

    def _takes(self) -> str:
        """The form in which the model gets rows."""
        raise NotImplementedError

    #: The arrays of the current fit, if X is not a table.
    _arrays = cast("Arrays | None", None)

    def _table(self, X: Any, fitting: bool = False) -> Any:
        """Convert arrays to a matrix, and a list of lists or of arrays to a column.

        Raises ValueError: the arrays differ from those of the fit.
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
        """Return a matrix for arrays that match the known ones."""
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
        given, known = Arrays.of(X), self._model.shape.columns
        if given is not None:
            X = self._matrix(X, given, known)
        elif isinstance(known, Arrays) and len(known.shapes) > 1:
            raise TypeError(
                f"X is of the type {type(X).__name__}, and the model was trained on several arrays "
                f"with rows of the shape {known.sizes}: give these"
            )
        return super()._apply(X, finish, columns)

    def _build(self, shape: Shape) -> Any:
        """Make the model of a fit."""
        raise NotImplementedError

    def _check(self, request: Request) -> None:
        """Check names, and the parameters that L-BFGS ignores."""
        check_known(self.optimizer, "auto", "lbfgs")
        if self.optimizer == "lbfgs":
            refuse_passes(*self._obstacles(request))
        self._how()

    def _obstacles(self, request: Request) -> list[str]:
        """Return the reasons against passes over all rows."""
        return [*["partial_fit"] * request.partial, *minibatch_only_parameters(self)]

    def _how(self) -> tuple[Optimizer, Schedule]:
        """Return the optimizer and the schedule of steps."""
        given: Any = self.optimizer
        if isinstance(given, str):  # no step of "sgd" is taken
            given = {"auto": "adam", "lbfgs": "sgd"}.get(given, given)
        optimizer = get_optimizer(given)
        published = isinstance(base_of(optimizer), Adam | AdamW)
        automatic = Constant(_ADAM) if published else optimizer.default_schedule
        rate, epochs = automatic(0.0), float(self.max_iter)
        return optimizer, schedule_of(rate_of(self), automatic, rate, epochs)

    def _plan(self, survey: Survey) -> Job:
        """Train by steps of the optimizer, from the model's own start or from the last fit."""
        n_features = survey.summary.n_features
        columns: Columns | Arrays | None = self._arrays
        if self._takes() == "columns":
            names = [f"x{number}" for number in range(n_features)]
            columns = columns_of(survey.encoding, getattr(self, "feature_names_in_", names))
        model = self._build(
            Shape(
                n_features, survey.n_outputs, self._classification,
                np.dtype(survey.summary.dtype), columns, survey.seed,
            )
        )  # fmt: skip
        self._check_mode(model, survey.mode.together)
        if survey.start is not None:
            _check_same(survey.start.model, model)
        # A model may define the meaning of its raw outputs.
        own = getattr(
            getattr(model, "model", None), "probabilities" if self._classification else "mean", None
        )
        loss: Any = survey.targets.loss
        survey.targets = replace(survey.targets, loss=replace(loss, own=own))
        full_batch = finish = None
        if self._takes_passes(model, survey):
            how = passes(survey.summary, survey.tol, self.n_iter_no_change, float(self.alpha))
            together = self.optimizer == "lbfgs" or survey.mode.deterministic
            full_batch, finish = (how, None) if together else (None, how)
        return survey.job(
            model, *self._how(), l2=float(self.alpha), full_batch=full_batch, finish=finish
        )

    def _check_mode(self, model: Any, together: bool) -> None:
        """Raise unless the mode can train the model."""

    def _takes_passes(self, model: Any, survey: Survey) -> bool:
        """True if the fit makes passes over all rows by L-BFGS."""
        untrained = [tensor.name for tensor in model.layout.tensors if not tensor.trained]
        if self.optimizer == "lbfgs":
            if untrained:
                refuse_passes(f"tensors that are not trained ({', '.join(untrained)})")
            if model.draws:
                refuse_passes("a model that draws by chance")
            return True
        fit = model.draws is False and not untrained and model.layout.size <= _MAX_LBFGS_PARAMETERS
        asked_for_none = self.optimizer == "auto" and not self._obstacles(survey)
        return asked_for_none and survey.tol is not None and fit

    def _fitted(self, model: Any, params: NDArray[np.floating]) -> dict[str, Any]:
        """The number of outputs; see `DistributedEstimator._fitted`."""
        return {} if self._classification else {"n_outputs_": model.n_outputs}


def _check_same(before: Any, model: Any) -> None:
    """Raise unless parameters of one model fit another."""
    columns = [
        each.shape.columns.sizes if isinstance(each.shape.columns, Arrays) else (each.n_features,)
        for each in (before, model)
    ]
    tensors = [[(t.name, t.shape) for t in each.layout.tensors] for each in (before, model)]
    check_unchanged(
        {
            "the number of features": (before.n_features, model.n_features),
            "the shape of a row": (columns[0], columns[1]),
            "the list of the model's tensors": (tensors[0], tensors[1]),
        }
    )


@dataclass(eq=False, repr=False, kw_only=True)
class _Custom(UserModelEstimator):
    """The common part of the two estimators."""

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

    def _fitted(self, model: CustomModel, params: NDArray[np.floating]) -> dict[str, Any]:
        """Return the model and its tensors by name; see `Trainable._fitted`."""
        tensors = {name: each.copy() for name, each in model.layout.views(params).items()}
        return {**super()._fitted(model, params), "model_": model.model, "params_": tensors}


@estimator(model=CustomModel, own=_MODEL, fitted=_FITTED)
class ModelClassifier(_Custom, AnyClassifier):
    """A classifier around your own model, trained where its data lies.

    The model has one raw output per class, or one for two classes. Probabilities are their
    softmax, or the logistic function, unless the model has a method ``probabilities(raw)``.

    Parameters
    ----------
    <own>
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
        return getattr(self.model_, "probabilities", probabilities)


@estimator(model=CustomModel, own=_MODEL, fitted=_FITTED)
class ModelRegressor(_Custom, AnyRegressor):
    """A regressor around your own model, trained where its data lies.

    It predicts the model's raw outputs, one a column of y, or what a method ``mean(raw)`` of the
    model makes of them.

    Parameters
    ----------
    <own>
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

    def _mean(self) -> Finish:
        return getattr(self.model_, "mean", self._loss().mean)
