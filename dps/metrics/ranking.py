"""The area under the ROC curve, of counts of scores that partitions put together.

A partition's scores become whole numbers in the same order (the bits of a float64), each with the
weight of the rows that have it, by class. Two such lists merge into one. Where one is longer than
`_MOST`, the last bits are dropped until it is not: what that comes to depends on all the scores
and on no order of merging.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dps.metrics.sums import merged

__all__ = ["roc_auc_score"]

_MOST = 1 << 18  # distinct scores, of 24 bytes each


def roc_auc_score(
    y_true: Any, y_pred: Any, *, sample_weight: Any = None, client: Any = None
) -> float:
    """Chance that a row of the second class has a higher score than one of the first.

    Exact where there are up to 262,144 distinct scores. Where there are more, scores count as
    equal that differ only in the last bits: as many bits as leave so many distinct ones. Pairs of
    rows that are equal count as half, so that the error is at most half the share of pairs of
    rows that have become equal: about 10^-5 where scores are spread out.

    Parameters
    ----------
    y_true : array, series, dask array or dask series of shape (n,)
        Labels of two classes.
    y_pred : array, series, dask array, series or dataframe of shape (n,) or (n, 2)
        Scores, from `decision_function` or `predict_proba`; of two columns the second.
    sample_weight : vector of length n, optional
    client : distributed.Client, cluster or address, optional
        Where to compute; by default wherever Dask does.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        `y_true` does not hold two classes with weight, or scores are NaN.

    Examples
    --------
    >>> import dask.array as da
    >>> from dps.metrics import roc_auc_score
    >>> y = da.from_array([0, 0, 1, 1], chunks=2)
    >>> roc_auc_score(y, da.from_array([0.1, 0.4, 0.35, 0.8], chunks=2))
    0.75
    """
    counts = merged(_counts, _merge, y_true, y_pred, sample_weight, client)
    if len(counts.classes) != 2:
        raise ValueError(
            f"roc_auc_score compares two classes, y_true holds {len(counts.classes)}: "
            f"{counts.classes.tolist()}"
        )
    first, second = counts.weights.T
    below = np.cumsum(first) - first / 2  # equal scores count as half
    pairs = first.sum() * second.sum()
    if not pairs:
        raise ValueError("sample_weight leaves one of the two classes of y_true no weight")
    return float(second @ below / pairs)


class _Counts(NamedTuple):
    """Distinct scores in order, and the weight of each by class.

    Attributes
    ----------
    dropped : int
        Bits that the keys lack.
    keys : (n,) uint64 array
    classes : (k,) array
        Sorted.
    weights : (n, k) float64 array
    """

    dropped: int
    keys: NDArray[np.uint64]
    classes: NDArray[Any]
    weights: NDArray[np.float64]


def _counts(predicted: Any, y: Any, weights: NDArray[Any]) -> _Counts | None:
    if not len(y):  # of any dtype
        return None
    if predicted.ndim == 2:
        if predicted.shape[1] != 2:
            raise ValueError(
                f"roc_auc_score compares two classes, y_pred has {predicted.shape[1]} columns"
            )
        predicted = predicted[:, 1]
    scores = np.array(predicted, np.float64) + 0.0  # there is one zero
    if np.isnan(scores).any():
        raise ValueError("y_pred holds NaN, which has no rank")
    bits = scores.view(np.uint64)
    top = np.uint64(1 << 63)
    keys = np.where(bits & top, ~bits, bits | top)
    classes, codes = np.unique(y, return_inverse=True)
    return _joined(0, keys, classes, codes, weights)


def _joined(
    dropped: int,
    keys: NDArray[np.uint64],
    classes: NDArray[Any],
    codes: NDArray[Any],
    weights: NDArray[Any],
) -> _Counts:
    """Equal keys as one; codes are the class that each weight is of."""
    distinct, places = np.unique(keys, return_inverse=True)
    while len(distinct) > _MOST:
        dropped += 1
        shorter, again = np.unique(distinct >> np.uint64(1), return_inverse=True)
        distinct, places = shorter, again[places]
    shape = len(distinct), len(classes)
    cells = np.bincount(places * len(classes) + codes, weights, minlength=shape[0] * shape[1])
    return _Counts(dropped, distinct, classes, np.asarray(cells, np.float64).reshape(shape))


def _merge(parts: Sequence[_Counts | None]) -> _Counts:
    found = [part for part in parts if part is not None]
    if not found:
        return _Counts(0, np.empty(0, np.uint64), np.empty(0), np.empty((0, 0)))
    dropped = max(part.dropped for part in found)
    classes = np.unique(np.concatenate([part.classes for part in found]))
    keys, codes, weights = [], [], []
    for part in found:
        shorter = part.keys >> np.uint64(dropped - part.dropped)
        keys.append(np.repeat(shorter, len(part.classes)))
        codes.append(np.tile(np.searchsorted(classes, part.classes), len(part.keys)))
        weights.append(part.weights.ravel())
    return _joined(
        dropped, np.concatenate(keys), classes, np.concatenate(codes), np.concatenate(weights)
    )
