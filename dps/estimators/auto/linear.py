"""Rules for training a linear model: penalty, method, steps and coordinates, in this order.

The functions take an estimator with its parameters, and the survey of its data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dps.estimators.auto.alpha import find_strength
from dps.estimators.auto.least_squares import has_products
from dps.estimators.auto.passes import (
    has_kinks,
    l1_share,
    minibatch_only_parameters,
    moments_of,
    passes,
    refuse_passes,
)
from dps.estimators.auto.steps import (
    WIDE_BATCH,
    auto_optimizer,
    auto_schedule,
    check_known,
    damp_intercept,
    forget,
    is_wide,
    is_wide_stream,
    rate_of,
    reset_units,
    schedule_of,
    set_units,
    stream_batch,
    stream_rate,
    wide_steps,
)
from dps.estimators.fit.strength import Strength
from dps.losses import Loss
from dps.optimizers import SGD, Averaged, Optimizer
from dps.optimizers.names import get_optimizer
from dps.training.plan.batches import FEWEST, batch_rows, touches_little
from dps.training.state import starting_state

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from sklearn.base import BaseEstimator

    from dps.data.survey.rows import DataSummary
    from dps.estimators.fit.survey import Survey
    from dps.models.linear import LinearModel
    from dps.modes import Mode
    from dps.optimizers.schedules import Schedule
    from dps.training.lbfgs.full_batch import FullBatch

#: Stored values of a batch per parameter from which sharing a batch pays.
_MIN_VALUES_A_PARAMETER = 4


def choose_optimizer(estimator: BaseEstimator, loss: Loss) -> Optimizer | None:
    """Return the optimizer of stochastic steps, None for "auto"; check other parameters."""
    check_known(estimator.optimizer, "auto", "lbfgs")
    if estimator.optimizer != "lbfgs":
        return None if estimator.optimizer == "auto" else get_optimizer(estimator.optimizer)
    refuse_passes(*_obstacles(estimator, loss))
    return SGD()  # no step is taken


def choose_schedule(estimator: BaseEstimator, automatic: Schedule) -> Schedule:
    """Return the learning rate; a schedule given by name starts at the automatic rate."""
    rate, epochs = automatic(0.0), float(estimator.max_iter)
    return schedule_of(rate_of(estimator), automatic, rate, epochs)


def uses_minibatches(estimator: BaseEstimator, loss: Loss, mode: Mode, tol: float | None) -> bool:
    """True if stochastic steps are taken, whatever the data.

    This includes async, in which replicas need not wait, although passes would be possible.
    """
    if estimator.optimizer == "lbfgs":
        return False
    return not (mode.deterministic and _may_finish_with_lbfgs(estimator, loss, tol))


def is_exact(estimator: BaseEstimator, survey: Survey) -> bool:
    """True if products of the columns, and no training, give the optimum."""
    steps = uses_minibatches(estimator, survey.loss, survey.mode, survey.tol)
    return survey.tol is not None and not steps and has_products(survey)


def _may_finish_with_lbfgs(estimator: BaseEstimator, loss: Loss, tol: float | None) -> bool:
    """True if "auto" may end the fit with passes over all rows."""
    return (
        estimator.optimizer == "auto" and tol is not None and not any(_obstacles(estimator, loss))
    )


def _obstacles(estimator: BaseEstimator, loss: Loss) -> Iterator[str]:
    """Yield parameters that L-BFGS cannot honour."""
    if loss.bend == np.inf and not has_kinks(loss):
        yield f"loss={estimator.loss!r}, whose derivative jumps"
    if estimator.average:
        yield f"average={estimator.average!r}"
    yield from minibatch_only_parameters(estimator)


def choose_penalty(estimator: BaseEstimator, survey: Survey, exact: bool) -> tuple[float, bool]:
    """Return the strength, and whether numbers are standardized; fitted attributes get both.

    exact: see `is_exact`.
    """
    if estimator.penalty is None or not isinstance(estimator.alpha, str):
        alpha = 0.0 if estimator.penalty is None else float(estimator.alpha)
        found = Strength(standardize=bool(estimator.standardize))
    else:
        found = find_strength(estimator, survey, survey.summary.n_features, exact=exact)
        # The scale makes weights sum to the rows, so this is one over their sum.
        alpha = survey.targets.scale / survey.rows_so_far
    survey.report(found, alpha)
    survey.attributes["standardize_"] = found.standardize
    return alpha * found.times, found.standardize


@dataclass(frozen=True)
class Method:
    """The method: stochastic steps, passes over all rows, or both in turn; and the penalty."""

    l1: float
    l2: float
    wide: bool  # rows are wide and sparse, like text
    text: bool  # steps use the defaults for text
    steps: bool  # whether stochastic steps were chosen before the data was known
    passes: FullBatch | None
    batch_size: int | str
    batch: int  # rows of an update

    @property
    def full_batch(self) -> FullBatch | None:
        """The passes over all rows; None for stochastic steps."""
        return None if self.steps else self.passes

    @property
    def finish(self) -> FullBatch | None:
        """The passes after stochastic steps."""
        return self.passes if self.steps else None


def choose_method(estimator: BaseEstimator, survey: Survey, alpha: float) -> Method:
    """Return the method for a penalty of strength `alpha`."""
    summary, loss = survey.summary, survey.loss
    share = l1_share(estimator)
    l1, l2 = alpha * share, alpha * (1.0 - share)
    unscaled = survey.encoding is not None and survey.encoding.unscaled
    wide = survey.tol is not None and not unscaled and is_wide(summary, alpha, l1)
    text = wide and choose_optimizer(estimator, loss) is None and rate_of(estimator) == "auto"
    # L-BFGS is no better on wide rows.
    by_default = not wide and _may_finish_with_lbfgs(estimator, loss, survey.tol)
    full_batch = None
    if estimator.optimizer == "lbfgs" or by_default:
        width = (summary.reach(loss) or 1.0) if has_kinks(loss) else 0.0
        full_batch = passes(
            summary, survey.tol, int(estimator.n_iter_no_change), l2,
            l1=l1, unit=width or _unit(loss, summary), width=width,
            # The summary's moments ignore class weights.
            moments=moments_of(summary) if survey.targets.class_weight is None else None,
        )  # fmt: skip
    batch_size = _batch_size(estimator, summary, wide, survey.partial)
    return Method(
        l1, l2, wide, text, uses_minibatches(estimator, loss, survey.mode, survey.tol), full_batch,
        batch_size, batch_rows(batch_size, summary.total),
    )  # fmt: skip


def _batch_size(
    estimator: BaseEstimator, summary: DataSummary, wide: bool, partial: bool
) -> int | str:
    """Return the rows of an update as given; a number if "auto" depends on more than rows."""
    if estimator.batch_size != "auto":
        return int(estimator.batch_size)
    automatic = batch_rows("auto", summary.total)
    if partial:
        return min(automatic, stream_batch(summary.total))
    return max(WIDE_BATCH, automatic) if wide else "auto"


def _unit(loss: Loss, summary: DataSummary) -> float:
    """Return a large squared gradient: for a regression at one standard deviation of y."""
    varying = [
        (mean, std)
        for mean, std in zip(summary.targets.mean, summary.target_std, strict=True)
        if std
    ]
    if loss.task == "classification" or not varying:
        return 1.0
    # The output that varies least, so that training of it does not end at once.
    return min(loss.unit(mean, std) for mean, std in varying)


def choose_steps(
    estimator: BaseEstimator, survey: Survey, method: Method
) -> tuple[Optimizer, Schedule]:
    """Return the optimizer of stochastic steps, and its learning rate."""
    summary, loss = survey.summary, survey.loss
    optimizer: Optimizer
    if method.text:
        optimizer, schedule = wide_steps(summary)
    else:
        optimizer = choose_optimizer(estimator, loss) or auto_optimizer()
        steady = estimator._classification or survey.mode.deterministic
        few = steady and method.batch >= summary.total
        reach = summary.reach(loss) or 1.0
        automatic = auto_schedule(optimizer, reach, few, stream_rate(survey))
        schedule = choose_schedule(estimator, automatic)
    if estimator.average:
        optimizer = Averaged(optimizer, start=(int(estimator.average) - 1) // method.batch)
    return optimizer, schedule


def choose_coordinates(
    estimator: BaseEstimator, survey: Survey, model: LinearModel, method: Method, standardize: bool
) -> tuple[Any, Any]:
    """Return centre and scale of the features: of the last fit, of numbers, or of all that vary."""
    summary, start = survey.summary, survey.start
    before = None if start is None else start.model
    centre, scale = (None, None) if before is None else (before.centre, before.scale)
    spread = None if method.text else summary.spread
    if summary.standards is not None and standardize and before is None:
        from dps.data.survey.spread import centres_far_from_zero

        mean, scale = summary.standards
        # A constant's value is its centre, so its coefficient stays at zero.
        centre = np.where(scale == 1, mean, centres_far_from_zero(mean, scale))
    if spread is not None:
        centre = spread.centre(model.dtype)
    if before is None or spread is not None:
        # Steps by keys would add a centre to the columns that they leave out.
        by_keys = touches_little(summary, model.layout.size, method.batch)
        if not (estimator.fit_intercept and method.steps) or by_keys:
            centre = None
    return centre, scale


def first_state(
    estimator: BaseEstimator,
    survey: Survey,
    optimizer: Optimizer,
    model: LinearModel,
    method: Method,
    varying: NDArray[np.intp],
) -> NDArray[np.floating]:
    """Return the optimizer's initial state; for `varying` columns it is reset."""
    summary = survey.summary
    state, fresh = starting_state(survey.start, optimizer, model)
    forgets = survey.partial and not (fresh or is_wide_stream(survey))
    forgets = forgets and estimator.optimizer == "auto"
    if fresh or len(varying) or forgets:
        state = np.array(state)
    if fresh and method.text:
        damp_intercept(summary, model.layout, state)
    elif fresh and summary.spread is not None:
        units = summary.spread.scale(model.centre, model.dtype)
        units = units if model.scale is None else units / model.scale
        set_units(optimizer, units, model.layout, state)
    elif not fresh and len(varying):
        reset_units(optimizer, varying, model.layout, state)
    if forgets:
        forget(optimizer, summary.total / method.batch, state)
    return state


def choose_replicas(
    estimator: BaseEstimator, survey: Survey, model: LinearModel, method: Method
) -> int | str:
    """Return the number of replicas; `FEWEST` if batches of wide rows are small beside the vectors.

    A step then works on vectors more than on rows, which further replicas would not speed up.
    """
    summary = survey.summary
    stored = method.batch * summary.elements / summary.total
    if (
        estimator.n_replicas == "auto"
        and survey.mode.deterministic
        and method.wide
        and method.full_batch is None
        and stored < _MIN_VALUES_A_PARAMETER * model.layout.size
    ):
        return FEWEST
    return estimator.n_replicas
