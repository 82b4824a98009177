"""How to train, from what was asked for: the optimizer, its learning rate, or L-BFGS.

The functions take an estimator for its parameters and look at nothing else of it. What
cannot be honoured raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from dps.losses import Loss
from dps.optimizers import SGD, Cosine, Optimizer
from dps.optimizers.names import OPTIMIZERS, get_optimizer
from dps.optimizers.schedules import SCHEDULES, Constant, Schedule
from dps.training.defaults import (
    FEWEST,
    GAIN_THAT_COUNTS,
    KINK_ERROR,
    KINK_TOL,
    L1_ERROR,
    L1_TOL,
    RELATIVE_TOL,
    TOL_OF_PASSES,
    WIDE_BATCH,
    auto_schedule,
    batch_rows,
    stream_batch,
)

if TYPE_CHECKING:
    from dps.data.survey.rows import DataSummary
    from dps.estimators.base.estimator import DistributedEstimator
    from dps.modes import Mode
    from dps.training.lbfgs.full_batch import FullBatch

#: Stored values of a batch, as a multiple of the parameters, that are worth sharing out.
_WORTH = 4


def choose_optimizer(estimator: DistributedEstimator, loss: Loss) -> Optimizer | None:
    """The optimizer of stochastic steps, None for "auto", checked against other parameters."""
    check_known(estimator.optimizer, "auto", "lbfgs")
    if estimator.optimizer != "lbfgs":
        return None if estimator.optimizer == "auto" else get_optimizer(estimator.optimizer)
    refuse_passes(*_obstacles(estimator, loss))
    return SGD()  # of which no step is taken


def check_known(given: object, *others: str) -> None:
    """Raise where this is no optimizer, and no name of one, nor another that is allowed."""
    names = [*others, *sorted(OPTIMIZERS)]
    if isinstance(given, Optimizer) or (isinstance(given, str) and given in names):
        return
    theirs = getattr(given, "__name__", type(given).__name__).lower()
    hint = f" Use {theirs!r}, or one of dps.optimizers." if theirs in OPTIMIZERS else ""
    raise ValueError(
        f"The 'optimizer' parameter must be an Optimizer or a str among {names}. Got {given!r} "
        f"instead.{hint}"
    )


def check_stochastic(estimator: DistributedEstimator) -> None:
    """Refuse to train one epoch by an algorithm that has none."""
    if estimator.optimizer == "lbfgs":
        refuse_passes("partial_fit")


def _obstacles(estimator: DistributedEstimator, loss: Loss) -> Iterator[str]:
    """What L-BFGS cannot honour of a linear model."""
    if loss.bend == np.inf and not _has_kinks(loss):
        yield f"loss={estimator.loss!r}, whose derivative jumps"
    if estimator.average:
        yield f"average={estimator.average!r}"
    yield from asks_for_steps(estimator)


def asks_for_steps(estimator: DistributedEstimator) -> Iterator[str]:
    """Parameters that only stochastic steps can honour."""
    if estimator._stops_early:
        yield f"early_stopping={estimator.early_stopping!r}"
    for name in ("learning_rate", "batch_size"):
        if (given := getattr(estimator, name, "auto")) != "auto":
            yield f"{name}={given!r}"
    from dps.modes import get_mode

    if get_mode(estimator.mode).takes_steps_only:
        yield f"mode={estimator.mode!r}"


def _has_kinks(loss: Loss) -> bool:
    """Whether the derivative jumps where parabolas can stand for that."""
    return loss.native is not None and loss.native.kinked


def refuse_passes(*obstacles: str) -> None:
    """Raise if there is something that L-BFGS cannot honour."""
    if obstacles:
        raise ValueError(
            f"optimizer='lbfgs' is not possible with {obstacles[0]}: use another optimizer"
        )


def l1_ratio(estimator: DistributedEstimator) -> float:
    """The share of L1 in the penalty."""
    return {"l1": 1.0, "elasticnet": float(estimator.l1_ratio)}.get(estimator.penalty, 0.0)


def choose_batch_size(
    estimator: DistributedEstimator, summary: DataSummary, wide: bool, partial: bool
) -> Any:
    """Rows of an update as asked for; a number where "auto" depends on more than the rows."""
    if estimator.batch_size != "auto":
        return estimator.batch_size
    automatic = batch_rows("auto", summary.total)
    if partial:
        return min(automatic, stream_batch(summary.total))
    return max(WIDE_BATCH, automatic) if wide else "auto"


def choose_replicas(
    estimator: DistributedEstimator,
    mode: Mode,
    summary: DataSummary,
    batch: int,
    n_params: int,
    wide: bool,
) -> Any:
    """Replicas as asked for; on wide rows `FEWEST` where a batch is small beside the vectors.

    A step then is the work on vectors rather than on rows, which more replicas would share out.
    """
    stored = batch * summary.elements / summary.total
    if (
        estimator.n_replicas == "auto"
        and mode.deterministic
        and wide
        and stored < _WORTH * n_params
    ):
        return FEWEST
    return estimator.n_replicas


def takes_steps(estimator: DistributedEstimator, loss: Loss, mode: Mode, tol: float | None) -> bool:
    """Whether there are stochastic steps, whatever the data.

    Also where passes over all rows are possible, if replicas need not wait for each other.
    """
    if estimator.optimizer == "lbfgs":
        return False
    return not (mode.deterministic and _may_finish_with_lbfgs(estimator, loss, tol))


def _may_finish_with_lbfgs(estimator: DistributedEstimator, loss: Loss, tol: float | None) -> bool:
    """Whether the fit may end with passes over all rows, which nobody has asked for."""
    return (
        estimator.optimizer == "auto" and tol is not None and not any(_obstacles(estimator, loss))
    )


def choose_full_batch(
    estimator: DistributedEstimator,
    loss: Loss,
    summary: DataSummary,
    tol: float | None,
    l1: float,
    l2: float,
    wide: bool,
) -> FullBatch | None:
    """L-BFGS, where it was asked for or is the better choice, which it is not on wide rows.

    Where there are stochastic steps, too, see `takes_steps`, it comes after them.
    """
    better = not wide and _may_finish_with_lbfgs(estimator, loss, tol)
    if estimator.optimizer != "lbfgs" and not better:
        return None
    from dps.training.lbfgs.full_batch import FullBatch

    kinks = _has_kinks(loss)
    # The last digits decide which coefficients are zero, and which rows lie at a kink.
    sharp = (L1_TOL if l1 else KINK_TOL) if kinks or l1 else 0.0
    width = (summary.reach(loss) or 1.0) if kinks else 0.0
    unit = width or _unit(loss, summary)
    return FullBatch(
        l2=l2,
        l1=l1,
        tolerance=(tol or 0.0) * (10 * sharp or TOL_OF_PASSES) * unit,
        relative=(tol or 0.0) * (sharp or TOL_OF_PASSES * RELATIVE_TOL),
        patience=int(estimator.n_iter_no_change),
        least=-np.inf if tol is None or l1 else np.inf if kinks else tol * GAIN_THAT_COUNTS * unit,
        width=width,
        near=(tol or 0.0) * (L1_ERROR if l1 else KINK_ERROR),
        row_elements=summary.elements / summary.total,
    )


def _unit(loss: Loss, summary: DataSummary) -> float:
    """A square of the gradient that is large: in a regression, at a standard deviation of y."""
    varying = [
        (mean, std)
        for mean, std in zip(summary.target_mean, summary.target_std, strict=True)
        if std
    ]
    if loss.task == "classification" or not varying:
        return 1.0
    # Of several outputs the one that varies least, so that it is not done before it has begun.
    return min(loss.unit(mean, std) for mean, std in varying)


def choose_schedule(
    estimator: DistributedEstimator,
    optimizer: Optimizer,
    scale: float,
    few: bool = False,
    partial: bool = False,
) -> Schedule:
    """The learning rate of a linear model, see `schedule_of` and `auto_schedule`."""
    return schedule_of(estimator, auto_schedule(optimizer, scale, few, partial))


def rate_of(estimator: DistributedEstimator) -> Any:
    """The learning rate as the estimator or its optimizer has it, else "auto".

    Raises ValueError: both have one.
    """
    given, optimizer = estimator.learning_rate, estimator.optimizer
    own = optimizer.learning_rate if isinstance(optimizer, Optimizer) else "auto"
    if isinstance(own, str) and own == "auto":
        return given
    if isinstance(given, str) and given == "auto":
        return own
    raise ValueError(
        f"learning_rate={given!r} and optimizer={optimizer!r} both give the learning rate: leave "
        "one of them out"
    )


def schedule_of(estimator: DistributedEstimator, automatic: Schedule) -> Schedule:
    """The learning rate, from a number, a schedule, a schedule's name or "auto".

    A schedule of a name starts from where the automatic one does.
    """
    rate = rate_of(estimator)
    if isinstance(rate, Schedule):
        return rate
    if not isinstance(rate, str):
        return Constant(float(rate))
    if rate == "auto":
        return automatic
    if rate not in SCHEDULES:
        raise ValueError(
            "The 'learning_rate' parameter must be a float, a Schedule or a str among "
            f"{['auto', *sorted(SCHEDULES)]}. Got {rate!r} instead."
        )
    first = automatic(0.0)
    if SCHEDULES[rate] is Cosine:
        return Cosine(first, float(estimator.max_iter))
    return SCHEDULES[rate](first)
