"""How factorization machines are trained: inputs, fields, batches, epochs and rates.

Everything that "auto" means for them stands here, measured on the data of
``tests/benchmarks/factorization.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps.data.inspection import DataSummary
from dps.data.targets import TargetEncoding
from dps.estimators.encoding import Encoding
from dps.estimators.family import Ask, Recipe
from dps.estimators.planned import (
    PlannedFamily,
    auto_batch,
    auto_epochs,
    averaged,
    hidden_units,
    outputs_of,
    planned_schedule,
    rows_to_train_on,
    single_will_do,
)
from dps.models import FactorInputs, FactorizationMachine, Table
from dps.optimizers import Adagrad, AdamW, Averaged, Constant, Optimizer, Schedule, get_optimizer
from dps.training.launch import touches_little
from dps.training.state import check_unchanged, starting_state
from dps.training.stopping import StoppingRule

__all__ = ["FactorizationFamily"]

#: Adagrad's accumulator at first, the least that float32 holds, and its rate.
_ACCUMULATOR, _SMALLEST, _RATE = 1e-6, 1e-37, 0.4
#: Moments of AdamW, and its rate.
_BETA2, _EPSILON, _RATE_OF_ADAMW = 0.95, 1e-8, 0.05
#: Decay of weights over an epoch's steps together, and of one step at the most. A constant one
#: would be too much where epochs are long ("How to set AdamW's weight decay as you scale model and
#: dataset size", Wang and Aitchison, 2024): rare categories would be forgotten between their rows.
_DECAY, _MOST_DECAY = 24.0, 0.1
#: How large elements of factors begin.
_START = 0.1
#: Knots of a number, and rows that each of them has at least.
_KNOTS, _ROWS_A_KNOT = 20, 50
#: Square length that rows are given: of as many ones.
_LENGTH = 6.0
#: Columns up to which each is a field of its own.
_FIELDS = 64


class FactorizationFamily(PlannedFamily):
    """One fit of a factorization machine; see `Family` for what its methods do."""

    def check(self, ask: Ask) -> None:
        """A loss needs a kernel, and names must be known."""
        super().check(ask)
        estimator = self.estimator
        if estimator.max_rows is None:
            for name, given in (
                ("min_count", estimator.min_count > 1),
                ("expire", estimator.expire),
            ):
                if given:
                    raise ValueError(f"{name} has no effect without max_rows: give that, too")
        else:
            self._check_table(ask)
        self._hidden = hidden_units(estimator.hidden_layer_sizes)
        self._schedule(self._optimizer(False, 1.0), 1)

    def _check_table(self, ask: Ask) -> None:
        estimator = self.estimator
        if not ask.mode.shards_hold_parameters:
            raise ValueError(
                f"max_rows={estimator.max_rows} is not possible with mode={estimator.mode!r}, in "
                "which each replica holds all rows: use mode='sync' or 'async'"
            )
        if estimator.average is True:
            raise ValueError(
                f"max_rows={estimator.max_rows} is not possible with average=True, a mean of all "
                "rows"
            )
        native = (
            None if estimator.optimizer == "auto" else get_optimizer(estimator.optimizer).native
        )
        if estimator.optimizer != "auto" and (native is None or not native.lazy):
            raise ValueError(
                f"max_rows={estimator.max_rows} is not possible with optimizer="
                f"{estimator.optimizer!r}, which updates all rows: use 'adagrad', 'momentum', "
                "'sgd' or Adam(lazy=True)"
            )

    def recipe(
        self,
        ask: Ask,
        summary: DataSummary,
        targets: TargetEncoding,
        n_outputs: int,
        encoding: Encoding | None,
    ) -> Recipe:
        """Adagrad, or AdamW where there are layers, and the mean of the last epochs' parameters."""
        estimator, start = self.estimator, ask.start
        held_out, rows = rows_to_train_on(estimator, ask, summary)
        batch = auto_batch(rows) if estimator.batch_size == "auto" else int(estimator.batch_size)
        model = self._model(ask, summary, targets, n_outputs, encoding)
        params = self._initial(model, ask)
        # Lazy steps by keys are of Adagrad, and of no mean, which is of all rows of the table.
        few = model.table is not None or touches_little(summary, model.layout.size, batch)
        unit = self._unit(summary)
        optimizer = self._optimizer(few, unit)
        average = not few if estimator.average == "auto" else estimator.average
        if average:
            optimizer = averaged(optimizer, rows, batch, summary.total)
        epochs = ask.max_iter
        if estimator.max_iter == "auto" and not ask.partial:
            epochs = auto_epochs(rows, min(batch, rows))
            if not (average or self._hidden):  # the rate is to be small before they overfit
                epochs //= 2
        before = None if start is None else start.optimizer
        if before is not None and estimator.optimizer == estimator.average == "auto":
            optimizer = before
        state, _ = starting_state(start, optimizer, model)
        patience = estimator.n_iter_no_change
        if patience == "auto":
            patience = max(5, epochs // 3)
        return Recipe(
            model=model,
            optimizer=optimizer,
            schedule=self._schedule(optimizer, None if ask.partial else epochs),
            params=params,
            state=state,
            stopping=StoppingRule(epochs, ask.tol, int(patience), held_out),
            l1=0.0,
            l2=self._alpha(optimizer, unit * targets.scale / summary.total, rows / batch),
            batch_size=batch,
            n_replicas=estimator.n_replicas,
            ends=True,
        )

    def _unit(self, summary: DataSummary) -> float:
        """What is much of a derivative of the loss, where outputs vary by one."""
        if self.estimator._classification:
            return 1.0
        moments = zip(summary.target_mean, summary.target_std, strict=True)
        slopes = [self.loss.unit(mean, std) ** 0.5 for mean, std in moments]
        unit = float(np.mean(slopes)) * summary.reach(self.loss)
        return unit if unit > 0 else 1.0

    def _optimizer(self, few: bool, unit: float) -> Optimizer:
        if self.estimator.optimizer != "auto":
            return get_optimizer(self.estimator.optimizer)
        if self._hidden and not few:
            return AdamW(beta2=_BETA2, epsilon=_EPSILON * unit)
        return Adagrad(initial_accumulator=max(_ACCUMULATOR * unit**2, _SMALLEST))

    def _alpha(self, optimizer: Optimizer, of_a_row: float, steps: float) -> float:
        if self.estimator.alpha != "auto":
            return float(self.estimator.alpha)
        if isinstance(_base(optimizer), AdamW):
            return min(_MOST_DECAY, _DECAY / steps)
        return of_a_row

    def _schedule(self, optimizer: Optimizer, epochs: int | None) -> Schedule:
        given, base = self.estimator.learning_rate, _base(optimizer)
        if not isinstance(given, str | Schedule):
            return Constant(float(given))
        rate = base.default_schedule.rate
        if self.estimator.optimizer == "auto":
            rate = _RATE_OF_ADAMW if isinstance(base, AdamW) else _RATE
        return planned_schedule(given, rate, epochs)

    def _initial(self, model: FactorizationMachine, ask: Ask) -> NDArray[np.floating]:
        if ask.start is not None:
            ask.start.check(model)
            return ask.start.params
        initial: NDArray[np.floating] = model.initial(np.random.default_rng(ask.seed), _START)
        return initial

    def _model(
        self,
        ask: Ask,
        summary: DataSummary,
        targets: TargetEncoding,
        n_outputs: int,
        encoding: Encoding | None,
    ) -> FactorizationMachine:
        estimator, before = self.estimator, None if ask.start is None else ask.start.model
        if before is not None:
            rows = None if before.table is None else before.table.rows
            check_unchanged(
                {
                    "hidden_layer_sizes": (before.hidden, self._hidden),
                    "n_factors": (before.n_factors, int(estimator.n_factors)),
                    "the number of outputs": (before.n_outputs, n_outputs),
                    "the number of features": (before.inputs.n_features, summary.n_features),
                    "max_rows": (rows, estimator.max_rows),
                }
            )
            inputs, dtype = before.inputs, before.dtype
            shift, scale = before.output_shift, before.output_scale
        else:
            inputs = self._inputs(summary, encoding)
            dtype = np.dtype("f4" if single_will_do(summary.points or (), inputs.knots) else "f8")
            shift, scale = outputs_of(estimator, self.loss, summary, targets, n_outputs)
        return FactorizationMachine(
            inputs, int(estimator.n_factors), self._hidden, n_outputs, targets.loss,
            estimator.activation, float(estimator.dropout), dtype, shift, scale,
            self._table(n_outputs),
        )  # fmt: skip

    def _table(self, n_outputs: int) -> Table | None:
        """Of rows that come when they are touched, where that was asked for."""
        estimator = self.estimator
        if estimator.max_rows is None:
            return None
        return Table(
            int(estimator.max_rows),
            n_outputs + int(estimator.n_factors),
            zeros=n_outputs,
            scale=_START * 3**0.5,  # as far as a normal distribution goes, evenly
            min_count=int(estimator.min_count),
            expire=int(estimator.expire or 0),
        )

    def _inputs(self, summary: DataSummary, encoding: Encoding | None) -> FactorInputs:
        """How the columns go in, from what is known of their values."""
        n, points, fields = summary.n_features, summary.points, self.estimator.fields
        if encoding is not None:
            layout = encoding.encoder.encode
            numbers = np.array(layout.number_columns, np.int64)
            widths = [feature.width for feature in layout.features]
            of_frame: Any = np.repeat(np.arange(len(widths)), widths)
        else:
            if points is None and not summary.sparse:
                raise ValueError(
                    f"some partitions of X are sparse, with {n} columns, and others are dense: "
                    "make all of one kind"
                )
            numbers = np.arange(n if points is not None else 0)
            of_frame = np.arange(n) if len(numbers) and n <= _FIELDS else None
        known = of_frame if fields is None else _given_fields(fields, n, encoding)
        if points is None:
            normalised = self.estimator.normalize
            if normalised == "auto":
                normalised = self.estimator._classification
            length = 1.0 if normalised else summary.square / summary.total
            return FactorInputs(n, None, (), _int32(known), _gain(length), bool(normalised))
        # A column of nothing but zeros and ones is a category.
        of_ones = [bool(np.isin(each.values, (0.0, 1.0)).all()) for each in points]
        chosen = [not ones for ones in of_ones]
        numbers = numbers[chosen]
        ones = [each for each, one in zip(points, of_ones, strict=True) if one]
        kept = [each for each, one in zip(points, chosen, strict=True) if one]
        places = np.full(n, -1, np.int32)
        places[numbers] = np.arange(len(numbers))
        bins = int(np.clip(summary.total // _ROWS_A_KNOT, 2, _KNOTS))
        knots = tuple(np.unique(each.edges(bins)) for each in kept)
        length = len(kept) + sum(float(each.values @ each.rows / each.rows.sum()) for each in ones)
        if encoding is not None:
            length = len(encoding.encoder.encode.features)
        normalised = self.estimator.normalize is True
        gain = _gain(1.0 if normalised else length)
        return FactorInputs(
            n, places if len(numbers) else None, knots, _int32(known), gain, normalised
        )

    def attributes(
        self, model: FactorizationMachine, params: NDArray[np.floating]
    ) -> dict[str, Any]:
        """Weights and factors as in the formula, and the machine itself."""
        found = model.factors(params)
        coef = found["weights"]
        if not self.estimator._classification and model.n_outputs == 1:
            coef = coef[0]
        return {
            "coef_": coef,
            "intercept_": found["intercept"],
            "factors_": found["factors"],
            "factor_weights_": found["mix"],
            "_machine": model,
            "_params": params,
        }


def _base(optimizer: Optimizer) -> Optimizer:
    return optimizer.base if isinstance(optimizer, Averaged) else optimizer


def _gain(square: float) -> float:
    """The factor of values that makes rows as long as if they had a few ones."""
    return float((_LENGTH / square) ** 0.5) if square > 0 else 1.0


def _int32(values: Any) -> Any:
    return None if values is None else np.asarray(values, np.int32)


def _given_fields(fields: Any, n: int, encoding: Encoding | None) -> NDArray[np.int64]:
    if encoding is not None:
        raise ValueError("the fields of an encoded dataframe are its columns: leave fields=None")
    given = np.asarray(fields)
    if given.shape != (n,) or given.dtype.kind not in "iu":
        raise ValueError(
            f"fields must be {n} whole numbers, one for each column of X; got an array of shape "
            f"{given.shape} of {given.dtype}"
        )
    return np.unique(given, return_inverse=True)[1].astype(np.int64)
