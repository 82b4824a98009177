"""Splits by row numbers, as pieces; each row belongs to one.

A piece has rows that every split treats alike: a split trains on some pieces and scores on others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dps._typing import Splitting

#: How a split uses a piece.
TRAIN, TEST = 1, 2
#: Largest number of pieces per partition; each takes a task per argument.
_MOST_PIECES = 256


@dataclass(frozen=True, eq=False)
class FoldNumbers:
    """The pieces of one partition's rows."""

    pieces: NDArray[np.int64]  # (rows,)

    def _assign(self, rows: int, y: Any, number: int) -> NDArray[np.int64]:
        """Return the piece of each row of a partition, see `PartitionKFold`.

        Raises ValueError: there are more or fewer rows than before.
        """
        if rows != len(self.pieces):
            raise ValueError(
                f"X in partition {number} has {rows} rows, and {len(self.pieces)} were expected"
            )
        return self.pieces


@dataclass(frozen=True, eq=False)
class RowSplits:
    """Splits of numbered rows."""

    # (n_pieces, n_splits) how each split uses each piece: `TRAIN`, `TEST` or 0, not at all.
    roles: NDArray[np.int8]
    pieces: NDArray[np.int64]  # (n,) the piece of each row

    @classmethod
    def of(cls, pairs: Sequence[tuple[Any, Any]], n_rows: int) -> RowSplits:
        """Make it from the row numbers, or masks, of training and test rows of each split.

        Raises ValueError: a row does not exist or occurs twice, or there are no training or test
            rows.

        Examples
        --------
        >>> RowSplits.of([([0, 1], [2]), ([2, 1], [0])], 4).roles
        array([[0, 0],
               [1, 1],
               [1, 2],
               [2, 1]], dtype=int8)
        """
        roles = np.zeros((n_rows, len(pairs)), np.int8)
        for split, pair in enumerate(pairs):
            for role, numbers in zip((TRAIN, TEST), pair, strict=True):
                rows = _numbers(numbers, n_rows, f"split {split} of cv")
                if roles[rows, split].any():
                    row = int(rows[roles[rows, split] > 0][0])
                    raise ValueError(f"split {split} of cv trains on row {row} and scores on it")
                roles[rows, split] = role
        distinct, pieces = np.unique(roles, axis=0, return_inverse=True)
        if len(distinct) > _MOST_PIECES:
            raise ValueError(
                f"the {len(pairs)} splits of cv cut rows into {len(distinct):,} kinds, up to "
                f"{_MOST_PIECES} are sensible: give fewer splits, or such as overlap less"
            )
        return cls(distinct, pieces.reshape(-1).astype(np.int64))

    def cut(self, lengths: Sequence[int]) -> list[FoldNumbers]:
        """Return the pieces for partitions of these lengths."""
        return [FoldNumbers(rows) for rows in np.split(self.pieces, np.cumsum(lengths)[:-1])]


def _numbers(given: object, n_rows: int, where: str) -> NDArray[np.int64]:
    rows = np.asarray(given)
    if rows.ndim != 1 or not len(rows) or rows.dtype.kind not in "biu":
        raise ValueError(f"{where} must be two vectors of row numbers, got {given!r}")
    if rows.dtype.kind == "b":
        if len(rows) != n_rows:
            raise ValueError(f"{where} is a mask of {len(rows)} rows, X has {n_rows}")
        return np.flatnonzero(rows)
    if rows.min() < 0 or rows.max() >= n_rows:
        outside = int(rows.max() if rows.max() >= n_rows else rows.min())
        raise ValueError(f"{where} has row {outside}, X has rows 0 to {n_rows - 1}")
    if len(np.unique(rows)) < len(rows):
        raise ValueError(f"{where} has a row twice: give it a sample_weight of 2 instead")
    return rows.astype(np.int64)


def asks_for_labels(cv: Splitting | None) -> bool:
    """True if a splitter uses labels, or may, because it is not scikit-learn's."""
    known = type(cv).__module__.startswith("sklearn.")
    return hasattr(cv, "split") and (not known or "Stratified" in type(cv).__name__)


def splits_of(
    cv: Any, n_rows: int, groups: Any = None, labels: Any = None
) -> list[tuple[Any, Any]]:
    """Return the splits of a splitter of scikit-learn's, or of an iterable of pairs.

    groups, labels: (n_rows,) arrays, for splitters that use them.
    Raises ValueError: it is neither, or needs something else.
    """
    remedy = (
        "give a number of folds, dps.model_selection.PartitionKFold, pairs of row numbers to train "
        "on and to score on, or a splitter of scikit-learn's, such as PredefinedSplit, "
        "StratifiedKFold, or GroupKFold with groups="
    )
    try:
        split = cv
        if hasattr(cv, "split"):
            split = cv.split(np.empty((n_rows, 0)), labels, groups=groups)
        pairs = [tuple(pair) for pair in split]
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"cv={cv!r} cannot split rows by their numbers ({error}): {remedy}"
        ) from error
    if not pairs or any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"cv={cv!r} holds no pairs: {remedy}")
    return pairs
