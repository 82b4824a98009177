"""The distribution of each column's values: a few hundred values with weights.

`points_of` summarises one partition, and `Points.merge` combines summaries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from dps.data.survey.spread import some_of

#: Rows of a partition that are read, and points of a column that are kept.
_SAMPLED, _KEPT = 1 << 15, 256


@dataclass(frozen=True)
class Points:
    """Values of one column, ascending, with the number of rows that each stands for.

    Examples
    --------
    >>> points = Points(np.array([0.0, 1.0, 5.0]), np.array([6.0, 3.0, 1.0]))
    >>> points.quantiles([0.25, 0.75]), points.edges(2)
    (array([0., 1.]), array([0., 1., 5.]))
    """

    values: NDArray[np.float64]  # (m,)
    rows: NDArray[np.float64]

    @classmethod
    def merge(cls, parts: Sequence[Points]) -> Points:
        """Merge the points of one column."""
        values = np.concatenate([points.values for points in parts])
        rows = np.concatenate([points.rows for points in parts])
        distinct, inverse = np.unique(values, return_inverse=True)
        return _fewer(distinct, np.bincount(inverse, rows, len(distinct)), 1.0)

    def quantiles(self, shares: Any) -> NDArray[np.float64]:
        """Return quantiles at some shares of the rows."""
        below = np.cumsum(self.rows)
        at = np.searchsorted(below, np.asarray(shares) * below[-1], side="left")
        return self.values[np.minimum(at, len(self.values) - 1)]

    def edges(self, bins: int) -> NDArray[np.float64]:
        """Return edges of at most about `bins` bins, ascending; at least two, equal for a constant.

        As in LightGBM, a value with more rows than a bin gets an edge of its own, and the other
        rows are divided into bins of equal counts.
        """
        values, rows = self.values, self.rows
        if len(values) < 2:
            return np.repeat(values[:1] if len(values) else np.zeros(1), 2)
        if len(values) <= bins + 1:
            return values
        heavy = np.zeros(len(values), bool)
        left, rest = bins, float(rows.sum())
        while True:
            more = ~heavy & (rows >= rest / max(left, 1))
            if not more.any() or left - more.sum() < 1:
                break
            heavy |= more
            left, rest = left - int(more.sum()), rest - float(rows[more].sum())
        light = np.flatnonzero(~heavy)
        if not len(light):
            return values
        within = np.cumsum(rows[light]) - rows[light] / 2
        at = np.searchsorted(within, np.linspace(0, rest, left + 1))
        cuts = values[light[np.clip(at, 0, len(light) - 1)]]
        return np.unique(np.r_[values[heavy], cuts, values[[0, -1]]])


def points_of(X: Any, columns: NDArray[np.int64]) -> tuple[Points, ...]:
    """Summarise columns from rows all over a partition.

    X: array, CSR matrix or dataframe of numbers, see `as_rows`.
    columns: (n,) int array.
    """
    total = X.shape[0]
    most = min(total, _SAMPLED)
    picks = some_of(total, most)
    if scipy.sparse.issparse(X):
        some = X[picks][:, columns].tocsc()
        read = [some[:, [j]].toarray().ravel() for j in range(len(columns))]
    elif hasattr(X, "iloc"):
        read = [X.iloc[:, int(j)].to_numpy()[picks] for j in columns]
    else:
        read = [X[picks, j] for j in columns]
    counted = [np.unique(np.asarray(each, np.float64), return_counts=True) for each in read]
    return tuple(_fewer(*values, total / max(1, most)) for values in counted)


def _fewer(values: NDArray[np.float64], counts: Any, scale: float) -> Points:
    """Reduce points: heavy ones stay, and each stretch of others becomes one point."""
    counts = np.asarray(counts, np.float64)
    if len(values) <= _KEPT:
        return Points(values, counts * scale)
    middle = np.cumsum(counts) - counts / 2
    stretch = np.minimum((middle * (_KEPT / counts.sum())).astype(np.int64), _KEPT - 1)
    first = np.flatnonzero(np.r_[True, np.diff(stretch) > 0])
    rows = np.add.reduceat(counts, first)
    # The extremes stay. A stretch is represented by its most frequent value, or its middle.
    last = np.r_[first[1:], len(values)] - 1
    at = (first + last) // 2
    heaviest = np.array([a + counts[a : b + 1].argmax() for a, b in zip(first, last, strict=True)])
    heavy = counts[heaviest] * 2 > rows
    at = np.where(heavy, heaviest, at)
    at[0], at[-1] = 0, len(values) - 1
    return Points(values[at], rows * scale)
