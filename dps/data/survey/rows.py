"""The inspection of partitions before training: rows, classes and defects.

`inspect_partition` runs where the partition is. `combine` merges the results and raises errors in
the user's terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from dps._warned import warn
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
from dps.data.survey.labels import Labels, check_kinds
from dps.data.survey.quantiles import Points, points_of
from dps.data.survey.spread import Moments, Spread
from dps.losses import Loss

_Part = TypeVar("_Part")

#: Number of columns from which sparse rows may say little about each.
WIDE = 4096
#: Number of columns up to which sparse rows are inspected like dense ones.
NARROW = 256
#: Sample weights with a smaller mean have lost digits.
_LEAST = 1e-290
#: Names of float32 in NumPy, in pandas' nullable dtypes and in pyarrow.
_SINGLE = frozenset({"float32", "Float32", "float[pyarrow]"})


@dataclass(frozen=True)
class Inspection:
    """Options of the inspection beyond the needs of every fit."""

    spread: bool = False  # variation of the columns of X, from a sample of the rows
    points: bool = False  # distribution of their values, and lengths of rows
    # The columns for `points`; None means all, unless X is sparse and has more than `NARROW`. Means
    # and deviations are computed for these columns as well; with None for all columns, unless X is
    # sparse.
    numbers: tuple[int, ...] | None = None


@dataclass(frozen=True)
class DataSummary:
    """A summary of one partition, or of all."""

    rows: tuple[int, ...]  # rows of each training partition
    n_features: int
    columns: tuple[Any, ...] | None  # names of the columns of X, for dataframes
    elements: int  # stored values of X
    # Sum of their squares, for a sparse X with many columns; else 0.
    square: float
    sparse: bool  # whether all of X is sparse
    unreadable: tuple[int, ...]  # partitions whose X must be converted, see `as_rows`
    dtype: str  # float32 if all of X has that dtype, else float64
    labels: Labels
    # Moments of y's columns, for numbers or several labels; zeros for a column of labels.
    targets: Moments
    weightless: int  # rows whose sample weight is zero
    # Variation of X's columns; None if it was not requested, or is missing for some partitions.
    spread: Spread | None
    moments: Moments | None
    points: tuple[Points, ...] | None
    # Rows of each partition of the user's validation data; all other fields describe training data.
    validation: tuple[int, ...] = ()
    # The first defect of a partition, as the end of a sentence that begins with the place.
    defect: str | None = None
    repeats: bool = True  # whether a source had the same rows when it was read again

    @classmethod
    def merge(cls, parts: Sequence[DataSummary]) -> DataSummary:
        """Merge summaries of partitions without defects, at least one of them with rows."""
        filled = [part for part in parts if part.total]
        first = filled[0]
        points = _all_or_none([part.points for part in filled])
        return cls(
            rows=tuple(part.total for part in parts),
            n_features=first.n_features,
            columns=first.columns,
            elements=sum(part.elements for part in filled),
            square=sum(part.square for part in filled),
            sparse=all(part.sparse for part in filled),
            unreadable=tuple(n for n, part in enumerate(parts) if part.total and part.unreadable),
            dtype="float32" if all(part.dtype == "float32" for part in filled) else "float64",
            labels=Labels.merge([part.labels for part in filled]),
            targets=Moments.merge([part.targets for part in filled]),
            weightless=sum(part.weightless for part in filled),
            spread=_merged(Spread, [part.spread for part in filled]),
            # None if only some partitions are sparse.
            moments=_merged(Moments, [part.moments for part in filled]),
            points=tuple(map(Points.merge, zip(*points, strict=True))) if points else None,
        )

    def after_alike(self, weight: NDArray[np.float64], values: NDArray[np.float64]) -> DataSummary:
        """Return the summary with moments of y that include earlier rows with these values."""
        before = replace(self.targets, weight=float(weight[0]), mean=values, variance=0 * values)
        both = Moments.merge([before, self.targets])
        return replace(self, targets=replace(both, weight=self.targets.weight))

    @property
    def n_outputs(self) -> int:
        """Number of columns of y."""
        return len(self.targets.mean)

    @property
    def target_std(self) -> NDArray[np.float64]:
        """Standard deviation of each column of y, (n_outputs,)."""
        variance = self.targets.variance
        return np.sqrt(np.where(np.isfinite(variance), variance, np.inf))

    @cached_property
    def standards(self) -> NDArray[np.float64] | None:
        """Means and deviations of dense columns and numbers, see `Moments.standards`; or None."""
        if self.moments is None:
            return None
        return self.moments.standards(self.n_features, self.dtype)

    def reach(self, loss: Loss) -> float:
        """Root mean square over the columns of y of the variation of raw outputs."""
        if loss.task == "classification":
            return 0.0
        of_columns = loss.reach(self.targets.mean, self.target_std)
        return float(np.sqrt(np.mean(np.square(of_columns))))

    @property
    def total(self) -> int:
        """Rows of all partitions."""
        return sum(self.rows)

    @property
    def row_bytes(self) -> float:
        """Mean bytes of a row of X."""
        stored = np.dtype(self.dtype).itemsize + (4 if self.sparse else 0)
        return self.elements * stored / self.total


def inspect_kept(X: Any, y: Any = None, weight: Any = None, **options: Any) -> DataSummary:
    """Inspect one partition, whatever represents it; see `inspect_partition`."""
    if not isinstance(X, Stream):
        return inspect_partition(*open_partition(X, y, weight), **options)
    had = X.had(0, X.n_rows)
    repeats = X.origin.repeats(had)
    return replace(inspect_partition(*X.made(had), **options), repeats=repeats)


def warn_unless_repeated(found: Sequence[DataSummary], of: str = "") -> None:
    """Warn if a source that is read in each epoch had other rows the second time."""
    other = [number for number, part in enumerate(found) if not part.repeats]
    if other:
        warn(
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
) -> DataSummary:
    """Inspect one partition.

    X: 2-D array, sparse matrix or dataframe of shape (n, n_features).
    y: (n,), (n, 1) or (n, n_outputs) array, series or dataframe.
    weight: (n,) or (n, 1) array or series, or None.
    classification: whether y holds labels and not numbers.
    loss: says which targets are valid.
    """
    given, defect = X, defect_of_structure(X)
    if defect is None:
        X = as_rows(X)
    rows = X.shape[0] if X.ndim else 0
    targets = as_targets(y)
    weights = None if weight is None else as_targets(weight)
    defect, moments = defect or defect_of_lengths(rows, targets, weights), None
    if rows and defect is None:  # an empty partition may have any dtype
        if weights is None and isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind == "f":
            moments = _moments(X, None, wanted)
        defect = (
            (None if _all_finite(moments, X) else defect_of_features(X))
            or defect_of_weights(weights)
            or defect_of_targets(targets, classification)
            or defect_of_domain(targets, loss)
        )
    sound = bool(rows) and defect is None
    counts = defect is None and classification and targets.ndim == 1
    return DataSummary(
        rows=(rows,),
        n_features=X.shape[1] if X.ndim == 2 else 0,
        columns=tuple(X.columns) if hasattr(X, "columns") else None,
        elements=int(X.nnz if scipy.sparse.issparse(X) else X.size),
        square=_square(X, wanted.points) if defect is None else 0.0,
        sparse=scipy.sparse.issparse(X),
        unreadable=() if X is given else (0,),
        dtype=_dtype_of(X),
        labels=Labels.of(targets.ravel(), weights) if counts else Labels(),
        targets=_targets(targets, weights if sound else None, sound and not counts),
        weightless=rows - int(np.count_nonzero(weights)) if sound and weights is not None else 0,
        spread=Spread.of(X, _dtype_of(X)) if wanted.spread and sound else None,
        moments=(moments or _moments(X, weights, wanted)) if sound else None,
        points=_points(X, wanted) if wanted.points and sound else None,
        defect=defect,
    )


def _targets(targets: np.ndarray, weights: np.ndarray | None, numbers: bool) -> Moments:
    """Return moments of y's columns: their weight, and for numbers mean and variance."""
    n = targets.shape[0] if targets.ndim else 0
    n_outputs = targets.shape[1] if targets.ndim == 2 else 1
    mean, variance, weight = np.zeros(n_outputs), np.zeros(n_outputs), float(n)
    with np.errstate(over="ignore", invalid="ignore"):  # `check_size` reports overflow
        if weights is not None:
            weight = float(weights.sum(dtype=np.float64))
        if numbers:
            values = targets.astype(np.float64).reshape(n, n_outputs)
            # Weights may be of any magnitude.
            shares = np.ones(n) if weights is None else weights / (weights.max() or 1.0)
            shares = shares / (shares.sum() or 1.0)
            # Without BLAS, whose threads would keep spinning on the cores that train.
            mean = np.einsum("i,ij->j", shares, values)
            # Otherwise rounding would make a constant vary.
            mean = np.where((values == values[:1]).all(axis=0), values[0], mean)
            variance = np.einsum("i,ij->j", shares, (values - mean) ** 2)
    return Moments(weight, np.arange(n_outputs), mean, variance)


