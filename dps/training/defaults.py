"""What "auto" means for the optimizer and the learning rate. One place, measured.

Adagrad's steps shrink by themselves, and each coordinate gets its own, which rare one-hot columns
need. They are in units of the features, of which a sample is looked at, so that these may be of any
size and lie anywhere. Its accumulator starts near zero rather than at TensorFlow's 0.1, because the
mean gradient of a rare column is so small that 0.1 would freeze it. Where an epoch is one update
(few rows) the gradient has no noise, and the rate is higher; not for regressions in async, where
each replica's epoch is an update. For regressions the rate is in units of y.

Where sparse rows say little of each column (text) and the penalty is weak, L-BFGS needs many
passes, on vectors that cost more than a pass. A few stochastic epochs classify as well: on hashed
mails ten instead of 64. With a penalty as strong as LogisticRegression's default, L-BFGS needs
few, and steps as bold would end far from the optimum. Their rate and accumulator are in units of
the stored values, so that these may be of any size. With L1 they would leave twice the columns.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from dps.models.layout import Layout
from dps.optimizers import Adagrad, Adam, Averaged, Constant, Optimizer, ScaledAdagrad, Schedule

if TYPE_CHECKING:
    from dps.data.survey.rows import DataSummary

_Given = TypeVar("_Given", bound=Optimizer | None)

_AUTO, _ADAM = ScaledAdagrad(), Adam()
#: The rate, that where a batch is all rows, and Adam's.
_RATE, _RATE_OF_FEW, _RATE_OF_ADAM = 0.1, 0.3, 0.05
#: Streams: the rate, updates of a part that has enough rows, and updates after which accumulators
#: have forgotten half. What forgets follows what drifts, and pays for it where nothing does.
_RATE_OF_STREAMS, _UPDATES_OF_STREAMS, _HALF_LIFE = 0.2, 64, 128
_SMALLEST_OF_STREAMS = 32
#: Up to so many rows, a batch is all of them.
_FEW_ROWS = 256
#: Otherwise an epoch has about so many updates, of batches up to a size.
_UPDATES_PER_EPOCH = 512
_LARGEST_BATCH = 4096
#: Elements of a whole vector that are updated in the time that one is by its key.
_COST_OF_A_KEY = 8
#: Instead of a number of replicas: one for each worker that holds rows.
FEWEST = "fewest"


#: L-BFGS ends when its next step promises less than this share of `tol`, or when some
#: passes in a row have each gained less than the other. Its passes are cheap for what they
#: gain: on breast cancer data, which needs most, 1.0 stopped 3% above the optimum, 0.1 0.7%.
TOL_OF_PASSES, GAIN_THAT_COUNTS = 0.01, 0.1
#: Of an objective below a quarter the promise is as many times its share: on the flights, whose
#: objective is 0.47, a share of one took 15 passes instead of 11 for the same test loss.
RELATIVE_TOL = 4.0
#: Of a loss with kinks, or with L1, a search ends when a step promises less than this share of
#: `tol` of the objective: promises know little of kinks, and last digits decide on zeros. The
#: kinks are narrow enough when they cost less than so many times `tol` of it, as is proven: with
#: L1 5 left up to four of 40 zeros wrong.
KINK_TOL, L1_TOL, KINK_ERROR, L1_ERROR = 1e-4, 1e-5, 5.0, 0.1


#: Stored values a column up to which sparse rows say little of it; the penalty that is weak, as
#: alpha times rows over a row's mean square length; and the rows that batches have at least.
_SELDOM, _WEAK, WIDE_BATCH = 32, 1 / 50, 512
#: The rate at values of one, and the accumulator's start.
_WIDE_RATE, _WIDE_START = 0.6, 2e-4


def batch_rows(batch_size: int | str, rows: int) -> int:
    """Rows of one update: a number as it is, and a choice that depends on rows only for "auto".

    Examples
    --------
    >>> batch_rows("auto", 100), batch_rows(64, 100)
    (100, 64)
    """
    if not isinstance(batch_size, str):
        return min(int(batch_size), rows)
    if rows <= _FEW_ROWS:
        return rows
    return max(_FEW_ROWS, min(_LARGEST_BATCH, rows // _UPDATES_PER_EPOCH))


def touches_little(summary: DataSummary, size: int, batch_size: int, key_width: int = 1) -> bool:
    """Whether a batch touches so few of a model's parameters that keys of them pay.

    The model has equally many parameters for each column.
    """
    share = summary.elements / summary.total * batch_size / (summary.n_features + 1)
    return summary.sparse and share * (1 + (_COST_OF_A_KEY - 1) / key_width) <= 1


def is_wide(summary: DataSummary, alpha: float, l1: float) -> bool:
    """Whether labelled rows are sparse, say little of each column, and are hardly penalised.

    Not where L1 is to select columns.
    """
    from dps.data.survey.rows import WIDE

    return (
        l1 == 0
        and summary.sparse
        and len(summary.classes) > 0
        and summary.n_features >= WIDE
        and summary.elements < _SELDOM * summary.n_features
        and summary.total >= 2 * WIDE_BATCH
        and alpha * summary.total < _WEAK * summary.square / summary.total
    )


def wide_steps(summary: DataSummary) -> tuple[Optimizer, Schedule]:
    """Optimizer and learning rate for wide rows, in units of their values."""
    square = summary.square / summary.elements
    return (
        Adagrad(initial_accumulator=_WIDE_START * square),
        Constant(_WIDE_RATE / math.sqrt(square)),
    )


def damp_intercept(summary: DataSummary, layout: Layout, state: NDArray[np.floating]) -> None:
    """Make the intercept's steps on wide rows those of values of one, which it has.

    Where the rate is in units of smaller values, each would throw it far off. A large accumulator
    takes them back to about the gradient times the rate at values of one.
    """
    square = summary.square / summary.elements
    for first, last, penalised in layout.segments(0, layout.size):
        if not penalised:
            state[:, first:last] = np.maximum(state[:, first:last], 1 / square)


def base_of(optimizer: _Given) -> Optimizer | _Given:
    """The optimizer whose parameters may be averaged."""
    return optimizer.base if isinstance(optimizer, Averaged) else optimizer


def asks_for_spread(optimizer: Optimizer | None, averaged: bool, before: Optimizer | None) -> bool:
    """Whether steps are in units of the features, and `before` has not found them.

    optimizer: None: `auto_optimizer` chooses.
    averaged: whether its parameters will be averaged, which is another state.
    before: whose state and parameters training goes on from.
    """
    scaled = optimizer is None or isinstance(base_of(optimizer), ScaledAdagrad)
    averaged = averaged or isinstance(optimizer, Averaged)
    known = isinstance(base_of(before), ScaledAdagrad) and isinstance(before, Averaged) == averaged
    return scaled and not known


def set_units(
    optimizer: Optimizer, scale: NDArray[np.float64], layout: Layout, state: NDArray[np.floating]
) -> None:
    """Have the coefficients' steps be those of features that vary by one, and not by `scale`."""
    base = base_of(optimizer)
    if not isinstance(base, ScaledAdagrad):
        return
    units = np.ones(layout.size)
    layout.views(units)["coef"][:] = 1 / scale[:, None]
    base.set_units(state[: base.state_rows], units)


