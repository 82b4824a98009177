"""The held-out rows: a share of each partition, or whole partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps.data.feed.batches import HELD_OUT

#: An integer, or a uint64 array.
_Number = Any


@dataclass(frozen=True)
class HeldOut:
    """The rows that are not trained on.

    One row of each run of ``1 / fraction`` rows of a partition is held out, drawn at random. So
    held-out rows can be counted without drawing them.

    Examples
    --------
    >>> held = HeldOut(0, fraction=0.0, first=2)
    >>> held.rows(1, 3), held.rows(2, 3)
    (None, array([ True,  True,  True]))
    >>> HeldOut(0, fraction=0.1).count(0, 0, 1_000_000_000)
    100000000
    """

    seed: int
    fraction: float  # share of the rows of every partition that is drawn
    # By partition: rows whose choice is fixed, and whether each is held out.
    known: Mapping[int, tuple[NDArray[np.int64], NDArray[np.bool_]]] = field(default_factory=dict)
    # Partitions from this number on are held out as a whole: they are the user's validation data.
    first: int | None = None

    def __bool__(self) -> bool:
        """True if any row is held out."""
        return self.fraction > 0 or self.first is not None

    def rows(self, partition: int, rows: int) -> NDArray[np.bool_] | None:
        """Return a mask of the partition's held-out rows, or None if there are none.

        With fewer rows, the mask of the first rows is the same.
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
        """Count the held-out rows from `start` to `stop` without drawing them."""
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
        """Count the drawn rows before a row."""
        last = self._run(row - 1)  # all earlier runs end before this one
        return last + int(self._drawn(partition, last) < row) if row else 0

    # Runs are computed in integers, so that every machine cuts them alike.

    @property
    def _length(self) -> int:
        """Rows of a run, in fractions of a row."""
        return min(round((1 << _SHARES) / self.fraction), 1 << 62)  # twice this value fits a word

    def _run(self, row: _Number) -> _Number:
        """Return the run of a row."""
        return (((row + 1) << _SHARES) - 1) // self._length

    def _drawn(self, partition: int, run: _Number) -> _Number:
        """Return the row that is drawn from a run."""
        start, stop = run * self._length >> _SHARES, (run + 1) * self._length >> _SHARES
        return start + _mixed(_key(self.seed, partition) + run * _GAMMA & _BITS) % (stop - start)


_SHARES = 24  # bits of a fraction
_BITS = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15


@lru_cache(1 << 12)
def _key(seed: int, partition: int) -> int:
    source = np.random.SeedSequence((seed, 0, partition, HELD_OUT))
    return int(source.generate_state(1, np.uint64)[0])


def _mixed(number: _Number) -> _Number:
    """Mix the bits of a number by SplitMix64 (Steele et al., 2014)."""
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & _BITS
    number = (number ^ number >> 27) * 0x94D049BB133111EB & _BITS
    return number ^ number >> 31
