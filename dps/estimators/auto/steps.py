"""Stochastic steps: the optimizer, the learning rate, and the optimizer's initial state.

"auto" of linear models is Adagrad. Its steps shrink by themselves, and each coordinate gets its
own, which rare one-hot columns need. They are in units of the features, estimated from a sample, so
that features may have any scale and offset. The accumulator starts near zero rather than at
TensorFlow's 0.1, because the mean gradient of a rare column is so small that 0.1 would freeze it.
With few rows an epoch is one update: the gradient has no noise, and the rate is higher, except for
regressions in async, where each replica's epoch is an update. For regressions the rate is in units
of y.

On wide sparse rows (text) with a weak penalty, L-BFGS needs many passes, on vectors that cost more
than a pass. A few stochastic epochs classify as well: on hashed mails ten instead of 64. With a
penalty as strong as LogisticRegression's default, L-BFGS needs few passes, and learning rates as
large would miss the optimum. Rate and accumulator are in units of the stored values, which may have
any scale. With L1 these steps would leave twice the columns.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dps.models.layout import Layout
from dps.optimizers import (
    OPTIMIZERS,
    Adagrad,
    Adam,
    Averaged,
    Constant,
    Optimizer,
    ScaledAdagrad,
    Schedule,
)
from dps.optimizers.averaged import base_of
from dps.optimizers.schedules import SCHEDULES, Cosine

if TYPE_CHECKING:
    from dps.data.survey.rows import DataSummary
    from dps.estimators.base.estimator import DistributedEstimator
    from dps.estimators.fit.survey import Survey

_AUTO, _ADAM = ScaledAdagrad(), Adam()
#: Learning rate; with one batch of all rows; and of Adam.
_RATE, _RATE_OF_FEW, _RATE_OF_ADAM = 0.1, 0.3, 0.05
#: For streams: learning rate, updates for a part with enough rows, and updates after which
#: accumulators have forgotten half. Forgetting follows drift, and costs accuracy without drift.
_RATE_OF_STREAMS, _UPDATES_OF_STREAMS, _HALF_LIFE = 0.2, 64, 128
_SMALLEST_OF_STREAMS = 32
#: For streams of wide sparse rows, whose columns are rare: the learning rate, and the share of it
#: that remains after a `fit`, which has converged.
_RATE_OF_WIDE_STREAMS, RATE_AFTER_FIT = 0.1, 0.1
#: Stored values per column up to which sparse rows say little about it; a weak penalty, as alpha
#: times rows over a row's mean squared length; and the least batch size.
_SELDOM, _WEAK, WIDE_BATCH = 32, 1 / 50, 512
#: Learning rate for values of one, and the initial accumulator.
_WIDE_RATE, _WIDE_START = 0.6, 2e-4


def check_known(given: object, *others: str) -> None:
    """Raise unless it is an optimizer or an allowed name."""
    names = [*others, *sorted(OPTIMIZERS)]
    if isinstance(given, Optimizer) or (isinstance(given, str) and given in names):
        return
    theirs = getattr(given, "__name__", type(given).__name__).lower()
    hint = f" Use {theirs!r}, or one of dps.optimizers." if theirs in OPTIMIZERS else ""
    raise ValueError(
        f"The 'optimizer' parameter must be an Optimizer or a str among {names}. Got {given!r} "
        f"instead.{hint}"
    )


def rate_of(estimator: DistributedEstimator) -> Any:
    """Return the learning rate of the estimator or its optimizer, else "auto".

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


def schedule_of(given: Any, automatic: Schedule, rate: float, epochs: float) -> Schedule:
    """Return the learning rate from a number, a schedule, a schedule's name or "auto".

    rate: start of a schedule given by name.
    epochs: length of a cosine.
    """
    if isinstance(given, Schedule):
        return given
    if not isinstance(given, str):
        return Constant(float(given))
    if given == "auto":
        return automatic
    if given not in SCHEDULES:
        raise ValueError(
            "The 'learning_rate' parameter must be a float, a Schedule or a str among "
            f"{['auto', *sorted(SCHEDULES)]}. Got {given!r} instead."
        )
    return Cosine(rate, epochs) if SCHEDULES[given] is Cosine else SCHEDULES[given](rate)


def auto_optimizer() -> Optimizer:
    """Return the optimizer for rows that are not wide.

    Examples
    --------
    >>> auto_optimizer()
    ScaledAdagrad(learning_rate='auto', initial_accumulator=1e-06)
    """
    return _AUTO


