"""Rules for models that are trained in planned epochs, with outputs of unit scale.

They set layers, schedules, the start of outputs, and the inputs for numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval, StrOptions

from dps.data.survey.quantiles import Points
from dps.estimators.auto.alpha import AUTO, Look, find_strength
from dps.estimators.auto.constants import constant_columns, scaling_of
from dps.estimators.auto.passes import minibatch_only_parameters, refuse_passes
from dps.estimators.auto.steps import RATE_AFTER_FIT, check_known, rate_of, schedule_of
from dps.estimators.base.estimator import DistributedEstimator
from dps.estimators.fit.strength import Strength
from dps.estimators.fit.survey import Request, Survey
from dps.losses.base import Loss, Units
from dps.optimizers import SGD, AdamW, Averaged, Constant, Cosine, Optimizer, Schedule
from dps.optimizers.averaged import base_of
from dps.optimizers.names import get_optimizer
from dps.training.epochs.stopping import StoppingRule

if TYPE_CHECKING:
    from dps._typing import Auto, OptimizerLike, RateLike
    from dps.data.survey.rows import DataSummary, Inspection
    from dps.training.job import Job
    from dps.training.state import Snapshot

#: Steps that "auto" plans; bounds of the number of epochs; rows per batch; batches per epoch.
_STEPS, _FEWEST_EPOCHS, _MOST_EPOCHS = 2500, 12, 100
_SMALLEST, _LARGEST, _BATCHES = 32, 256, 50
#: Epochs over which parameters are averaged.
_MEAN_EPOCHS = 2.0
#: Number of rows from which some are held out.
_ROWS_TO_VALIDATE = 100
#: Share of the epochs for the warm-up.
_WARM = 0.05
#: Spreads from zero at which float32 would blur a column.
_BLURRED = 1e5
#: Largest values for float32, with a margin.
_LARGE = 1e30
#: Epochs of fits that are compared to choose a penalty.
_COMPARED = 6
#: The defaults of AdamW here.
_BETA2, _EPSILON = 0.95, 1e-8
#: Passes over all rows that "auto" plans for L-BFGS, as scikit-learn does.
_PASSES = 200


@dataclass(eq=False, repr=False, kw_only=True)
class Planned(DistributedEstimator):
    """Estimators with planned epochs, whose inputs for numbers use quantiles."""

    alpha: float | Auto = "auto"
    dropout: float = 0.15
    optimizer: OptimizerLike = "auto"
    learning_rate: RateLike = "auto"
    max_iter: int | Auto = "auto"
    tol: float | None = 0.0
    early_stopping: bool | Auto = "auto"
    n_iter_no_change: int | Auto = "auto"

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "hidden_layer_sizes": ["array-like", Interval(Integral, 1, None, closed="left")],
        "activation": [StrOptions({"relu", "silu", "tanh", "logistic", "identity"})],
        "alpha": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"})],
        "dropout": [Interval(Real, 0, 1, closed="left")],
        "optimizer": [str, Optimizer],
        "learning_rate": [Interval(Real, 0, None, closed="neither"), str, Schedule],
        "max_iter": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
    }

    _ends_as_planned: ClassVar[bool] = True

    @property
    def _most_epochs(self) -> int:
        """The given number, or the bound of "auto"."""
        most: Any = self.max_iter
        return _MOST_EPOCHS if most == "auto" else int(most)

    def _epochs_to_compare(self, rows: int) -> int:
        """Epochs of the fits that are compared to choose a penalty, for `rows` rows."""
        return min(_COMPARED, self._most_epochs)

    def _restore_columns(self, survey: Survey, job: Job, kept: Snapshot) -> tuple[Any, Snapshot]:
        """Return the model for y in its own units, with its parameters and state."""
        model: Any = job.model
        if (units := job.targets.units) is not None:
            model = model.with_outputs(job.targets.loss, units.start, units.reach)
        return model, kept

    def _check(self, request: Request) -> None:
        """Check that the loss has a kernel."""
        if request.loss.native is None:
            given: Any = self
            raise ValueError(
                f"loss={given.loss!r} is written in Python, which linear models alone can "
                "train: use a loss of dps.losses"
            )

    def _inspection(self, request: Request) -> Inspection:
        """Request the quantiles of numbers."""
        from dps.data.survey.rows import Inspection

        if request.start is not None and request.start.model is not None:
            constant = constant_columns(request.start.model)
            return Inspection(points=True, numbers=constant) if constant else Inspection()
        encoding = request.encoding
        numbers = None if encoding is None else encoding.encoder._layout.number_columns
        return Inspection(points=True, numbers=numbers)


def auto_batch(rows: int) -> int:
    """Return the rows of an update: a fiftieth of all, as a power of two.

    Examples
    --------
    >>> auto_batch(150), auto_batch(5000), auto_batch(1_000_000)
    (32, 128, 256)
    """
    return int(min(_LARGEST, max(_SMALLEST, 2 ** round(math.log2(max(rows, 1) / _BATCHES)))))


def auto_epochs(rows: int, batch: int) -> int:
    """Return the epochs for about 2,500 updates.

    Examples
    --------
    >>> auto_epochs(150, 32), auto_epochs(20_000, 256), auto_epochs(1_000_000, 256)
    (100, 32, 12)
    """
    return min(_MOST_EPOCHS, max(_FEWEST_EPOCHS, math.ceil(_STEPS * batch / max(rows, 1))))


@dataclass(frozen=True)
class EpochPlan:
    """Rows, batches and epochs, as given or automatic."""

    held_out: bool  # whether early stopping uses held-out rows
    total: int  # all rows, and training rows
    rows: int
    batch: int  # rows of an update
    epochs: int
    patience: int | Auto

    @classmethod
    def of(cls, estimator: DistributedEstimator, survey: Survey, passes: bool = False) -> EpochPlan:
        """Plan the epochs of a fit; `passes` are over all rows."""
        total = rows = survey.summary.total
        held_out = not passes and _holds_out(estimator, survey)
        if held_out and not survey.summary.validation:
            rows = max(1, round(rows * (1 - estimator.validation_fraction)))
        batch = estimator.batch_size
        batch = auto_batch(rows) if batch == "auto" else int(batch)
        epochs = survey.max_iter
        if estimator.max_iter == "auto" and not survey.partial:
            epochs = _PASSES if passes else auto_epochs(rows, min(batch, rows))
        return cls(held_out, total, rows, batch, epochs, estimator.n_iter_no_change)

    def stopping(self, tol: float | None, least: int) -> StoppingRule:
        """Return the stopping rule; "auto" waits for a third of the epochs, at least `least`."""
        patience = max(least, self.epochs // 3) if self.patience == "auto" else int(self.patience)
        return StoppingRule(self.epochs, tol, patience, self.held_out)

    def schedule(self, survey: Survey, rate: float) -> Schedule:
        """Return the learning rate, starting from `rate`; it is constant for a stream."""
        if survey.goes_on_from_fit:
            rate *= RATE_AFTER_FIT
        epochs = None if survey.partial else self.epochs
        return planned_schedule(rate_of(survey.estimator), rate, epochs)

    def averaged(self, optimizer: Optimizer) -> Averaged:
        """Return the optimizer with averaging over the last two epochs."""
        horizon = max(1, round(_MEAN_EPOCHS * self.rows / min(self.batch, self.total)))
        return Averaged(optimizer, horizon=horizon)


def _holds_out(estimator: DistributedEstimator, survey: Survey) -> bool:
    """True if early stopping uses held-out rows."""
    if estimator.early_stopping != "auto":
        return bool(estimator.early_stopping)
    enough = survey.summary.total >= _ROWS_TO_VALIDATE
    return not survey.partial and (enough or bool(survey.summary.validation))


def hidden_units(sizes: Any) -> tuple[int, ...]:
    """The units of each hidden layer.

    Examples
    --------
    >>> hidden_units([64, 32]), hidden_units(8), hidden_units(())
    ((64, 32), (8,), ())
    """
    hidden = (sizes,) if isinstance(sizes, Integral) else tuple(sizes)
    if not all(isinstance(size, Integral) and int(size) > 0 for size in hidden):
        raise ValueError(f"hidden_layer_sizes must be numbers above 0, got {sizes!r}")
    return tuple(map(int, hidden))


def planned_schedule(given: Any, rate: float, epochs: int | None) -> Schedule:
    """Return the learning rate; "auto" is a cosine, or constant without `epochs`."""
    automatic: Schedule = Constant(rate)
    if epochs is not None:
        automatic = Cosine(rate, float(epochs), warmup=_WARM * epochs)
    if isinstance(given, str) and given == "cosine":
        return automatic
    return schedule_of(given, automatic, rate, float(epochs or 1))


def numbers_of(survey: Survey) -> NDArray[np.int64]:
    """Return the columns of numbers.

    Raises ValueError: some partitions are sparse, others dense.
    """
    summary, encoding = survey.summary, survey.encoding
    if encoding is not None:
        return np.array(encoding.encoder._layout.number_columns, np.int64)
    if summary.points is None and not summary.sparse:
        raise ValueError(
            f"some partitions of X are sparse, with {summary.n_features} columns, and others are "
            "dense: make all of one kind"
        )
    return np.arange(0 if summary.points is None else summary.n_features)


def outputs_of(survey: Survey) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the start and the scale of the raw outputs."""
    summary, targets = survey.summary, survey.targets
    scale = np.ones(survey.n_outputs)
    if targets.classes is None:
        mean, std = summary.targets.mean, summary.target_std
        reach = np.asarray(survey.loss.reach(mean, std), np.float64)
        return survey.loss.start(mean), np.where(reach > 0, reach, scale)
    return survey.first_raw(), scale


