"""The variation of each column's values, from a sample of the rows.

A record summarises one partition, and records of a kind can be merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps._kernels.moments import column_moments
from dps.data.feed.blocks import SparseFeatures, features_of
from dps.models.linear import ROUNDINGS

#: Stored values of a partition that are read.
_SAMPLED = 1 << 19
#: Rows that give a guess of the mean, from which deviations are summed.
_GUESSED = 256
#: Deviations from zero within which a mean counts as zero.
_NEAR = 0.5


@dataclass(frozen=True)
class Spread:
    """Sums over some rows, for the columns with stored values.

    Examples
    --------
    >>> one = Spread.of(np.array([[0.0, 2.0, 5.0], [0.0, 4.0, 5.0]]), "f8")
    >>> one.columns, one.count, one.square
    (array([1, 2]), array([2., 2.]), array([20., 50.]))
    >>> spread = Spread.merge([one, Spread.of(np.array([[1.0, 3.0, 5.0]]), "f8")])
    >>> centre = spread.centre("f8")
    >>> centre.round(2), spread.scale(centre, "f8").round(2)
    (array([0., 3., 5.]), array([1.  , 0.82, 5.  ]))
    """

    rows: int
    n_features: int
    columns: NDArray[np.intp]  # (m,)
    # (m,) numbers of values that are not zero, their sums, and sums of squares.
    count: NDArray[np.float64]
    total: NDArray[np.float64]
    square: NDArray[np.float64]

    @classmethod
    def of(cls, X: Any, dtype: Any) -> Spread:
        """Summarise rows from all over a partition.

        X: array, CSR rows or dataframe of numbers, see `as_rows`.
        dtype: float32 or float64, that of the values.
        """
        (rows, width), most = X.shape, _most(X)
        some = features_of(X, dtype).copied(some_of(rows, most))
        if isinstance(some, SparseFeatures):
            at, values = some.indices, some.data.astype(np.float64)
            with np.errstate(over="ignore"):
                weights = values != 0, values, values * values
            sums = [np.bincount(at, weight, width) for weight in weights]
        else:
            values = some.rows(0, most, None).values.astype(np.float64)  # type: ignore[union-attr]
            counts = np.count_nonzero(values, axis=0).astype(np.float64)
            with np.errstate(over="ignore"):
                sums = [counts, values.sum(axis=0), np.einsum("ij,ij->j", values, values)]
        return cls._where_known(most, sums)

    @classmethod
    def merge(cls, parts: Sequence[Spread]) -> Spread:
        """Add up the sums of all parts."""
        sums = np.zeros((3, parts[0].n_features))
        for part in parts:
            sums[:, part.columns] += (part.count, part.total, part.square)
        return cls._where_known(sum(part.rows for part in parts), sums)

    @classmethod
    def _where_known(cls, rows: int, sums: Any) -> Spread:
        columns = np.flatnonzero(sums[0])
        count, total, square = (each[columns].astype(np.float64) for each in sums)
        return cls(rows, len(sums[0]), columns, count, total, square)

    def centre(self, dtype: Any) -> NDArray[np.float64]:
        """Return the columns' means, (n_features,), or zeros if these serve as well."""
        means, found = np.zeros(self.n_features), self.total / self.rows
        means[self.columns] = np.where(np.isfinite(found), found, 0.0)
        return centres_far_from_zero(means, self.scale(means, dtype))

    def scale(self, centre: NDArray[np.float64] | None, dtype: Any) -> NDArray[np.float64]:
        """Return the variation of each column's non-zero values around a centre.

        It is the root of their mean square distance: around the mean the standard deviation, except
        that a rare column of ones has about one. For a constant column it is the value, since later
        rows may have others; for a column without values in the sample, the median of the other
        columns.

        centre: (n_features,) array or None for zero.
        dtype: that of training.
        Returns (n_features,) array, positive.
        """
        count, at = self.count, np.zeros(len(self.columns))
        if centre is not None:
            at = centre[self.columns]
        with np.errstate(over="ignore", invalid="ignore"):  # huge values, see below
            squares = self.square - 2 * at * self.total + at * at * count
            found = np.sqrt(np.maximum(squares / count, 0.0))
        constant = found <= ROUNDINGS * float(np.finfo(dtype).eps) * np.abs(at)
        found = np.where(constant, np.abs(at), found)
        # Values whose squares overflow are left alone, and training reports the consequence.
        found = np.where((found > 0) & np.isfinite(found), found, 1.0)
        scale = np.full(self.n_features, np.median(found) if len(found) else 1.0)
        scale[self.columns] = found
        return scale


def some_of(rows: int, most: int) -> NDArray[np.int64]:
    """Draw at most `most` rows all over a partition, ascending and without repetition."""
    # One row from each stretch: rows at a fixed distance might be of one kind.
    edges = np.arange(most + 1) * rows // max(1, most)
    within = np.random.default_rng(0).random(most)
    return (edges[:-1] + within * np.diff(edges)).astype(np.int64)


