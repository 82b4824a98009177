"""The rule that finds slow replicas from their counts.

Pure: told moments, it says what has changed.

A replica is slow by its **rate**, rows a second of all its time but waiting, where that is below
half of the median of the others', over the last seconds and at least `STEPS` steps of each. One
that gets through no step has no rate: it is slow by its **silence**, where all others stand
waiting for it, for `GRACE_SECONDS` seconds and for longer than a step takes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

#: Least time of a rate in seconds, and least number of steps of each replica.
SPAN, STEPS = 2.0, 4
#: A replica with a smaller share of the others' rate is slow; above the second one it has
#: recovered.
SLOW, CAUGHT_UP = 0.5, 0.67
#: Seconds for which the others must wait.
GRACE_SECONDS = 2.0
_KEPT = 128  # moments


@dataclass(frozen=True)
class Moment:
    """The progress of a replica at a time."""

    rows: int  # rows since the start
    steps: int
    busy: float  # seconds since the start without waiting
    arrived: int  # the last barrier that it has reached; unused in modes without waiting


@dataclass(frozen=True)
class Verdict:
    """A replica that became slow, or recovered."""

    rank: int
    slow: bool
    ratio: float | None  # its rate over the median of the others'; None without a rate
    why: str


class Stragglers:
    """Watches the replicas of a fit.

    together: whether replicas wait for each other at every step.

    Examples
    --------
    >>> watched = Stragglers(together=False)
    >>> for second in range(4):
    ...     found = watched.look(second, [
    ...         Moment(rows, 10 * second, float(second), 0)
    ...         for rows in (1000 * second, 1000 * second, 250 * second)
    ...     ])
    ...     for verdict in found:
    ...         print(second, verdict.rank, verdict.why)
    2 2 it gets through rows at 0.25 of the others' pace
    """

    def __init__(self, *, together: bool) -> None:
        self._together = together
        self._past: deque[tuple[float, tuple[Moment, ...]]] = deque(maxlen=_KEPT)
        # The only replica that is waited for, and since when.
        self._behind: tuple[int, float] | None = None
        self._slow: set[int] = set()

    def look(self, now: float, moments: Sequence[Moment]) -> list[Verdict]:
        """Add the progress of all replicas, in rank order; return changes."""
        present = tuple(moments)
        ratios = self._ratios(now, present)
        silent = self._silent(now, present) if self._together else None
        self._past.append((now, present))
        verdicts = []
        for rank in range(len(present)):
            ratio = ratios.get(rank)
            if rank not in self._slow:
                if silent is not None and silent[0] == rank:
                    why = f"all others have been waiting for it for {silent[1]:.1f} s"
                    verdicts.append(Verdict(rank, True, None, why))
                elif ratio is not None and ratio < SLOW:
                    why = f"it gets through rows at {ratio:.2f} of the others' pace"
                    verdicts.append(Verdict(rank, True, ratio, why))
            elif ratio is not None and ratio > CAUGHT_UP and silent is None:
                why = f"it gets through rows at {ratio:.2f} of the others' pace again"
                verdicts.append(Verdict(rank, False, ratio, why))
        self._slow ^= {verdict.rank for verdict in verdicts}
        return verdicts

    def _ratios(self, now: float, present: tuple[Moment, ...]) -> dict[int, float]:
        """Return rates over the median of the others', over the shortest sufficient time."""
        for then, past in reversed(self._past):
            pairs = list(zip(past, present, strict=True))
            if now - then >= SPAN and all(b.steps - a.steps >= STEPS for a, b in pairs):
                break
        else:
            return {}
        rates = np.array([(b.rows - a.rows) / max(b.busy - a.busy, 1e-9) for a, b in pairs])
        typical = medians_of_others(rates)
        return {
            rank: float(rates[rank] / typical[rank])
            for rank in np.flatnonzero(typical > 0).tolist()
        }

    def _silent(self, now: float, present: tuple[Moment, ...]) -> tuple[int, float] | None:
        """Return the only rank for which all others have waited too long, and the time."""
        fewest = min(moment.arrived for moment in present)
        last = [rank for rank, moment in enumerate(present) if moment.arrived == fewest]
        if len(last) != 1 or len(present) == 1:
            self._behind = None
            return None
        rank = last[0]
        moved = not self._past or self._past[-1][1][rank].arrived != fewest
        if self._behind is None or self._behind[0] != rank or moved:
            self._behind = rank, now
        waited = now - self._behind[1]
        others = [moment for other, moment in enumerate(present) if other != rank]
        a_step = median(moment.busy / max(1, moment.steps) for moment in others)
        return (rank, waited) if waited >= max(GRACE_SECONDS, a_step) else None


def medians_of_others(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for each value the median of all others; 0 without others.

    Examples
    --------
    >>> medians_of_others(np.array([3.0, 1.0, 2.0])).tolist()
    [1.5, 2.5, 2.0]
    """
    n = len(values) - 1
    if n < 1:
        return np.zeros(len(values))
    ordered, place = np.sort(values), np.argsort(np.argsort(values, kind="stable"))
    low, high = (n - 1) // 2, n // 2
    return (ordered[low + (low >= place)] + ordered[high + (high >= place)]) / 2
