"""Rows kept for validation: a share of each partition, or whole partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps.data.feed.batches import HELD_OUT

#: A whole number, or a uint64 array of some.
_Number = Any


@dataclass(frozen=True)
class HeldOut:
    """Rows that are not trained on.

    Of each run of ``1 / fraction`` rows of a partition one is kept, drawn by chance. So rows can be
    counted without drawing them.

    Examples
    --------
    >>> held = HeldOut(0, fraction=0.0, first=2)
    >>> held.rows(1, 3), held.rows(2, 3)
    (None, array([ True,  True,  True]))
    >>> HeldOut(0, fraction=0.1).count(0, 0, 1_000_000_000)
    100000000
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
        """Return a mask of the partition's rows that are kept, or None if there are none.

        The first rows are the same if it is asked for fewer.
        """
        if self.first is not None and partition >= self.first:
            return np.ones(rows, bool)
        if not self.fraction:
            return None
        kept = np.zeros(rows, bool)
        drawn = self._drawn(partition, np.arange(self._run(rows - 1) + 1, dtype=np.uint64))
        kept[drawn[drawn < rows]] = True
        if partition in self.known:
            at, held = self.known[partition]
            there = at < rows
            kept[at[there]] = held[there]
        return kept

    def count(self, partition: int, start: int, stop: int) -> int:
        """Count the rows from `start` to `stop` that are kept, without drawing them."""
        if self.first is not None and partition >= self.first:
            return stop - start
        if not self.fraction:
            return 0
        count = self._before(partition, stop) - self._before(partition, start)
        if partition in self.known:
            at, held = self.known[partition]
            within = (at >= start) & (at < stop)
            rows = at[within].astype(np.uint64)
            drawn = self._drawn(partition, self._run(rows)) == rows
            count += int(held[within].sum()) - int(drawn.sum())
        return count

    def _before(self, partition: int, row: int) -> int:
        """Count the rows before this one that are drawn."""
        last = self._run(row - 1)  # the runs before it end there
        return last + int(self._drawn(partition, last) < row) if row else 0

    # Runs are cut in whole numbers, so that every machine cuts them alike.

    @property
    def _length(self) -> int:
        """Rows of a run, in shares of a row."""
        return min(round((1 << _SHARES) / self.fraction), 1 << 62)  # its double fits a word

    def _run(self, row: _Number) -> _Number:
        """Return the run that a row is in."""
        return (((row + 1) << _SHARES) - 1) // self._length

    def _drawn(self, partition: int, run: _Number) -> _Number:
        """Return the row that is drawn from a run."""
        start, stop = run * self._length >> _SHARES, (run + 1) * self._length >> _SHARES
        return start + _mixed(_key(self.seed, partition) + run * _GAMMA & _BITS) % (stop - start)


_SHARES = 24  # bits
_BITS = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15


@lru_cache(1 << 12)
def _key(seed: int, partition: int) -> int:
    source = np.random.SeedSequence((seed, 0, partition, HELD_OUT))
    return int(source.generate_state(1, np.uint64)[0])


def _mixed(number: _Number) -> _Number:
    """Mix the bits of a number as SplitMix64 does (Steele et al. 2014)."""
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & _BITS
    number = (number ^ number >> 27) * 0x94D049BB133111EB & _BITS
    return number ^ number >> 31
