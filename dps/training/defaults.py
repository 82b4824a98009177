"""What "auto" means for the optimizer and the learning rate. One place, measured.

Where an epoch is one update (few rows), the gradient has no noise and Adam with a
constant rate is quick. Where it is many, Adagrad is: its steps shrink by themselves,
and each coordinate gets its own, which rare one-hot columns need. Its accumulator
starts near zero rather than at TensorFlow's 0.1, because the mean gradient of a rare
column is so small that 0.1 would freeze it. For regressions the rate is in units of y.

Where sparse rows have many more columns than the rows can tell apart (text), L-BFGS works on
vectors that cost more than a pass over the rows, and needs many passes. A few stochastic epochs
classify as well: on hashed mails, nine instead of 64 passes for the accuracy that
LogisticRegression has. Rates are then in units of the coefficients, which are the larger the
smaller the values are that they are multiplied with.
"""

from __future__ import annotations

import math

from dps.data.inspection import WIDE, DataSummary
from dps.optimizers import Adagrad, Adam, Constant, Optimizer, Schedule

__all__ = [
    "GAIN",
    "PROMISE",
    "WIDE_BATCH",
    "auto_optimizer",
    "auto_schedule",
    "coefficient_scale",
    "is_wide",
]

_MANY = Adagrad(initial_accumulator=1e-6)
_FEW = Adam()
_RATES: tuple[tuple[Optimizer, float], ...] = ((_MANY, 0.1), (_FEW, 0.05))


#: L-BFGS ends when its next step promises less than this share of `tol`, or when some
#: passes in a row have each gained less than the other. Its passes are cheap for what they
#: gain: on breast cancer data, which needs most, 1.0 stopped 3% above the optimum, 0.1 0.7%.
PROMISE, GAIN = 0.01, 0.1


#: Stored values a column up to which sparse rows are called wide, and rows that their batches
#: have at least.
_SELDOM, WIDE_BATCH = 32, 512
#: The rate of wide rows over that of others, at values of one.
_BOLD = 6.0


def is_wide(summary: DataSummary) -> bool:
    """Whether rows are sparse and say little of each column."""
    return (
        summary.sparse
        and summary.n_features >= WIDE
        and summary.elements < _SELDOM * summary.n_features
        and summary.total >= 2 * WIDE_BATCH
    )


def coefficient_scale(summary: DataSummary) -> float:
    """How large coefficients are likely to be: in a regression, in units of y."""
    scale = summary.target_std or 1.0
    if is_wide(summary) and summary.square > 0:
        scale *= _BOLD * math.sqrt(summary.elements / summary.square)
    return scale


def auto_optimizer(rows: int, batch_size: int) -> Optimizer:
    """The optimizer for so many rows.

    Examples
    --------
    >>> auto_optimizer(100, 100)
    Adam(beta1=0.9, beta2=0.999, epsilon=1e-08, lazy=False)
    """
    return _FEW if batch_size >= rows else _MANY


def auto_schedule(optimizer: Optimizer, scale: float) -> Schedule:
    """The learning rate for an optimizer, where y (or a raw output) varies by `scale`.

    Examples
    --------
    >>> auto_schedule(auto_optimizer(1000, 100), scale=2.0)
    Constant(rate=0.2)
    """
    for known, rate in _RATES:
        if optimizer == known:
            return Constant(rate * scale)
    return optimizer.default_schedule
