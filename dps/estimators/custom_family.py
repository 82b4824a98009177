"""How models are trained that users have written: by stochastic steps of any optimizer.

It asks a builder for the model, and knows neither NumPy's nor PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dps.data.blocks import features_of
from dps.data.inspection import DataSummary
from dps.data.targets import TargetEncoding
from dps.estimators.choices import asks_for_steps, check_known, refuse_passes, schedule_of
from dps.estimators.encoding import Encoding
from dps.estimators.family import Ask, Family, Finish, Recipe
from dps.estimators.network_solvers import passes
from dps.losses import Loss
from dps.losses.base import Task
from dps.losses.classification import LogLoss, Softmax
from dps.models import Arrays, Column, Columns
from dps.optimizers import Adam, AdamW, Constant, get_optimizer
from dps.preprocessing.features import Bag, Cross, Number, TokenSequence
from dps.training.state import check_unchanged, starting_state
from dps.training.stopping import StoppingRule

__all__ = ["CustomFamily", "CustomRaw", "ModelLoss", "Shape", "probabilities"]


#: Parameters up to which "auto" is L-BFGS.
_FEW = 1000
#: Adam's learning rate as published; nothing is known of the scale of a model's parameters.
_ADAM = 0.001


@dataclass(frozen=True)
class ModelLoss(Loss):
    """A loss that the model computes itself, from codes of classes or from numbers."""

    name: ClassVar[str] = "the model's"
    task: ClassVar[Task]

    def n_outputs(self, n_classes: int) -> int:
        """As many as there are classes: the model decides how many it has."""
        return n_classes

    @property
    def has_probabilities(self) -> bool:
        """True."""
        return True


@dataclass(frozen=True)
class ModelLossOfLabels(ModelLoss):
    """That of a classifier."""

    task: ClassVar[Task] = "classification"
    own: Finish | None = None

    def probabilities(self, raw: Any) -> Any:
        """The model's own; else those of outputs that are logits, see `probabilities`."""
        return probabilities(raw) if self.own is None else self.own(raw)


@dataclass(frozen=True)
class ModelLossOfNumbers(ModelLoss):
    """That of a regressor."""

    task: ClassVar[Task] = "regression"
    own: Finish | None = None

    def mean(self, raw: Any) -> Any:
        """The model's own; else its raw outputs."""
        return super().mean(raw) if self.own is None else self.own(raw)


def probabilities(raw: NDArray[np.floating]) -> NDArray[np.floating]:
    """Of classes: the softmax of their outputs, or the logistic function of a single one."""
    found: NDArray[np.floating] = (LogLoss() if raw.shape[1] == 1 else Softmax()).probabilities(raw)
    return found


@dataclass(frozen=True)
class Shape:
    """What is known of data when a model is made for it."""

    n_features: int  # columns that the model sees
    n_outputs: int  # classes, or columns of y
    classification: bool
    dtype: np.dtype[Any]  # float32 if all of X is, else float64
    # Where the columns lie that the model takes by name, or arrays; None where it takes rows.
    columns: Columns | Arrays | None
    seed: int

    def made(self, make: Any, options: Mapping[str, Any]) -> Any:
        """What a user's class or function makes for such data."""
        wanted = self.n_features if self.columns is None else self.columns.sizes
        return make(wanted, self.n_outputs, **options)


def columns_of(encoding: Encoding | None, names: Sequence[str]) -> Columns:
    """Where each column of a frame lies among those that are trained on.

    Parameters
    ----------
    encoding : Encoding or None
        How a dataframe has become them.
    names : sequence of str
        Of the columns, where nothing was encoded.
    """
    if encoding is None:
        return Columns(tuple(Column(name, "number", at, 1) for at, name in enumerate(names)))
    features: tuple[Any, ...] = encoding.encoder.encode.features
    found, start = [], 0
    for feature in features:
        if isinstance(feature, Cross):
            name = ":".join(map(str, feature.members))
        else:
            name = str(feature.name)
        if isinstance(feature, Number):
            found.append(Column(name, "number", start, 1))
            if feature.indicator:
                found.append(Column(f"missingindicator_{name}", "number", start + 1, 1))
        elif isinstance(feature, TokenSequence):
            found.append(Column(name, "sequence", start, feature.width, feature.n_buckets))
        else:
            kind: Any = "counts" if isinstance(feature, Bag) else "code"
            found.append(Column(name, kind, start, feature.width))
        start += feature.width
    return Columns(tuple(found))


