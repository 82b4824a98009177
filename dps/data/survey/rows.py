"""One look at each partition, where it lies, before training: rows, classes, defects.

It knows nothing of workers: `inspect_partition` is run wherever a partition is, and
`combine` puts the answers together and raises in the user's terms.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from dps.data.feed.blocks import as_rows
from dps.data.feed.targets import as_targets
from dps.data.keep.streams import Stream, open_partition
from dps.data.survey.defects import (
    defect_of_domain,
    defect_of_features,
    defect_of_lengths,
    defect_of_structure,
    defect_of_targets,
    defect_of_weights,
    is_of_gaps,
)
from dps.data.survey.labels import check_kinds, combine_counts, count_labels
from dps.data.survey.quantiles import Points, combine_points, points_of
from dps.data.survey.spread import (
    ColumnSums,
    Moments,
    Spread,
    combine_spreads,
    merged,
    moments_of,
    spread_of,
    standards,
)
from dps.losses import Loss

#: Columns from which sparse rows may say little of each.
WIDE = 4096
#: Columns up to which sparse rows are looked at as rows of numbers.
NARROW = 256
#: Sample weights that are less on average have lost digits.
_LEAST = 1e-290
#: float32 by its names in NumPy, in pandas' nullable dtypes and in pyarrow.
_SINGLE = frozenset({"float32", "Float32", "float[pyarrow]"})


@dataclass(frozen=True)
class Inspection:
    """What is looked at besides what every fit needs."""

    spread: bool = False  # how the columns of X vary, in a sample of the rows
    points: bool = False  # how their values are distributed, and how long rows are
    # Of these columns; None: of all, unless X is sparse and has more than `NARROW`. Their means
    # and deviations are looked at too; with None those of all columns, unless X is sparse.
    numbers: tuple[int, ...] | None = None


@dataclass(frozen=True)
class PartitionSummary:
    """What one partition holds."""

    rows: int
    n_features: int
    n_outputs: int  # the number of columns of y
    columns: tuple[Any, ...] | None  # their names, of a dataframe
    elements: int  # stored values of X
    # Sum of their squares, of a sparse X with many columns; 0 of others, which need no look.
    square: float
    sparse: bool  # whether X is a sparse matrix
    readable: bool  # whether kernels can read X as it is, see `as_rows`
    dtype: str  # common dtype of X
    # The first thing that is wrong, as the end of a sentence that begins with the place.
    defect: str | None
    classes: np.ndarray  # (k,) sorted distinct labels; empty for regression
    class_rows: NDArray[np.float64]  # (k,) rows and sample weight of each class
    class_weights: NDArray[np.float64]
    weight_sum: float  # sum of sample weights; `rows` without weights
    weightless: int  # rows whose sample weight is zero
    # (n_outputs,) weighted mean of y and its variance, of numbers or of several labels.
    target_mean: NDArray[np.float64]
    target_variance: NDArray[np.float64]
    spread: ColumnSums | None  # where it was asked for
    moments: Moments | None  # of the columns that were asked for
    points: list[Points] | None  # of the columns that were asked for
    repeats: bool = True  # whether a source that was read twice had the same rows


@dataclass(frozen=True)
class DataSummary:
    """What all partitions hold together."""

    rows: tuple[int, ...]  # rows of each partition that is trained on
    n_features: int
    n_outputs: int
    columns: tuple[Any, ...] | None  # names of the columns of X, where it is made of dataframes
    elements: int  # stored values of X
    square: float  # sum of their squares, where X is sparse and has many columns
    sparse: bool  # whether all of X is sparse
    unreadable: tuple[int, ...]  # partitions whose X must be converted, see `as_rows`
    dtype: str  # float32 if all of X is, else float64
    classes: np.ndarray  # (k,)
    class_rows: NDArray[np.float64]  # (k,)
    class_weights: NDArray[np.float64]
    weight_sum: float
    weightless: int  # rows whose sample weight is zero
    target_mean: tuple[float, ...]  # of each column of y, weighted; of one column of labels 0
    target_std: tuple[float, ...]
    spread: Spread | None  # of the columns of X, where it was asked for
    # (2, n_features) of dense columns and of numbers, see `dps.data.survey.spread.standards`; None:
    # there are none.
    standards: NDArray[np.float64] | None
    # Of the columns that were asked for; None where there are none, in all partitions.
    points: tuple[Points, ...] | None
    # Rows of each partition of the user's validation data; all else is of what is trained on.
    validation: tuple[int, ...] = ()

    def reach(self, loss: Loss) -> float:
        """By how much raw outputs vary, over the columns of y in the mean of squares."""
        if loss.task == "classification":
            return 0.0
        of_columns = loss.reach(np.array(self.target_mean), np.array(self.target_std))
        return float(np.sqrt(np.mean(np.square(of_columns))))

    @property
    def total(self) -> int:
        """Rows of all partitions."""
        return sum(self.rows)

    @property
    def row_bytes(self) -> float:
        """Bytes that a row of X takes on average."""
        stored = np.dtype(self.dtype).itemsize + (4 if self.sparse else 0)
        return self.elements * stored / self.total


def inspect_kept(X: Any, y: Any = None, weight: Any = None, **options: Any) -> PartitionSummary:
    """Look at one partition, whatever stands for it; see `inspect_partition`."""
    if not isinstance(X, Stream):
        return inspect_partition(*open_partition(X, y, weight), **options)
    had = X.had(0, X.n_rows)
    repeats = X.origin.repeats(had)
    return replace(inspect_partition(*X.made(had), **options), repeats=repeats)


def warn_unless_repeated(found: Sequence[PartitionSummary], of: str = "") -> None:
    """Warn where a source that is read in each epoch had other rows the second time."""
    other = [number for number, part in enumerate(found) if not part.repeats]
    if other:
        warnings.warn(
            f"partition {other[0]}{of} has other rows each time it is computed"
            + (f", as have {len(other) - 1} more" if len(other) > 1 else "")
            + ", and it is computed in each epoch: rows that are held out of one epoch are "
            "trained on in others. Seed its source or give it an order, or keep what it makes "
            "(persist it, or set dps.cache='disk')",
            UserWarning,
            stacklevel=2,
        )


def inspect_partition(
    X: Any,
    y: Any,
    weight: Any,
    *,
    classification: bool,
    loss: Loss | None = None,
    wanted: Inspection = Inspection(),
) -> PartitionSummary:
    """Look at one partition.

    X: 2-D array, sparse matrix or dataframe of shape (n, n_features).
    y: (n,), (n, 1) or (n, n_outputs) array, series or dataframe.
    weight: (n,) or (n, 1) array or series, or None.
    classification: whether y holds labels rather than numbers.
    loss: decides what targets are.
    """
    given, defect = X, defect_of_structure(X)
    if defect is None:
        X = as_rows(X)
    rows = X.shape[0] if X.ndim else 0
    targets = as_targets(y)
    weights = None if weight is None else as_targets(weight)
    defect = defect or defect_of_lengths(rows, targets, weights)
    if rows and defect is None:  # what has no rows may have any dtype
        defect = (
            defect_of_features(X)
            or defect_of_weights(weights)
            or defect_of_targets(targets, classification)
            or defect_of_domain(targets, loss)
        )
    classes: np.ndarray = np.empty(0)
    class_rows: NDArray[np.float64] = np.empty(0)
    class_weights: NDArray[np.float64] = np.empty(0)
    n_outputs = targets.shape[1] if targets.ndim == 2 else 1
    target_mean = target_variance = np.zeros(n_outputs)
    weight_sum, weightless = float(rows), 0
    if defect is None:
        if weights is not None:
            with np.errstate(over="ignore"):
                weight_sum = float(weights.sum(dtype=np.float64))
            weightless = rows - int(np.count_nonzero(weights))
        if classification and targets.ndim == 1:
            classes, class_rows, class_weights = count_labels(targets.ravel(), weights)
        elif rows:
            values = targets.astype(np.float64).reshape(rows, n_outputs)
            # Weights may be of any size.
            shares = np.ones(rows) if weights is None else weights / (weights.max() or 1.0)
            shares = shares / (shares.sum() or 1.0)
            with np.errstate(over="ignore", invalid="ignore"):  # `check_size` says so
                target_mean = shares @ values
                target_variance = shares @ (values - target_mean) ** 2
    return PartitionSummary(
        rows=rows,
        n_features=X.shape[1] if X.ndim == 2 else 0,
        n_outputs=n_outputs,
        columns=tuple(X.columns) if hasattr(X, "columns") else None,
        elements=int(X.nnz if scipy.sparse.issparse(X) else X.size),
        square=_square(X, wanted.points) if defect is None else 0.0,
        sparse=scipy.sparse.issparse(X),
        readable=X is given,
        dtype=_dtype_of(X),
        defect=defect,
        classes=classes,
        class_rows=class_rows,
        class_weights=class_weights,
        weight_sum=weight_sum,
        weightless=weightless,
        target_mean=target_mean,
        target_variance=target_variance,
        spread=spread_of(X, _dtype_of(X)) if wanted.spread and rows and defect is None else None,
        moments=_moments(X, weights, wanted) if rows and defect is None else None,
        points=_points(X, wanted) if wanted.points and rows and defect is None else None,
    )


def _moments(X: Any, weights: Any, wanted: Inspection) -> Moments | None:
    if wanted.numbers is None and scipy.sparse.issparse(X):
        return None
    numbers = range(X.shape[1]) if wanted.numbers is None else wanted.numbers
    return moments_of(X, weights, _dtype_of(X), np.array(numbers, np.int64))


def _points(X: Any, wanted: Inspection) -> list[Points] | None:
    if wanted.numbers is not None:
        return points_of(X, np.array(wanted.numbers, np.int64))
    if scipy.sparse.issparse(X) and X.shape[1] > NARROW:
        return None
    return points_of(X, np.arange(X.shape[1]))


def _square(X: Any, asked: bool) -> float:
    if not scipy.sparse.issparse(X) or (X.shape[1] < WIDE and not asked):
        return 0.0
    values = X.data if X.data.dtype.kind == "f" else X.data.astype(np.float64)
    # Not by BLAS, whose threads go on spinning on the cores that are to train.
    return float(np.einsum("i,i", values, values))


class GapsError(ValueError):
    """Numbers of dense rows are missing."""


def combine(
    summaries: Sequence[PartitionSummary],
    *,
    classification: bool,
    whole: bool = False,
) -> DataSummary:
    """Put the partitions' summaries together.

    whole: whether the data came in one piece, so that partitions need no mention.
    Raises ValueError: a partition is defective, or there is nothing to learn from.
    """
    gaps = all(is_of_gaps(each.defect) and not (each.rows and each.sparse) for each in summaries)
    kind = GapsError if gaps else ValueError
    for number, summary in enumerate(summaries):
        if summary.defect is not None:
            place = "" if whole else f" in partition {number}"
            raise kind(summary.defect.replace("{place}", place))
    rows = tuple(summary.rows for summary in summaries)
    if sum(rows) == 0:
        raise ValueError("Found array with 0 sample(s): X has no rows, a minimum of 1 is required.")
    filled = [summary for summary in summaries if summary.rows]
    first = filled[0]
    for number, summary in enumerate(summaries):
        if summary.rows:
            _check_alike(summary, first, number, rows.index(first.rows))
    weight_sum = sum(summary.weight_sum for summary in filled)
    if weight_sum <= 0:
        raise ValueError("sample_weight sums to zero: no row counts; give some row weight")
    check_weight(weight_sum / sum(rows), "sample_weight")
    classes: np.ndarray = np.empty(0)
    class_rows = class_weights = np.empty(0)
    if classification:
        check_kinds(
            [(f"partition {number}", each.classes) for number, each in enumerate(summaries)]
        )
        classes, class_rows, class_weights = combine_counts(
            [(s.classes, s.class_rows, s.class_weights) for s in filled]
        )
    dtype = "float32" if all(s.dtype == "float32" for s in filled) else "float64"
    moments = [summary.moments for summary in filled if summary.moments is not None]
    # Where some partitions are sparse and others are not, numbers are those of sparse ones.
    known = len(moments) == len(filled)
    sums = [summary.spread for summary in filled if summary.spread is not None]
    mean, variance = merged((s.weight_sum, s.target_mean, s.target_variance) for s in filled)
    deviation = np.sqrt(np.where(np.isfinite(variance), variance, np.inf))
    return DataSummary(
        rows=rows,
        n_features=first.n_features,
        n_outputs=first.n_outputs,
        columns=first.columns,
        elements=sum(summary.elements for summary in filled),
        square=sum(summary.square for summary in filled),
        sparse=all(summary.sparse for summary in filled),
        unreadable=tuple(n for n, s in enumerate(summaries) if s.rows and not s.readable),
        dtype=dtype,
        classes=classes,
        class_rows=class_rows,
        class_weights=class_weights,
        weight_sum=float(weight_sum),
        weightless=sum(summary.weightless for summary in filled),
        target_mean=tuple(mean.tolist()),
        target_std=tuple(deviation.tolist()),
        spread=combine_spreads(sums, first.n_features) if sums else None,
        standards=standards(moments, first.n_features, dtype) if known else None,
        points=_combined_points(filled),
    )


def _combined_points(summaries: Sequence[PartitionSummary]) -> tuple[Points, ...] | None:
    parts = [summary.points for summary in summaries if summary.points is not None]
    return combine_points(parts) if len(parts) == len(summaries) else None


def check_weight(mean: float, name: str) -> None:
    """Raise where weights of such a mean overflow, or have lost digits."""
    if not _LEAST < mean < np.inf:
        raise ValueError(
            f"{name} is {mean:g} on average, which is no number to compute with: divide it by a "
            "number, so that its average is near 1"
        )


def check_size(summary: DataSummary, dtype: Any) -> None:
    """Raise where squares of the targets of a regression overflow in a model's dtype."""
    most = float(np.sqrt(np.finfo(dtype).max)) / 16
    size = np.hypot(summary.target_mean, summary.target_std).max()
    if not size < most:
        around = f"around {size:.3g}" if np.isfinite(size) else "above 1e+153"
        raise ValueError(
            f"y has values {around}, of which the model, in {np.dtype(dtype)}, takes "
            f"{most:.3g} at the most: divide y by a number, and multiply predictions by it"
        )


def _check_alike(summary: PartitionSummary, first: PartitionSummary, number: int, of: int) -> None:
    """Raise unless a partition has the columns of the first that has rows."""
    if summary.n_features != first.n_features:
        raise ValueError(
            "partitions of X differ in their number of columns: partition "
            f"{number} has {summary.n_features}, partition {of} has {first.n_features}"
        )
    if summary.columns != first.columns:
        raise ValueError(
            "partitions of X differ in their columns: partition "
            f"{number} has {_shown(summary.columns)}, partition {of} has {_shown(first.columns)}"
        )
    if summary.n_outputs != first.n_outputs:
        raise ValueError(
            "partitions of y differ in their number of columns: partition "
            f"{number} has {summary.n_outputs}, partition {of} has {first.n_outputs}"
        )


def _shown(columns: tuple[Any, ...] | None) -> str:
    return "no names" if columns is None else str([str(name) for name in columns])


def _dtype_of(X: Any) -> str:
    if hasattr(X, "dtypes") and hasattr(X, "columns"):
        single = len(X.columns) and all(str(dtype) in _SINGLE for dtype in X.dtypes)
        return "float32" if single else "float64"
    return "float32" if X.dtype == np.float32 else "float64"
