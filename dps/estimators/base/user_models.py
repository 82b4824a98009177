"""The loss and the data of a user's model before the model is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dps._checks import count
from dps.estimators.fit.encoding import Encoding
from dps.estimators.predict.predict import Finish
from dps.losses import Loss
from dps.losses.base import Task
from dps.losses.classification import LogLoss, Softmax
from dps.models.arrays import Arrays
from dps.models.columns import Column, Columns
from dps.preprocessing.features import Bag, Cross, Number, Shared, TokenSequence

_MOST_OUTPUTS = 1 << 24


@dataclass(frozen=True)
class ModelLoss(Loss):
    """A loss that the model computes itself, from codes of classes or from numbers."""

    name: ClassVar[str] = "the model's"
    task: ClassVar[Task]

    def n_outputs(self, n_classes: int) -> int:
        """Return the number of classes; the model decides how many outputs it has."""
        return n_classes

    @property
    def has_probabilities(self) -> bool:
        """True."""
        return True


@dataclass(frozen=True)
class ModelLossOfLabels(ModelLoss):
    """The loss of a classifier."""

    task: ClassVar[Task] = "classification"
    own: Finish | None = None

    def probabilities(self, raw: np.ndarray) -> Any:
        """Return the model's own probabilities, else treat raw outputs as logits."""
        return probabilities(raw) if self.own is None else self.own(raw)


@dataclass(frozen=True)
class ModelLossOfNumbers(ModelLoss):
    """The loss of a regressor."""

    task: ClassVar[Task] = "regression"
    own: Finish | None = None

    def mean(self, raw: np.ndarray) -> Any:
        """Return the model's own predictions, else its raw outputs."""
        return super().mean(raw) if self.own is None else self.own(raw)


def probabilities(raw: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return class probabilities: the softmax, or the logistic function of a single output."""
    return (LogLoss() if raw.shape[1] == 1 else Softmax()).probabilities(raw)


@dataclass(frozen=True)
class Shape:
    """The facts about the data from which a model is made."""

    n_features: int  # columns of the model's input
    n_outputs: int  # classes, or columns of y
    classification: bool
    dtype: np.dtype[Any]  # float32 if all of X is, else float64
    # Positions of the columns that the model takes by name, or of arrays; None if it takes rows.
    columns: Columns | Arrays | None
    seed: int

    def __post_init__(self) -> None:
        count(self.n_features, "n_features", 1)
        count(self.seed, "seed")
        if self.columns is not None and self.columns.width != self.n_features:
            raise ValueError(f"columns are not those of {self.n_features} features: {self.columns}")
        # Nothing else in a file gives a regression's number of outputs.
        if count(self.n_outputs, "n_outputs", 1) > _MOST_OUTPUTS:
            raise ValueError(f"n_outputs is {self.n_outputs}, up to {_MOST_OUTPUTS} are possible")
        if self.dtype not in (np.float32, np.float64):
            raise ValueError(f"the dtype is {self.dtype}")

    def made(self, make: Any, options: Mapping[str, object]) -> Any:
        """Call a user's class or function for such data."""
        wanted = self.n_features if self.columns is None else self.columns.sizes
        return make(wanted, self.n_outputs, **options)


def columns_of(encoding: Encoding | None, names: Sequence[str]) -> Columns:
    """Return the positions of a frame's columns in the model's input.

    encoding: of a dataframe.
    names: names of the columns, unless X was encoded.
    """
    if encoding is None:
        return Columns(tuple(Column(name, "number", at, 1) for at, name in enumerate(names)))
    features: tuple[Any, ...] = encoding.encoder._layout.features
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
            kind: Any = "counts" if isinstance(feature, Bag | Shared) else "code"
            found.append(Column(name, kind, start, feature.width))
        start += feature.width
    return Columns(tuple(found))
