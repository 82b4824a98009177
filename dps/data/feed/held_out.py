"""Rows kept for validation: a share of each partition, or whole partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dps.data.feed.batches import held_out_rows


@dataclass(frozen=True)
class HeldOut:
    """Rows that are not trained on.

    Examples
    --------
    >>> held = HeldOut(0, fraction=0.0, first=2)
    >>> held.rows(1, 3), held.rows(2, 3)
    (None, array([ True,  True,  True]))
    """

    seed: int
    fraction: float  # share of the rows of every partition, drawn by chance
    # By partition: the rows with a known choice, and whether each is kept.
    known: Mapping[int, tuple[NDArray[np.int64], NDArray[np.bool_]]] = field(default_factory=dict)
    # From this number on partitions are kept as a whole: validation data of the user's.
    first: int | None = None

    def __bool__(self) -> bool:
        """True if any row is kept."""
        return self.fraction > 0 or self.first is not None

    def rows(self, partition: int, rows: int) -> NDArray[np.bool_] | None:
        """A mask of the rows of a partition that are kept, or None if there are none.

        The first rows are the same if it is asked for fewer.
        """
        if self.first is not None and partition >= self.first:
            return np.ones(rows, bool)
        if not self.fraction:
            return None
        kept = held_out_rows(self.seed, partition, rows, self.fraction)
        if partition in self.known:
            at, held = self.known[partition]
            there = at < rows
            kept[at[there]] = held[there]
        return kept