class CustomFamily(Family):
    """One fit of a model that a user has written; see `Family` for what its methods do.

    Parameters
    ----------
    estimator : estimator
    build : callable
        From a `Shape` to a model of dps.
    attributes : callable
        From such a model and its parameters to fitted attributes.
    """

    def __init__(
        self,
        estimator: Any,
        build: Callable[[Shape], Any],
        attributes: Callable[[Any, NDArray[np.floating]], dict[str, Any]],
    ) -> None:
        super().__init__(estimator)
        self._build, self._attributes = build, attributes

    def check(self, ask: Ask) -> None:
        """Names must be known, and L-BFGS honours some parameters only."""
        estimator, given = self.estimator, self.estimator.optimizer
        check_known(given)
        obstacles = [*["partial_fit"] * ask.partial, *asks_for_steps(estimator)]
        if given == "lbfgs":
            refuse_passes(*obstacles)
        self._passes_will_do = not obstacles
        if isinstance(given, str):  # of "sgd" no step is taken
            given = {"auto": "adam", "lbfgs": "sgd"}.get(given, given)
        self._optimizer = get_optimizer(given)
        base = getattr(self._optimizer, "base", self._optimizer)  # of one whose mean is reported
        published = isinstance(base, Adam | AdamW)
        automatic = Constant(_ADAM) if published else self._optimizer.default_schedule
        self._schedule = schedule_of(self.estimator, automatic)

    def recipe(
        self,
        ask: Ask,
        summary: DataSummary,
        targets: TargetEncoding,
        n_outputs: int,
        encoding: Encoding | None,
    ) -> Recipe:
        """Steps of the optimizer, from the model's own start or from where it was left."""
        estimator, start = self.estimator, ask.start
        names = [f"x{number}" for number in range(summary.n_features)]
        columns: Columns | Arrays | None = estimator._arrays
        if estimator._takes() == "columns":
            columns = columns_of(encoding, getattr(estimator, "feature_names_in_", names))
        shape = Shape(
            summary.n_features, n_outputs, estimator._classification, np.dtype(summary.dtype),
            columns, ask.seed,
        )  # fmt: skip
        model = self._build(shape)
        if start is not None:
            _check_same(start.model, model)
            params = start.params.astype(model.dtype)
        else:
            params = model.initial(np.random.default_rng(ask.seed))
        state, _ = starting_state(start, self._optimizer, model)
        full_batch = finish = None
        if self._takes_passes(model, ask.tol):
            how = passes(float(estimator.alpha), summary, ask.tol, estimator.n_iter_no_change)
            together = estimator.optimizer == "lbfgs" or ask.mode.deterministic
            full_batch, finish = (how, None) if together else (None, how)
        return Recipe(
            model=model,
            optimizer=self._optimizer,
            schedule=self._schedule,
            params=params,
            state=state,
            stopping=StoppingRule(
                ask.max_iter, ask.tol, estimator.n_iter_no_change, estimator.early_stopping,
                finishes=finish is not None,
            ),
            l1=0.0,
            l2=float(estimator.alpha),
            batch_size=estimator.batch_size,
            n_replicas=estimator.n_replicas,
            full_batch=full_batch,
            finish=finish,
        )  # fmt: skip

    def _takes_passes(self, model: Any, tol: float | None) -> bool:
        """Whether there are passes over all rows by L-BFGS."""
        untrained = [tensor.name for tensor in model.layout.tensors if not tensor.trained]
        if self.estimator.optimizer == "lbfgs":
            if untrained:
                refuse_passes(f"tensors that are not trained ({', '.join(untrained)})")
            if model.draws:
                refuse_passes("a model that draws by chance")
            return True
        fit = model.draws is False and not untrained and model.layout.size <= _FEW
        asked_for_none = self.estimator.optimizer == "auto" and self._passes_will_do
        return asked_for_none and tol is not None and fit

    def scored(self, targets: TargetEncoding, model: Any) -> TargetEncoding:
        """With the probabilities, or the mean, that the model itself makes of raw outputs."""
        name = "probabilities" if self.estimator._classification else "mean"
        own = getattr(getattr(model, "model", None), name, None)
        loss: Any = targets.loss
        return replace(targets, loss=replace(loss, own=own))

    def attributes(self, model: Any, params: NDArray[np.floating]) -> dict[str, Any]:
        """What the builder makes of them, and the model itself."""
        own = {**self._attributes(model, params), "_model": model, "_params": params}
        return own if self.estimator._classification else {**own, "n_outputs_": model.n_outputs}


def _check_same(before: Any, model: Any) -> None:
    """Raise unless parameters of the one are parameters of the other."""
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


@dataclass(frozen=True, eq=False)
class CustomRaw:
    """Raw outputs, as predictions ask for them."""

    model: Any
    params: NDArray[np.floating]  # (n,)

    @property
    def n_features(self) -> int:
        """Columns that a block must have."""
        n_features: int = self.model.n_features
        return n_features

    @property
    def dtype(self) -> Any:
        """Of the parameters."""
        return self.model.dtype

    def __call__(self, X: Any) -> NDArray[np.floating]:
        """Raw outputs of an array or a CSR matrix."""
        rows = features_of(X, self.model.dtype).rows(0, X.shape[0], None)
        raw: NDArray[np.floating] = self.model.raw(self.params, rows)
        return raw
