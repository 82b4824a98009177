"""How networks are trained: inputs, batches, epochs and rates from the rows that there are.

Everything that "auto" means for them stands here, measured on the data of
``tests/benchmarks/network.py`` and on smaller sets.
"""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps.data.inspection import DataSummary, Inspection
from dps.data.targets import TargetEncoding
from dps.estimators.encoding import Encoding
from dps.estimators.family import Ask, Family, Recipe
from dps.estimators.network_solvers import PASSES, check_passes, passes, solver_of
from dps.losses import Multilabel
from dps.models import Inputs, Network
from dps.models.network import TINY
from dps.optimizers import SCHEDULES, Averaged, Cosine, Optimizer
from dps.optimizers.schedules import Constant, Schedule
from dps.training.plan import batch_rows
from dps.training.stopping import StoppingRule

__all__ = ["NetworkFamily"]

#: Learning rates of AdamW, in the network's own units.
_RATE_OF_CLASSES, _RATE_OF_NUMBERS = 0.02, 0.07
#: Epochs over which parameters are averaged.
_MEAN_EPOCHS = 2.0
#: Share of the epochs in which the rate grows.
_WARM = 0.05
#: Steps that "auto" plans, in so many epochs; rows a batch, and batches an epoch.
_STEPS, _FEWEST_EPOCHS, _MOST_EPOCHS = 2500, 12, 100
_SMALLEST, _LARGEST, _BATCHES = 32, 256, 50
#: Rows from which some are held out.
_ROWS_TO_VALIDATE = 100
#: Bins of a number, and rows that each of them has at least; inputs that numbers may make.
_BINS, _ROWS_A_BIN, _WIDTH, _INPUTS = 48, 50, 8, 256
#: Spreads from zero at which float32 would blur a column.
_BLURRED = 1e5
#: What float32 holds with room to spare.
_LARGE = 1e30


def auto_batch(rows: int) -> int:
    """Rows of an update: a fiftieth of all, as a power of two.

    Examples
    --------
    >>> auto_batch(150), auto_batch(5000), auto_batch(1_000_000)
    (32, 128, 256)
    """
    return int(min(_LARGEST, max(_SMALLEST, 2 ** round(math.log2(max(rows, 1) / _BATCHES)))))


def auto_epochs(rows: int, batch: int) -> int:
    """Epochs that make about 2,500 updates.

    Examples
    --------
    >>> auto_epochs(150, 32), auto_epochs(20_000, 256), auto_epochs(1_000_000, 256)
    (100, 32, 12)
    """
    return min(_MOST_EPOCHS, max(_FEWEST_EPOCHS, math.ceil(_STEPS * batch / max(rows, 1))))