def _most(X: Any) -> int:
    """Return the number of rows of a partition to read."""
    rows: int = X.shape[0]
    stored = X.nnz / max(1, rows) if hasattr(X, "nnz") else X.shape[1]
    return min(rows, max(1, int(_SAMPLED / max(1.0, stored))))


@dataclass(frozen=True)
class Moments:
    """Moments of some columns over some rows.

    Examples
    --------
    >>> parts = [Moments.of(np.array([[x]]), None, "f8", np.array([0])) for x in (1.0, 5.0)]
    >>> Moments.merge(parts).variance
    array([4.])
    >>> Moments.merge(parts).standards(2, "f8")
    array([[3., 0.],
           [2., 1.]])
    """

    weight: float  # sum of the sample weights, or number of rows
    columns: NDArray[np.int64]  # (m,)
    mean: NDArray[np.float64]  # (m,) weighted; mean and variance are infinite if they overflow
    variance: NDArray[np.float64]

    @classmethod
    def of(
        cls, X: Any, weights: np.ndarray | None, dtype: Any, columns: NDArray[np.int64]
    ) -> Moments:
        """Compute moments over all rows of a partition with their weights.

        X: array, CSR rows or dataframe of numbers, see `as_rows`.
        weights: (n,) array or None.
        dtype: float32 or float64, that of the values.
        columns: (m,) int array.
        """
        rows, width = X.shape
        weight = float(rows)
        if weights is not None:  # weights may be of any magnitude
            with np.errstate(over="ignore"):
                weight = float(weights.sum(dtype=np.float64))
            weights = (np.ravel(weights) / (weights.max() or 1.0)).astype(dtype)
        if not len(columns):
            return cls(weight, columns, np.zeros(0), np.zeros(0))
        block = features_of(X, dtype).block(np.zeros((rows, 1), dtype), weights)

        def mean(some: NDArray[np.int64], centre: Any) -> NDArray[np.float64]:
            """Return means of the distances from a centre, and of their squares, over some rows."""
            sums = np.zeros((2, width))
            column_moments(block, some, centre, *sums)
            total = len(some) if weights is None else weights[some].sum(dtype=np.float64)
            return sums / (total or 1.0)

        centre = mean(some_of(rows, min(rows, _GUESSED)), None)[0]
        with np.errstate(over="ignore", invalid="ignore"):
            off, square = mean(np.arange(rows), centre)[:, columns]
            variance = np.maximum(square - off * off, 0.0)
        return cls(weight, columns, centre[columns] + off, variance)

    @classmethod
    def merge(cls, parts: Sequence[Moments]) -> Moments:
        """Merge moments over the rows of all parts."""
        found = merged((part.weight, part.mean, part.variance) for part in parts)
        return cls(sum(part.weight for part in parts), parts[0].columns, *found)

    def standards(self, n_features: int, dtype: Any) -> NDArray[np.float64]:
        """Return mean and standard deviation of each column, (2, n_features).

        They are zero and one for a column without moments or with a mean that is not finite. The
        deviation is one if a column does not vary, or if a model in `dtype` cannot divide by its
        deviation.
        """
        found = np.repeat([[0.0], [1.0]], n_features, axis=1)
        deviation, info = np.sqrt(self.variance), np.finfo(dtype)
        # Squares are doubles in any case.
        least = max(ROUNDINGS * float(info.tiny), float(np.finfo(np.float64).tiny) ** 0.5)
        sane = (deviation > least) & (deviation < float(info.max) ** 0.5)
        sane &= deviation > ROUNDINGS * float(info.eps) * np.abs(self.mean)
        found[0, self.columns] = np.where(np.isfinite(self.mean), self.mean, 0.0)
        found[1, self.columns] = np.where(sane, deviation, 1.0)
        return found


def merged(
    parts: Iterable[tuple[float, NDArray[np.float64], NDArray[np.float64]]],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and variance of all rows, without cancellation (Chan, Golub and LeVeque, 1983).

    parts: moments of some rows each; infinite if they overflow.

    Examples
    --------
    >>> one, other = np.array([1e9]), np.array([1e9 + 2])
    >>> mean, variance = merged([(3.0, one, 0 * one), (1.0, other, 0 * one)])
    >>> mean - 1e9, variance
    (array([0.5]), array([0.75]))
    """
    weight: float = 0.0
    mean: Any = 0.0
    variance: Any = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for added, mean_there, variance_there in parts:
            share = added / (weight + added) if added else 0.0
            if not weight:  # nothing came before
                mean, variance = mean_there, variance_there
            elif added:
                away = mean_there - mean
                between = share * (1 - share) * away * away
                variance = variance + share * (variance_there - variance) + between
                mean = mean + share * away
            weight += added
    return np.asarray(mean), np.asarray(variance)


def centres_far_from_zero(
    mean: NDArray[np.float64], scale: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return means as a centre, or zeros if these serve as well, as for one-hot columns."""
    return np.where(np.abs(mean) > _NEAR * scale, mean, 0.0)