def _moments(X: Any, weights: Any, wanted: Inspection) -> Moments | None:
    if wanted.numbers is None and scipy.sparse.issparse(X):
        return None
    numbers = range(X.shape[1]) if wanted.numbers is None else wanted.numbers
    return Moments.of(X, weights, _dtype_of(X), np.array(numbers, np.int64))


def _all_finite(moments: Moments | None, X: Any) -> bool:
    """True if the moments show that all values of X are finite."""
    if moments is None or len(moments.columns) < X.shape[1]:
        return False
    return bool(np.isfinite(moments.mean).all() and np.isfinite(moments.variance).all())


def _points(X: Any, wanted: Inspection) -> tuple[Points, ...] | None:
    if wanted.numbers is not None:
        return points_of(X, np.array(wanted.numbers, np.int64))
    if scipy.sparse.issparse(X) and X.shape[1] > NARROW:
        return None
    return points_of(X, np.arange(X.shape[1]))


def _all_or_none(parts: Sequence[_Part | None]) -> list[_Part] | None:
    known = [part for part in parts if part is not None]
    return known if len(known) == len(parts) else None


def _merged(kind: Any, parts: Sequence[_Part | None]) -> _Part | None:
    known = _all_or_none(parts)
    return kind.merge(known) if known else None


def _square(X: Any, asked: bool) -> float:
    if not scipy.sparse.issparse(X) or (X.shape[1] < WIDE and not asked):
        return 0.0
    values = X.data if X.data.dtype.kind == "f" else X.data.astype(np.float64)
    # Without BLAS, whose threads would keep spinning on the cores that train.
    return float(np.einsum("i,i", values, values))


