"""Which rows are kept for validation: a share of each partition, or whole partitions."""

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
    # Of partitions: rows of which it is known whether they are kept, and whether each is.
    known: Mapping[int, tuple[NDArray[np.int64], NDArray[np.bool_]]] = field(default_factory=dict)
    # From this number on partitions are kept as a whole: validation data of the user's.
    first: int | None = None

    def __bool__(self) -> bool:
        """Whether any row is."""
        return self.fraction > 0 or self.first is not None

    def rows(self, partition: int, rows: int) -> NDArray[np.bool_] | None:
        """Which rows of a partition are kept, the same wherever it is asked; None: not any.

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
