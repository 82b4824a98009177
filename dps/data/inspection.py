"""One look at each partition, where it lies, before training: rows, classes, defects.

It knows nothing of workers: `inspect_partition` is run wherever a partition is, and
`combine` puts the answers together and raises in the user's terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from dps.data.defects import (
    defect_of_features,
    defect_of_lengths,
    defect_of_targets,
    defect_of_weights,
)

__all__ = ["WIDE", "DataSummary", "PartitionSummary", "combine", "inspect_partition"]

#: Columns from which sparse rows may say little of each.
WIDE = 4096
_COUNTED = 1 << 16  # span of integer labels up to which they are counted rather than sorted
_LARGEST = 1 << 62
#: float32 by its names in NumPy, in pandas' nullable dtypes and in pyarrow.
_SINGLE = frozenset({"float32", "Float32", "float[pyarrow]"})


@dataclass(frozen=True)
class PartitionSummary:
    """What one partition holds.

    Attributes
    ----------
    rows, n_features : int
    elements : int
        Stored values of X.
    square : float
        Sum of their squares, of a sparse X with many columns; 0 of others, which need no look.
    sparse : bool
        Whether X is a sparse matrix.
    dtype : str
        Common dtype of X.
    defect : str or None
        The first thing that is wrong, as the end of a sentence that begins with the place.
    classes : (k,) array
        Sorted distinct labels; empty for regression.
    class_rows, class_weights : (k,) float64 arrays
        Rows and sample weight of each class.
    weight_sum : float
        Sum of sample weights; `rows` without weights.
    target_sum, target_squares : float
        Weighted sums of y and of its squares, for regression.
    """

    rows: int
    n_features: int
    elements: int
    square: float
    sparse: bool
    dtype: str
    defect: str | None
    classes: NDArray[Any]
    class_rows: NDArray[np.float64]
    class_weights: NDArray[np.float64]
    weight_sum: float
    target_sum: float
    target_squares: float


@dataclass(frozen=True)
class DataSummary:
    """What all partitions hold together.

    Attributes
    ----------
    rows : tuple of int
        Rows of each partition.
    n_features : int
    elements : int
        Stored values of X.
    square : float
        Sum of their squares, where X is sparse and has many columns.
    sparse : bool
        Whether all of X is sparse.
    dtype : str
        float32 if all of X is, else float64.
    classes : (k,) array
    class_rows, class_weights : (k,) float64 arrays
    weight_sum : float
    target_mean, target_std : float
        Of y, weighted, for regression.
    """

    rows: tuple[int, ...]
    n_features: int
    elements: int
    square: float
    sparse: bool
    dtype: str
    classes: NDArray[Any]
    class_rows: NDArray[np.float64]
    class_weights: NDArray[np.float64]
    weight_sum: float
    target_mean: float
    target_std: float

    @property
    def total(self) -> int:
        """Rows of all partitions."""
        return sum(self.rows)


def inspect_partition(X: Any, y: Any, weight: Any, *, classification: bool) -> PartitionSummary:
    """Look at one partition.

    Parameters
    ----------
    X : 2-D array, sparse matrix or dataframe of shape (n, n_features)
    y : vector of length n
    weight : vector of length n, or None
    classification : bool
        Whether y holds labels rather than numbers.
    """
    rows = X.shape[0]
    targets = np.asarray(y)
    weights = None if weight is None else np.asarray(weight)
    defect = (
        defect_of_lengths(rows, targets, weights)
        or defect_of_features(X)
        or defect_of_weights(weights)
        or defect_of_targets(targets, classification)
    )
    classes: NDArray[Any] = np.empty(0)
    class_rows: NDArray[np.float64] = np.empty(0)
    class_weights: NDArray[np.float64] = np.empty(0)
    target_sum = target_squares = 0.0
    weight_sum = float(rows)
    if defect is None:
        if weights is not None:
            weight_sum = float(weights.sum(dtype=np.float64))
        if classification:
            classes, class_rows, class_weights = _count_classes(targets, weights)
        else:
            values = targets.astype(np.float64)
            factor = values if weights is None else values * weights
            with np.errstate(over="ignore"):  # training says what has become of huge values
                target_sum, target_squares = float(factor.sum()), float(factor @ values)
    return PartitionSummary(
        rows=rows,
        n_features=X.shape[1],
        elements=int(X.nnz if scipy.sparse.issparse(X) else rows * X.shape[1]),
        square=_square(X) if defect is None else 0.0,
        sparse=scipy.sparse.issparse(X),
        dtype=_dtype_of(X),
        defect=defect,
        classes=classes,
        class_rows=class_rows,
        class_weights=class_weights,
        weight_sum=weight_sum,
        target_sum=target_sum,
        target_squares=target_squares,
    )


def _square(X: Any) -> float:
    if not scipy.sparse.issparse(X) or X.shape[1] < WIDE:
        return 0.0
    values = X.data if X.data.dtype.kind == "f" else X.data.astype(np.float64)
    # Not by BLAS, whose threads go on spinning on the cores that are to train.
    return float(np.einsum("i,i", values, values))


def _count_classes(
    targets: NDArray[Any], weights: NDArray[Any] | None
) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.float64]]:
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


def combine(
    summaries: Sequence[PartitionSummary], *, classification: bool, whole: bool = False
) -> DataSummary:
    """Put the partitions' summaries together.

    Parameters
    ----------
    whole : bool
        Whether the data came in one piece, so that partitions need no mention.

    Raises
    ------
    ValueError
        A partition is defective, or there is nothing to learn from.
    """
    for number, summary in enumerate(summaries):
        if summary.defect is not None:
            place = "" if whole else f" in partition {number}"
            raise ValueError(summary.defect.format(place=place))
    rows = tuple(summary.rows for summary in summaries)
    if sum(rows) == 0:
        raise ValueError("Found array with 0 sample(s): X has no rows, a minimum of 1 is required.")
    filled = [summary for summary in summaries if summary.rows]
    widths = {summary.n_features for summary in filled}
    if len(widths) > 1:
        raise ValueError(f"partitions of X differ in their number of columns: {sorted(widths)}")
    weight_sum = sum(summary.weight_sum for summary in filled)
    if weight_sum <= 0:
        raise ValueError("sample_weight sums to zero: no row counts; give some row weight")
    classes: NDArray[Any] = np.empty(0)
    class_rows = class_weights = np.empty(0)
    if classification:
        classes, class_rows, class_weights = _combine_classes(filled)
    mean = sum(summary.target_sum for summary in filled) / weight_sum
    square = sum(summary.target_squares for summary in filled) / weight_sum
    return DataSummary(
        rows=rows,
        n_features=widths.pop(),
        elements=sum(summary.elements for summary in filled),
        square=sum(summary.square for summary in filled),
        sparse=all(summary.sparse for summary in filled),
        dtype="float32" if all(s.dtype == "float32" for s in filled) else "float64",
        classes=classes,
        class_rows=class_rows,
        class_weights=class_weights,
        weight_sum=float(weight_sum),
        target_mean=float(mean),
        target_std=float(np.sqrt(max(0.0, square - mean * mean))),
    )


def _combine_classes(
    summaries: Sequence[PartitionSummary],
) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.float64]]:
    classes = np.unique(np.concatenate([summary.classes for summary in summaries]))
    rows, weights = np.zeros(len(classes)), np.zeros(len(classes))
    for summary in summaries:
        codes = np.searchsorted(classes, summary.classes)
        rows[codes] += summary.class_rows
        weights[codes] += summary.class_weights
    return classes, rows, weights


def _dtype_of(X: Any) -> str:
    if hasattr(X, "dtypes") and hasattr(X, "columns"):
        single = len(X.columns) and all(str(dtype) in _SINGLE for dtype in X.dtypes)
        return "float32" if single else "float64"
    return "float32" if X.dtype == np.float32 else "float64"