class NetworkFamily(Family):
    """One fit of a network; see `Family` for what its methods do."""

    @property
    def max_iter(self) -> int:
        """As asked for, or what "auto" may come to."""
        most = self.asked.max_iter
        return _MOST_EPOCHS if most == "auto" else int(most)

    def check(self, ask: Ask) -> None:
        """A loss needs a kernel, and names must be known."""
        if self.loss.native is None:
            raise ValueError(f"loss={self.asked.loss!r} is written in Python, for linear models")
        self._optimizer = solver_of(self.asked.solver)
        if self._by_passes:
            check_passes(self.asked, ask.partial)
        self._schedule(1.0, 1)
        self._hidden()

    @property
    def _by_passes(self) -> bool:
        """Whether each step is from the gradient of all rows."""
        return bool(self.asked.solver == "lbfgs")

    def inspection(self, ask: Ask, encoding: Encoding | None) -> Inspection:
        """Numbers go in by their quantiles."""
        if ask.start is not None and ask.start.model is not None:
            return Inspection()
        numbers = None if encoding is None else encoding.encoder.encode.number_columns
        return Inspection(points=True, numbers=numbers)

    def recipe(
        self,
        ask: Ask,
        summary: DataSummary,
        targets: TargetEncoding,
        n_outputs: int,
        encoding: Encoding | None,
    ) -> Recipe:
        """AdamW along a cosine, and the mean of the last epochs' parameters."""
        asked, start = self.asked, ask.start
        held_out = asked.early_stopping
        if self._by_passes:
            held_out = False
        elif held_out == "auto":
            enough = summary.total >= _ROWS_TO_VALIDATE
            held_out = not ask.partial and (enough or bool(summary.validation))
        rows = summary.total
        if held_out and not summary.validation:
            rows = max(1, round(rows * (1 - asked.validation_fraction)))
        batch = auto_batch(rows) if asked.batch_size == "auto" else int(asked.batch_size)
        epochs = ask.max_iter
        if asked.max_iter == "auto" and not ask.partial:
            epochs = PASSES if self._by_passes else auto_epochs(rows, min(batch, rows))
        model = self._model(ask, summary, targets, n_outputs, encoding)
        params = self._initial(model, ask)
        optimizer: Optimizer = self._optimizer
        if asked.average and not self._by_passes:
            horizon = max(1, round(_MEAN_EPOCHS * rows / batch_rows(batch, summary.total)))
            optimizer = Averaged(optimizer, horizon=horizon)
        state = None if start is None else start.state_for(optimizer, model)
        if state is None:
            state = np.zeros((optimizer.state_rows, model.layout.size), model.dtype)
            optimizer.initialize(state)
        patience = asked.n_iter_no_change
        if patience == "auto":
            patience = max(8, epochs // 3)
        full_batch = None
        if self._by_passes:
            full_batch = passes(float(asked.alpha), summary, ask.tol, int(patience))
        return Recipe(
            model=model,
            optimizer=optimizer,
            schedule=self._schedule(self._rate(), None if ask.partial else epochs),
            params=params,
            state=state,
            stopping=StoppingRule(epochs, ask.tol, int(patience), bool(held_out)),
            l1=0.0,
            l2=float(asked.alpha),
            batch_size=batch,
            n_replicas=asked.n_replicas,
            ends=True,
            full_batch=full_batch,
        )

    def _hidden(self) -> tuple[int, ...]:
        sizes = self.asked.hidden_layer_sizes
        hidden = (sizes,) if isinstance(sizes, Integral) else tuple(sizes)
        if not all(isinstance(size, Integral) and int(size) > 0 for size in hidden):
            raise ValueError(f"hidden_layer_sizes must be numbers above 0, got {sizes!r}")
        return tuple(map(int, hidden))

    def _rate(self) -> float:
        given = self.asked.learning_rate_init
        if given != "auto":
            return float(given)
        if self.asked.solver != "auto":
            return self._optimizer.default_schedule.rate
        return _RATE_OF_CLASSES if self.asked._classification else _RATE_OF_NUMBERS

    def _schedule(self, rate: float, epochs: int | None) -> Schedule:
        given = self.asked.learning_rate
        if isinstance(given, Schedule):
            return given
        if given in ("auto", "cosine"):
            if epochs is None:
                return Constant(rate)
            return Cosine(rate, float(epochs), warmup=_WARM * epochs)
        if given not in SCHEDULES:
            raise ValueError(
                "The 'learning_rate' parameter must be a Schedule or a str among "
                f"{['auto', *sorted(SCHEDULES)]}. Got {given!r} instead."
            )
        return SCHEDULES[given](rate)

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
        asked, before = self.asked, None if ask.start is None else ask.start.model
        if before is not None:
            inputs, dtype = before.inputs, before.dtype
            if (*self._hidden(), n_outputs) != before.sizes[1:]:
                raise ValueError(
                    f"the fit cannot start from the last one: that has layers of {before.sizes[1:]}"
                    f" units, and this one {(*self._hidden(), n_outputs)}; train a clone, or with "
                    "warm_start=False"
                )
            if len(inputs.places) != summary.n_features:
                raise ValueError(
                    f"the fit cannot start from the last one: that has {len(inputs.places)} "
                    f"features, and X has {summary.n_features}; train a clone, or with "
                    "warm_start=False"
                )
            shift, scale = before.output_shift, before.output_scale
        else:
            inputs = _inputs(summary, encoding, asked.embedding_size)
            dtype = np.dtype("f4" if _single_will_do(inputs, summary) else "f8")
            shift, scale = self._outputs(summary, targets, n_outputs)
        return Network(
            inputs, self._hidden(), n_outputs, targets.loss, asked.activation,
            0.0 if self._by_passes else float(asked.dropout), dtype, shift, scale,
        )  # fmt: skip

    def _outputs(
        self, summary: DataSummary, targets: TargetEncoding, n_outputs: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Where raw outputs start, and by how much they vary."""
        scale = np.ones(n_outputs)
        if targets.multilabel:
            if not targets.loss.has_probabilities:
                return np.zeros(n_outputs), scale
            # Of a label that no row has, or all have, something else is expected, too.
            of_label = np.array(summary.target_mean) * summary.weight_sum + 0.5
            return np.log(of_label / (summary.weight_sum + 1 - of_label)), scale
        if not self.asked._classification:
            mean, std = np.array(summary.target_mean), np.array(summary.target_std)
            reach = np.asarray(self.loss.reach(mean, std), np.float64)
            return self.loss.start(mean), np.where(reach > 0, reach, scale)
        weights = np.zeros(len(targets.classes))  # type: ignore[arg-type]
        weights[np.searchsorted(targets.classes, summary.classes)] = summary.class_weights  # type: ignore[arg-type]
        if targets.class_weight is not None:
            weights *= targets.class_weight
        weights += 0.5  # of a class without rows, too, something is expected
        if not targets.loss.has_probabilities:
            return np.zeros(n_outputs), scale
        if n_outputs == 1:
            return np.log(weights[1:] / weights[0]), scale
        return np.log(weights / weights.sum()), scale

    def attributes(self, model: Network, params: NDArray[np.floating]) -> dict[str, Any]:
        """The layers as scikit-learn has them, and the network itself."""
        coefs, intercepts = model.layers(params)
        kind = "identity"
        if self.asked._classification:
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


def _single_will_do(inputs: Inputs, summary: DataSummary) -> bool:
    """Whether float32 tells values apart, and holds them."""
    if (np.abs(inputs.centre) * inputs.spread > _BLURRED).any():
        return False
    extremes = [abs(value) for each in summary.points or () for value in each.values[[0, -1]]]
    steep = [width for edges in inputs.edges for width in np.diff(edges) if width > 0]
    large = max(extremes, default=0.0) < _LARGE and inputs.spread.max(initial=0.0) < _LARGE
    return bool(large and min(steep, default=1.0) > 1 / _LARGE)


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
    quartiles = [each.quantiles([0.25, 0.5, 0.75]) for each in points]
    ranges = [each.values[-1] - each.values[0] for each in points]
    centre = np.array([middle for _, middle, _ in quartiles])
    spread = np.array(
        [
            1 / (high - low) if high - low > TINY else 2 / extent if extent > TINY else 0.0
            for (low, _, high), extent in zip(quartiles, ranges, strict=True)
        ]
    )
    bins = int(np.clip(summary.total // _ROWS_A_BIN, 2, _BINS))
    if width == "auto":
        width = min(_WIDTH, max(0, _INPUTS // max(1, len(numbers)) - 1))
    return Inputs(
        places, centre, spread, tuple(each.edges(bins) for each in points), int(width), square
    )
