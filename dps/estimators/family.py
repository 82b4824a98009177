"""What differs from one kind of model to the next, as the fitting layer asks for it.

An estimator makes a family for each fit. All else (inputs, targets, clusters, training, what a fit
leaves) is the same for all and knows nothing of coefficients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dps.cluster.base import Cluster
from dps.data.inspection import DataSummary, Inspection
from dps.data.partitions import Partition
from dps.data.targets import TargetEncoding
from dps.estimators.encoding import Encoding
from dps.losses import Loss
from dps.modes import Mode
from dps.optimizers import Optimizer
from dps.optimizers.schedules import Schedule
from dps.scores.validation import Score
from dps.training.lbfgs.full_batch import FullBatch
from dps.training.state import TrainState
from dps.training.stopping import StoppingRule

__all__ = ["Ask", "Family", "Raw", "Recipe"]


@dataclass(frozen=True)
class Ask:
    """What a fit is asked for, besides the estimator's parameters."""

    mode: Mode
    start: TrainState | None
    max_iter: int
    tol: float | None
    seed: int
    partial: bool  # whether it is one epoch, of many


@dataclass(frozen=True)
class Recipe:
    """How a family wants its model trained."""

    model: Any
    optimizer: Optimizer
    schedule: Schedule
    params: NDArray[np.floating]  # (n,) where to start
    state: NDArray[np.floating]  # (state_rows, n) optimizer state to start from
    stopping: StoppingRule
    l1: float  # strengths of the penalties on the penalised coordinates
    l2: float
    batch_size: int | str
    n_replicas: int | str
    # Whether training is planned to its last epoch, so that to get there is no failure.
    ends: bool = False
    full_batch: FullBatch | None = None  # train on all rows at once rather than by stochastic steps
    finish: FullBatch | None = None  # do so once these are on a plateau

    def scored(self, score: Score) -> Recipe:
        """The same, and a score of the rows for validation decides."""
        return replace(self, stopping=replace(self.stopping, score=score))


class Raw(Protocol):
    """A trained model as predictions use it: raw outputs of a block of rows."""

    @property
    def n_features(self) -> int:
        """Columns that a block must have."""

    @property
    def dtype(self) -> Any:
        """Of the parameters."""

    def __call__(self, X: Any) -> NDArray[np.floating]:
        """Raw outputs (n, n_outputs) of an array or a CSR matrix."""


class Family(ABC):
    """One fit's view of a kind of model; its methods have defaults that suit most models.

    Parameters
    ----------
    estimator : estimator
        Its parameters count, and whether it classifies.
    """

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator
        self.loss: Loss = estimator._loss()

    @property
    def max_iter(self) -> int:
        """Epochs at the most, as far as is known before data has been seen."""
        return int(self.estimator.max_iter)

    def check(self, ask: Ask) -> None:  # noqa: B027 (most have nothing to check)
        """Raise where parameters do not go together; nothing has been read yet."""

    def inspection(self, ask: Ask, encoding: Encoding | None) -> Inspection:
        """What is to be looked at before training, once an encoder has learned."""
        return Inspection()

    def drop_columns(self, ask: Ask, part: Partition) -> Partition:
        """The data to train on, of data that came in one piece."""
        return part

    def select_columns(self, X: Any) -> Any:
        """Validation data of the columns that `drop_columns` left."""
        return X

    def try_out(self, ask: Ask, cluster: Cluster, summary: DataSummary) -> None:  # noqa: B027
        """Choose by what a part of the rows says; they lie on the cluster, and are encoded."""

    @abstractmethod
    def recipe(
        self,
        ask: Ask,
        summary: DataSummary,
        targets: TargetEncoding,
        n_outputs: int,
        encoding: Encoding | None,
    ) -> Recipe:
        """How to train on data of this kind."""

    def scored(self, targets: TargetEncoding, model: Any) -> TargetEncoding:
        """The targets as scores of rows take them, with what the model knows of its outputs."""
        return targets

    def restore_columns(self, recipe: Recipe, values: NDArray[np.floating]) -> NDArray[np.floating]:
        """Rows of parameters and state of all data, from those of what `drop_columns` left."""
        return values

    def restore_model(self, model: Any) -> Any:
        """The model of all data."""
        return model

    def names(self, model: Any) -> list[str]:
        """The tensors by which a server has that model, see `tensors`."""
        return [tensor.name for tensor in model.layout.tensors if tensor.size]

    def tensors(self, model: Any, params: NDArray[np.floating]) -> dict[str, NDArray[np.floating]]:
        """A model's parameters by names, as a server has them."""
        views = model.layout.views(np.ascontiguousarray(params))
        return {name: views[name] for name in self.names(model)}

    def from_tensors(
        self, model: Any, tensors: Mapping[str, NDArray[np.floating]]
    ) -> tuple[Any, NDArray[np.floating]]:
        """The model and its parameters of such tensors, which belong to a model of that kind."""
        params = np.zeros(model.layout.size, model.dtype)
        for name, view in model.layout.views(params).items():
            if view.size:
                view[...] = tensors[name]
        return model, params

    @abstractmethod
    def attributes(self, model: Any, params: NDArray[np.floating]) -> dict[str, Any]:
        """The fitted attributes that parameters of that model make."""


#: From raw outputs (n, n_outputs) to what is predicted.
Finish = Callable[[NDArray[np.floating]], NDArray[Any]]
