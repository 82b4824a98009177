"""How often labels occur in a partition, and in all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Counts", "combine_counts", "count_labels"]

#: Sorted distinct labels, and the rows and the weight of each.
Counts = tuple[NDArray[Any], NDArray[np.float64], NDArray[np.float64]]

_COUNTED = 1 << 16  # span of integer labels up to which they are counted rather than sorted
_LARGEST = 1 << 62


def count_labels(targets: NDArray[Any], weights: NDArray[Any] | None) -> Counts:
    """Sorted distinct labels, and the rows and the weight of each."""
    low, high = (0, _COUNTED) if targets.dtype.kind not in "biu" else _range(targets)
    if high - low < _COUNTED:  # small integers are counted, which is faster than sorting them
        codes = targets.astype(np.int64) - low
        present = np.flatnonzero(np.bincount(codes))
        classes = (present + low).astype(targets.dtype)
    else:
        classes, codes = np.unique(targets, return_inverse=True)
        present = np.arange(len(classes))
    rows = np.bincount(codes)[present].astype(np.float64)
    if weights is None:
        return classes, rows, rows
    weighed = np.bincount(codes, weights.astype(np.float64))[present]
    return classes, rows, weighed.astype(np.float64)


def _range(targets: NDArray[Any]) -> tuple[int, int]:
    if not len(targets):
        return 0, _COUNTED
    low, high = int(targets.min()), int(targets.max())
    return (low, high) if low > -_LARGEST and high < _LARGEST else (0, _COUNTED)


def combine_counts(counts: Sequence[Counts]) -> Counts:
    """The counts of several partitions together."""
    classes = np.unique(np.concatenate([labels for labels, _, _ in counts]))
    rows, weights = np.zeros(len(classes)), np.zeros(len(classes))
    for labels, of_rows, of_weights in counts:
        codes = np.searchsorted(classes, labels)
        rows[codes] += of_rows
        weights[codes] += of_weights
    return classes, rows, weights