def reset_units(
    optimizer: Optimizer, columns: NDArray[np.intp], layout: Layout, state: NDArray[np.floating]
) -> None:
    """Have the coefficients of some columns begin to step as those of features that vary by one."""
    base = base_of(optimizer)
    if not isinstance(base, ScaledAdagrad):
        return
    fresh = np.empty((base.state_rows, len(columns)), state.dtype)
    base.set_units(fresh, np.ones(len(columns)))
    for row, values in zip(state, fresh, strict=False):
        layout.views(row)["coef"][columns] = values[:, None]


def auto_optimizer() -> Optimizer:
    """The optimizer of rows that are not wide.

    Examples
    --------
    >>> auto_optimizer()
    ScaledAdagrad(learning_rate='auto', initial_accumulator=1e-06)
    """
    return _AUTO


def stream_batch(rows: int) -> int:
    """Rows of an update of `partial_fit`.

    Examples
    --------
    >>> stream_batch(10), stream_batch(2_000), stream_batch(64_000)
    (32, 32, 1000)
    """
    return max(_SMALLEST_OF_STREAMS, -(-rows // _UPDATES_OF_STREAMS))


def forget(optimizer: Optimizer, updates: float, state: NDArray[np.floating]) -> None:
    """Have accumulators forget what was before so many updates of a stream."""
    base = base_of(optimizer)
    if isinstance(base, ScaledAdagrad):
        least = base.initial_accumulator / np.square(state[1])
        state[0] = np.maximum(state[0] * 0.5 ** (updates / _HALF_LIFE), least)


def auto_schedule(
    optimizer: Optimizer, scale: float, few: bool = False, partial: bool = False
) -> Schedule:
    """The learning rate for an optimizer, where y (or a raw output) varies by `scale`.

    few: whether an update is of all rows, or nearly so.
    partial: whether rows are part of a stream.

    Examples
    --------
    >>> auto_schedule(auto_optimizer(), scale=2.0)
    Constant(rate=0.2)
    """
    if optimizer == _AUTO:
        rate = _RATE_OF_STREAMS if partial else _RATE_OF_FEW if few else _RATE
        return Constant(rate * scale)
    if optimizer == _ADAM:
        return Constant(_RATE_OF_ADAM * scale)
    return optimizer.default_schedule