class Outputs(NamedTuple):
    """The map from outputs in training, which vary by about one, to raw outputs."""

    shift: NDArray[np.float64]
    scale: NDArray[np.float64]
    loss: Loss
    slope: float  # a large derivative of the loss with respect to such an output


def choose_outputs(survey: Survey) -> Outputs:
    """Return the outputs; for a regression also set the units of targets.

    If training continues, they are those of the earlier model.
    """
    before = None if survey.start is None else survey.start.model
    start, reach = outputs_of(survey)
    if before is not None and before.n_outputs == survey.n_outputs:
        start, reach = before.output_shift, before.output_scale
    loss = survey.targets.loss
    if survey.targets.classes is not None:
        return Outputs(start, reach, loss, 1.0)
    units = loss._units(start, reach)
    survey.targets = replace(survey.targets, units=units)
    # One deviation off.
    y = units.of_targets(np.add(survey.summary.targets.mean, survey.summary.target_std))
    slopes = np.empty((1, len(y)))
    units.loss.evaluate(y[None], units.output_shift[None], None, slopes)
    slope = float(np.mean(np.abs(slopes) * units.output_scale))
    return Outputs(units.output_shift, units.output_scale, units.loss, slope if slope > 0 else 1.0)


def dtype_of(
    summary: DataSummary, edges: Sequence[NDArray[np.float64]], units: Units | None
) -> np.dtype[np.floating]:
    """Return float32 if it can represent the columns and the predictions, else float64."""
    points = summary.points or ()
    single = _single_will_do(points, edges)
    if units is not None:
        sizes = np.hypot(summary.targets.mean, summary.target_std)
        known = np.abs(np.log(sizes[sizes > 0]))
        far = np.abs(units.start) > _BLURRED * units.reach
        single = single and not far.any() and bool((known < math.log(_LARGE) / 2).all())
    return np.dtype("f4" if single else "f8")


