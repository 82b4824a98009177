"""An exchange of rows, which moves every row to a random new partition.

The draw uses row numbers only, so it is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from dps.data.feed.batches import EXCHANGED, order_of
from dps.data.feed.targets import as_targets


@dataclass(frozen=True)
class RandomSplit:
    """A random split of rows into new partitions of equal size.

    Examples
    --------
    >>> split = RandomSplit(seed=0, turns=(0, 1, 0), rows=(4, 5))
    >>> [[len(numbers) for numbers in split.draw(partition)] for partition in (0, 1)]
    [[3, 1], [3, 2]]
    """

    seed: int
    # The new partitions in the order in which they get a row, repeatedly. A partition that gets
    # twice the rows occurs twice.
    turns: tuple[int, ...]
    rows: tuple[int, ...]  # rows of each present partition

    def draw(self, partition: int) -> list[NDArray[np.int64]]:
        """Return for each new partition the rows of a partition that go there, ascending."""
        rows = self.rows[partition]
        order = order_of(rows, self.seed, partition, EXCHANGED)
        # Each partition continues where the one before it ended.
        first = sum(self.rows[:partition]) % len(self.turns)
        whole = -(-(first + rows) // len(self.turns))
        goes_to = np.empty(rows, np.int64)
        goes_to[order] = np.tile(self.turns, whole)[first : first + rows]
        by_goal = np.argsort(goes_to, kind="stable")
        counts = np.bincount(goes_to, minlength=max(self.turns) + 1)
        return np.split(by_goal, np.cumsum(counts)[:-1])


def take_rows(X: Any, y: Any, weight: Any, rows: NDArray[np.int64]) -> tuple[Any, Any, Any]:
    """Copy some rows of a partition.

    X: array, CSR rows or dataframe, see `as_rows`.
    rows: (n,) int64 array.
    """
    if isinstance(X, np.ndarray) and X.flags.c_contiguous:
        taken = np.take(X, rows, axis=0)  # copies whole rows, twice as fast as indexing
    else:
        taken = X.iloc[rows] if hasattr(X, "iloc") else X[rows]
    return taken, as_targets(y)[rows], None if weight is None else as_targets(weight)[rows]


def join_rows(pieces: Sequence[tuple[Any, Any, Any]]) -> tuple[Any, Any, Any]:
    """Concatenate X, y and weight of pieces.

    pieces: at least one (X, y, weight); containers and dtypes may differ.
    """
    Xs, ys, weights = zip(*pieces, strict=True)
    weight = None if weights[0] is None else np.concatenate(weights)
    return stacked(Xs), np.concatenate(ys), weight


def count_rows(X: Any, y: Any, weight: Any) -> int:
    """Return the number of rows of a partition."""
    return int(X.shape[0])


def stacked(Xs: Sequence[Any]) -> Any:
    """Concatenate arrays, CSR rows, dataframes or vectors."""
    if len(Xs) == 1:
        return Xs[0]
    if all(hasattr(X, "iloc") for X in Xs):
        import pandas as pd

        # Pandas would convert such columns to objects.
        if any(not X.dtypes.equals(Xs[0].dtypes) for X in Xs):
            Xs = [X.astype(np.float64) for X in Xs]
        return pd.concat(Xs, ignore_index=True)
    if any(scipy.sparse.issparse(X) for X in Xs):
        return scipy.sparse.vstack([scipy.sparse.csr_array(X) for X in Xs], format="csr")
    return np.concatenate([np.asarray(X) for X in Xs])
