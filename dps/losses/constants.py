"""The best constant raw outputs for all rows, and their loss.

Losses are compared with it: a tolerance as a share of the loss of the best constant means the same
for rare events, and for every unit of y.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps.losses.base import Loss
from dps.losses.classification import Columnwise, LogLoss, Multilabel, Softmax

#: Largest raw output of a constant, and number of bisections.
_FAR, _HALVINGS = 64.0, 60


def best_constant(loss: Loss, weights: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Return the raw outputs with the least mean loss, and that loss.

    weights: (n_classes,) array, the weight of the rows of each class; for several labels the share
        of rows with each.

    Examples
    --------
    >>> from dps.losses import Hinge, LogLoss
    >>> raw, least = best_constant(LogLoss(), np.array([3.0, 1.0]))
    >>> raw.round(4), round(least, 4)
    (array([-1.0986]), 0.5623)
    >>> best_constant(Hinge(), np.array([3.0, 1.0]))[1].__round__(4)
    0.5
    """
    shares = weights if isinstance(loss, Multilabel) else weights / weights.sum()
    if isinstance(loss, Softmax):
        raw = np.log(shares)
        return raw - raw.mean(), float(-shares @ raw)
    base = loss
    if isinstance(loss, Columnwise):
        base = loss.base
    else:
        shares = shares[1:]
    k = len(shares)
    if isinstance(base, LogLoss):
        raw = np.log(shares / (1 - shares))
        return raw, float(-shares @ np.log(shares) - (1 - shares) @ np.log(1 - shares))
    y = base.targets(np.repeat([0.0, 1.0], k))
    weight, out = np.concatenate([1 - shares, shares]), np.empty((2 * k, 1))

    def evaluate(raw: Any) -> float:
        return base.evaluate(y, np.tile(raw, 2)[:, None], weight, out)

    low, high = np.full(k, -_FAR), np.full(k, _FAR)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        evaluate(middle)
        rises = out[:k, 0] + out[k:, 0] > 0
        low, high = np.where(rises, low, middle), np.where(rises, middle, high)
    raw = (low + high) / 2
    return raw, evaluate(raw)


def losses_of_constant(loss: Loss, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the loss of a row of each class at the best constant, (n_classes,).

    weights: as for `best_constant`, positive, for single labels.

    Examples
    --------
    >>> from dps.losses import LogLoss
    >>> losses_of_constant(LogLoss(), np.array([3.0, 1.0])).round(4)
    array([0.2877, 1.3863])
    """
    raw, _ = best_constant(loss, weights)
    y, out = loss.targets(np.arange(len(weights), dtype=np.float64)), np.empty((1, len(raw)))
    return np.array([loss.evaluate(y[k : k + 1], raw[None], None, out) for k in range(len(y))])


def loss_of_mean(loss: Loss, mean: Any, std: Any) -> float:
    """Return the loss of a regression that predicts the start for targets one deviation away."""
    y = np.add(mean, std)[None]
    at_start, at_best = (
        np.asarray(loss.start(each), np.float64) for each in (np.array(mean), y[0])
    )
    out = np.empty_like(y)
    return loss.evaluate(y, at_start[None], None, out) - loss.evaluate(y, at_best[None], None, out)