class GapsError(ValueError):
    """Numbers of dense rows are missing."""


def combine(
    parts: Sequence[DataSummary],
    *,
    classification: bool,
    whole: bool = False,
) -> DataSummary:
    """Check the summaries of partitions, and merge them.

    whole: whether the data is not partitioned, so that errors do not mention partitions.
    Raises ValueError: a partition has a defect, or there is nothing to learn from.
    """
    gaps = all(is_of_gaps(part.defect) and not (part.total and part.sparse) for part in parts)
    kind = GapsError if gaps else ValueError
    for number, part in enumerate(parts):
        if part.defect is not None:
            place = "" if whole else f" in partition {number}"
            raise kind(part.defect.replace("{place}", place))
    filled = [number for number, part in enumerate(parts) if part.total]
    if not filled:
        raise ValueError("Found array with 0 sample(s): X has no rows, a minimum of 1 is required.")
    if not any(parts[number].n_features for number in filled):
        raise ValueError("Found array with 0 feature(s): X has no columns, 1 is required at least.")
    for number in filled:
        _check_alike(parts[number], parts[filled[0]], number, filled[0])
    if classification:
        check_kinds([(f"partition {n}", part.labels.classes) for n, part in enumerate(parts)])
    summary = DataSummary.merge(parts)
    if summary.targets.weight <= 0:
        raise ValueError("sample_weight sums to zero: no row counts; give some row weight")
    check_weight(summary.targets.weight / summary.total, "sample_weight")
    return summary


def check_weight(mean: float, name: str) -> None:
    """Raise if the mean of weights is so large or small that computing loses digits."""
    if not _LEAST < mean < np.inf:
        raise ValueError(
            f"{name} is {mean:g} on average, which is no number to compute with: divide it by a "
            "number, so that its average is near 1"
        )


def check_size(summary: DataSummary, dtype: Any) -> None:
    """Raise if squares of a regression's targets overflow in a model's dtype."""
    most = float(np.sqrt(np.finfo(dtype).max)) / 16
    size = np.hypot(summary.targets.mean, summary.target_std).max()
    if not size < most:
        around = f"around {size:.3g}" if np.isfinite(size) else "above 1e+153"
        raise ValueError(
            f"y has values {around}; a model in {np.dtype(dtype)} takes at most {most:.3g}: "
            "divide y by a number, and multiply predictions by it"
        )


def _check_alike(summary: DataSummary, first: DataSummary, number: int, of: int) -> None:
    """Raise unless a partition has the columns of the first partition with rows."""
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
