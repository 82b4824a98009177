"""How a linear model is trained: method, steps and coordinates, in this order.

The functions take an estimator for its parameters, and the survey of its data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dps.estimators.auto.optimizers import (
    choose_batch_size,
    choose_full_batch,
    choose_optimizer,
    choose_replicas,
    choose_schedule,
    l1_ratio,
    rate_of,
    takes_steps,
)
from dps.optimizers import Averaged, Optimizer
from dps.training.defaults import (
    auto_optimizer,
    batch_rows,
    damp_intercept,
    forget,
    is_wide,
    reset_units,
    set_units,
    touches_little,
    wide_steps,
)
from dps.training.state import starting_state

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from sklearn.base import BaseEstimator

    from dps.estimators.fit.survey import Survey
    from dps.models.linear import LinearModel
    from dps.optimizers.schedules import Schedule
    from dps.training.lbfgs.full_batch import FullBatch


@dataclass(frozen=True)
class Method:
    """Stochastic steps, passes over all rows, or one after the other; and the penalty."""

    l1: float
    l2: float
    wide: bool  # rows are wide and sparse, like texts
    text: bool  # steps have the defaults for texts
    steps: bool  # whether stochastic steps were chosen before anything was known of the data
    passes: FullBatch | None
    batch_size: Any
    batch: int  # rows of an update

    @property
    def full_batch(self) -> FullBatch | None:
        """Passes, if there are no stochastic steps."""
        return None if self.steps else self.passes

    @property
    def finish(self) -> FullBatch | None:
        """Passes after stochastic steps."""
        return self.passes if self.steps else None


def choose_method(estimator: BaseEstimator, survey: Survey, alpha: float) -> Method:
    """The method, for a penalty of strength `alpha`."""
    summary, loss, share = survey.summary, survey.loss, l1_ratio(estimator)
    l1, l2 = alpha * share, alpha * (1.0 - share)
    unscaled = survey.encoding is not None and survey.encoding.unscaled
    wide = survey.tol is not None and not unscaled and is_wide(summary, alpha, l1)
    text = wide and choose_optimizer(estimator, loss) is None and rate_of(estimator) == "auto"
    batch_size = choose_batch_size(estimator, summary, wide, survey.partial)
    return Method(
        l1, l2, wide, text, takes_steps(estimator, loss, survey.mode, survey.tol),
        choose_full_batch(estimator, loss, summary, survey.tol, l1, l2, wide),
        batch_size, batch_rows(batch_size, summary.total),
    )  # fmt: skip


def choose_steps(
    estimator: BaseEstimator, survey: Survey, method: Method
) -> tuple[Optimizer, Schedule]:
    """The optimizer of stochastic steps, and its learning rates."""
    summary, loss = survey.summary, survey.loss
    optimizer: Optimizer
    if method.text:
        optimizer, schedule = wide_steps(summary)
    else:
        optimizer = choose_optimizer(estimator, loss) or auto_optimizer()
        steady = estimator._classification or survey.mode.deterministic
        few = steady and method.batch >= summary.total
        reach = summary.reach(loss) or 1.0
        schedule = choose_schedule(estimator, optimizer, reach, few, survey.partial)
    if estimator.average:
        optimizer = Averaged(optimizer, start=(int(estimator.average) - 1) // method.batch)
    return optimizer, schedule


def choose_coordinates(
    estimator: BaseEstimator, survey: Survey, model: LinearModel, method: Method, standardize: bool
) -> tuple[Any, Any]:
    """Centre and scale of the features: of the last fit, of numbers, or of all that vary."""
    summary, start = survey.summary, survey.start
    before = None if start is None else start.model
    centre, scale = (None, None) if before is None else (before.centre, before.scale)
    spread = None if method.text else summary.spread
    if summary.standards is not None and standardize and before is None:
        from dps.data.survey.spread import far_means

        mean, scale = summary.standards
        # A constant's whole value is its centre, so that its coefficient stays at zero.
        centre = np.where(scale == 1, mean, far_means(mean, scale))
    if spread is not None:
        centre = spread.centre(model.dtype)
    if before is None or spread is not None:
        # Steps by keys would bring a centre to columns that they leave out.
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
    """The optimizer's state before the first step; of `varying` columns it begins anew."""
    summary = survey.summary
    state, fresh = starting_state(survey.start, optimizer, model)
    forgets = survey.partial and not fresh and estimator.optimizer == "auto"
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


def replicas_of(
    estimator: BaseEstimator, survey: Survey, model: LinearModel, method: Method
) -> Any:
    """Replicas as asked for; few where rows are wide, and steps stochastic."""
    return choose_replicas(
        estimator, survey.mode, survey.summary, method.batch, model.layout.size,
        method.wide and method.full_batch is None,
    )  # fmt: skip
