"""How networks are trained: inputs, batches, epochs and rates from the rows that there are.

Everything that "auto" means for them stands here, measured on the data of
``tests/benchmarks/network.py`` and on smaller sets.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps.data.inspection import DataSummary
from dps.data.targets import TargetEncoding
from dps.estimators.encoding import Encoding
from dps.estimators.family import Ask, Recipe
from dps.estimators.network_solvers import PASSES, check_passes, passes, solver_of
from dps.estimators.planned import (
    PlannedFamily,
    auto_batch,
    auto_epochs,
    averaged,
    hidden_units,
    outputs_of,
    planned_schedule,
    rows_to_train_on,
    scaling_of,
    single_will_do,
)
from dps.losses import Multilabel
from dps.models import Inputs, Network
from dps.optimizers import Optimizer, Schedule
from dps.training.state import check_unchanged, starting_state
from dps.training.stopping import StoppingRule

__all__ = ["NetworkFamily"]

#: Learning rates of AdamW, in the network's own units.
_RATE_OF_CLASSES, _RATE_OF_NUMBERS = 0.02, 0.07
#: Bins of a number, and rows that each of them has at least; inputs that numbers may make.
_BINS, _ROWS_A_BIN, _WIDTH, _INPUTS = 48, 50, 8, 256


class NetworkFamily(PlannedFamily):
    """One fit of a network; see `Family` for what its methods do."""

    def check(self, ask: Ask) -> None:
        """A loss needs a kernel, and names must be known."""
        super().check(ask)
        self._optimizer = solver_of(self.estimator.solver)
        if self._by_passes:
            check_passes(self.estimator, ask.partial)
        self._schedule(1.0, 1)
        hidden_units(self.estimator.hidden_layer_sizes)

    @property
    def _by_passes(self) -> bool:
        """Whether each step is from the gradient of all rows."""
        return bool(self.estimator.solver == "lbfgs")

    def recipe(
        self,
        ask: Ask,
        summary: DataSummary,
        targets: TargetEncoding,
        n_outputs: int,
        encoding: Encoding | None,
    ) -> Recipe:
        """AdamW along a cosine, and the mean of the last epochs' parameters."""
        estimator, start = self.estimator, ask.start
        held_out, rows = False, summary.total
        if not self._by_passes:
            held_out, rows = rows_to_train_on(estimator, ask, summary)
        batch = auto_batch(rows) if estimator.batch_size == "auto" else int(estimator.batch_size)
        epochs = ask.max_iter
        if estimator.max_iter == "auto" and not ask.partial:
            epochs = PASSES if self._by_passes else auto_epochs(rows, min(batch, rows))
        model = self._model(ask, summary, targets, n_outputs, encoding)
        params = self._initial(model, ask)
        optimizer: Optimizer = self._optimizer
        if estimator.average and not self._by_passes:
            optimizer = averaged(optimizer, rows, batch, summary.total)
        state, _ = starting_state(start, optimizer, model)
        patience = estimator.n_iter_no_change
        if patience == "auto":
            patience = max(8, epochs // 3)
        full_batch = None
        if self._by_passes:
            full_batch = passes(estimator.alpha / summary.total, summary, ask.tol, int(patience))
        return Recipe(
            model=model,
            optimizer=optimizer,
            schedule=self._schedule(self._rate(), None if ask.partial else epochs),
            params=params,
            state=state,
            stopping=StoppingRule(epochs, ask.tol, int(patience), held_out),
            l1=0.0,
            l2=float(estimator.alpha),
            batch_size=batch,
            n_replicas=estimator.n_replicas,
            ends=True,
            full_batch=full_batch,
        )

    def _rate(self) -> float:
        given = self.estimator.learning_rate_init
        if given != "auto":
            return float(given)
        if self.estimator.solver != "auto":
            return self._optimizer.default_schedule.rate
        return _RATE_OF_CLASSES if self.estimator._classification else _RATE_OF_NUMBERS

    def _schedule(self, rate: float, epochs: int | None) -> Schedule:
        return planned_schedule(self.estimator.learning_rate, rate, epochs)

    def _initial(self, model: Network, ask: Ask) -> NDArray[np.floating]:
        if ask.start is not None:
            ask.start.check(model)
            return ask.start.params
        initial: NDArray[np.floating] = model.initial(np.random.default_rng(ask.seed))
        return initial

    def _model(
        self,
        ask: Ask,
        summary: DataSummary,
        targets: TargetEncoding,
        n_outputs: int,
        encoding: Encoding | None,
    ) -> Network:
        estimator, before = self.estimator, None if ask.start is None else ask.start.model
        hidden = hidden_units(estimator.hidden_layer_sizes)
        if before is not None:
            inputs, dtype = before.inputs, before.dtype
            check_unchanged(
                {
                    "hidden_layer_sizes": (before.sizes[1:-1], tuple(hidden)),
                    "the number of outputs": (before.sizes[-1], n_outputs),
                    "the number of features": (before.n_features, summary.n_features),
                }
            )
            shift, scale = before.output_shift, before.output_scale
        else:
            inputs = _inputs(summary, encoding, estimator.embedding_size)
            dtype = np.dtype("f4" if single_will_do(summary.points or (), inputs.edges) else "f8")
            shift, scale = outputs_of(estimator, self.loss, summary, targets, n_outputs)
        return Network(
            inputs, hidden, n_outputs, targets.loss, estimator.activation,
            0.0 if self._by_passes else float(estimator.dropout), dtype, shift, scale,
        )  # fmt: skip

    def attributes(self, model: Network, params: NDArray[np.floating]) -> dict[str, Any]:
        """The layers as scikit-learn has them, and the network itself."""
        coefs, intercepts = model.layers(params)
        kind = "identity"
        if self.estimator._classification:
            single = model.n_outputs == 1 or isinstance(model.loss, Multilabel)
            kind = "logistic" if single else "softmax"
        return {
            "coefs_": coefs,
            "intercepts_": intercepts,
            "n_layers_": len(coefs) + 1,
            "n_outputs_": model.n_outputs,
            "out_activation_": kind,
            "_network": model,
            "_params": params,
        }


def _inputs(summary: DataSummary, encoding: Encoding | None, width: Any) -> Inputs:
    """How the columns go in, from what is known of their values."""
    n = summary.n_features
    if encoding is not None:
        numbers = np.array(encoding.encoder.encode.number_columns, np.int64)
        square = float(len(encoding.encoder.encode.features) - len(numbers))
    else:
        numbers = np.arange(n if summary.points is not None else 0)
        square = 0.0 if len(numbers) else summary.square / summary.total
        if summary.points is None and not summary.sparse:
            raise ValueError(
                f"some partitions of X are sparse, with {n} columns, and others are dense: "
                "make all of one kind"
            )
    places = np.full(n, -1, np.int64)
    places[numbers] = np.arange(len(numbers))
    plain = np.flatnonzero(places < 0)
    places[plain] = -1 - np.arange(len(plain))
    points = summary.points or ()
    centre, spread = scaling_of(points)
    bins = int(np.clip(summary.total // _ROWS_A_BIN, 2, _BINS))
    if width == "auto":
        width = min(_WIDTH, max(0, _INPUTS // max(1, len(numbers)) - 1))
    return Inputs(
        places, centre, spread, tuple(each.edges(bins) for each in points), int(width), square
    )