def auto_schedule(
    optimizer: Optimizer, scale: float, few: bool = False, of_stream: float | None = None
) -> Schedule:
    """Return the learning rate for an optimizer if y (or a raw output) varies by `scale`.

    few: whether an update uses all rows, or nearly all.
    of_stream: the rate for rows of a stream, see `stream_rate`.

    Examples
    --------
    >>> auto_schedule(auto_optimizer(), scale=2.0)
    Constant(rate=0.2)
    """
    if optimizer == _AUTO:
        rate = of_stream or (_RATE_OF_FEW if few else _RATE)
        return Constant(rate * scale)
    if optimizer == _ADAM:
        return Constant(_RATE_OF_ADAM * scale)
    return optimizer.default_schedule


def needs_scales(optimizer: Optimizer | None, averaged: bool, before: Optimizer | None) -> bool:
    """True if steps are in units of the features, and `before` does not know these.

    optimizer: None means that `auto_optimizer` chooses.
    averaged: whether its parameters will be averaged, which has another state.
    before: optimizer of the state that training continues from.
    """
    scaled = optimizer is None or isinstance(base_of(optimizer), ScaledAdagrad)
    averaged = averaged or isinstance(optimizer, Averaged)
    known = isinstance(base_of(before), ScaledAdagrad) and isinstance(before, Averaged) == averaged
    return scaled and not known


def set_units(
    optimizer: Optimizer, scale: NDArray[np.float64], layout: Layout, state: NDArray[np.floating]
) -> None:
    """Put steps of coefficients in units of their features, which vary by `scale`."""
    base = base_of(optimizer)
    if not isinstance(base, ScaledAdagrad):
        return
    units = np.ones(layout.size)
    layout.views(units)["coef"][:] = 1 / scale[:, None]
    base.set_units(state[: base.state_rows], units)


def reset_units(
    optimizer: Optimizer, columns: NDArray[np.intp], layout: Layout, state: NDArray[np.floating]
) -> None:
    """Put steps of some coefficients in units of features that vary by one."""
    base = base_of(optimizer)
    if not isinstance(base, ScaledAdagrad):
        return
    fresh = np.empty((base.state_rows, len(columns)), state.dtype)
    base.set_units(fresh, np.ones(len(columns)))
    for row, values in zip(state, fresh, strict=False):
        layout.views(row)["coef"][columns] = values[:, None]


def stream_batch(rows: int) -> int:
    """Return the rows of an update of `partial_fit`.

    Examples
    --------
    >>> stream_batch(10), stream_batch(2_000), stream_batch(64_000)
    (32, 32, 1000)
    """
    return max(_SMALLEST_OF_STREAMS, -(-rows // _UPDATES_OF_STREAMS))


def is_wide_stream(survey: Survey) -> bool:
    """True for rows of a stream with many columns, each of them rare."""
    from dps.data.survey.rows import WIDE

    return survey.partial and survey.summary.sparse and survey.summary.n_features >= WIDE


def stream_rate(survey: Survey) -> float | None:
    """Return the learning rate of a stream, None for other data."""
    if not survey.partial:
        return None
    if not is_wide_stream(survey):
        return _RATE_OF_STREAMS
    return _RATE_OF_WIDE_STREAMS * (RATE_AFTER_FIT if survey.goes_on_from_fit else 1.0)


def forget(optimizer: Optimizer, updates: float, state: NDArray[np.floating]) -> None:
    """Make the accumulators forget a share of the past, for `updates` updates of a stream."""
    base = base_of(optimizer)
    if isinstance(base, ScaledAdagrad):
        least = base.initial_accumulator / np.square(state[1])
        state[0] = np.maximum(state[0] * 0.5 ** (updates / _HALF_LIFE), least)


def is_wide(summary: DataSummary, alpha: float, l1: float) -> bool:
    """True if labelled rows are sparse, say little about each column, and have a weak penalty.

    False if L1 is to select columns.
    """
    from dps.data.survey.rows import WIDE

    return (
        l1 == 0
        and summary.sparse
        and len(summary.labels.classes) > 0
        and summary.n_features >= WIDE
        and summary.elements < _SELDOM * summary.n_features
        and summary.total >= 2 * WIDE_BATCH
        and alpha * summary.total < _WEAK * summary.square / summary.total
    )


def wide_steps(summary: DataSummary) -> tuple[Optimizer, Schedule]:
    """Return optimizer and learning rate for wide rows, in units of their values."""
    square = summary.square / summary.elements
    return (
        Adagrad(initial_accumulator=_WIDE_START * square),
        Constant(_WIDE_RATE / math.sqrt(square)),
    )


def damp_intercept(summary: DataSummary, layout: Layout, state: NDArray[np.floating]) -> None:
    """Scale the intercept's steps for wide rows to its value, which is one.

    With a rate in units of smaller values each step would be far too large. A large accumulator
    reduces them to about the gradient times the rate for values of one.
    """
    square = summary.square / summary.elements
    for first, last, penalised in layout.segments(0, layout.size):
        if not penalised:
            state[:, first:last] = np.maximum(state[:, first:last], 1 / square)