def _single_will_do(points: Sequence[Points], edges: Sequence[NDArray[np.float64]]) -> bool:
    centre, spread = scaling_of(points)
    if (np.abs(centre) * spread > _BLURRED).any():
        return False
    extremes = [abs(value) for each in points for value in each.values[[0, -1]]]
    steep = [width for each in edges for width in np.diff(each) if width > 0]
    large = max(extremes, default=0.0) < _LARGE and spread.max(initial=0.0) < _LARGE
    return bool(large and min(steep, default=1.0) > 1 / _LARGE)


def adamw(slope: float) -> AdamW:
    """Return AdamW for losses whose derivatives reach `slope`."""
    return AdamW(beta2=_BETA2, epsilon=_EPSILON * slope)


def optimizer_of(given: Any, slope: float = 1.0) -> Optimizer:
    """Return the optimizer of stochastic steps.

    Raises ValueError: there is none of that name.
    """
    if given == "auto":
        return adamw(slope)
    if given == "lbfgs":
        return SGD()  # no step is taken
    check_known(given, "auto", "lbfgs")
    return get_optimizer(given)


def regularized(
    survey: Survey,
    optimizer: Optimizer,
    decay: float,
    penalty: float,
    parameters: int,
    look: Look = AUTO,
) -> tuple[Optimizer, float]:
    """Return the optimizer and the strength of the L2 penalty, by the rules for "auto".

    optimizer: AdamW has a weight decay in place of a penalty.
    decay, penalty: values of "auto" without a search.
    parameters, look: see `find_strength`.
    """
    estimator, base = survey.estimator, base_of(optimizer)
    ours = estimator.alpha == "auto"
    asked, strength, fixed = 0.0 if ours else float(estimator.alpha), penalty, False
    if isinstance(base, AdamW):
        strength, fixed = decay, estimator.optimizer != "auto" and base.weight_decay != "auto"
    if ours and not fixed:
        found = find_strength(estimator, survey, parameters, look)
        survey.report(found, strength)
        strength *= found.times
    else:
        survey.report(Strength(), asked)
    if not isinstance(base, AdamW):
        return optimizer, strength if ours else asked
    if not fixed:
        base = replace(base, weight_decay=strength if ours else 0.0)
        optimizer = replace(optimizer, base=base) if isinstance(optimizer, Averaged) else base
    return optimizer, asked


def check_passes(estimator: DistributedEstimator, partial: bool) -> None:
    """Raise if passes over all rows cannot honour some parameter."""
    dropout = estimator.dropout
    refuse_passes(
        *["partial_fit"] * partial,
        *minibatch_only_parameters(estimator),
        *[f"dropout={dropout!r}"] * (dropout not in (0, type(estimator).dropout)),
    )
