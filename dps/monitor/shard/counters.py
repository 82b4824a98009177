"""From the counters in a shard's window to what its events say.

Knows windows and the schema of events. It must not know Dask, nor who asks, or when. Counters
are read while ranks write them: one may be newer than another, none is half written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps._runtime.shared.activity import (
    APPLY,
    BYTES,
    COMPUTE,
    EPOCH,
    EPOCH_ROWS,
    LEAD_MAX,
    LOAD,
    LOSS,
    PULL,
    PUSH,
    PUSHES,
    ROWS,
    STALE_MAX,
    STALE_SUM,
    STALENESS,
    STEPS,
    WAIT,
)
from dps.monitor.events import ReplicaFields, SecondsFields
from dps.monitor.shard.stragglers import Moment
from dps.server.group.window import Field, Window

#: Seconds for which a pace is kept while nothing has been counted: a step may take that long.
_HELD = 5.0
#: Seconds that are too few to tell another pace from.
_SHORTEST = 0.1


class Pace:
    """Growth of counts between two looks.

    What is counted in steps stands still in between: the pace is that of the last time that the
    count moved, and 0 once it has stood for `_HELD` seconds and three times as long as that took.

    Examples
    --------
    >>> pace = Pace(1)
    >>> [float(pace.of(now, np.array([count]))[0]) for now, count in [(1, 10), (2, 30), (3, 30)]]
    [10.0, 20.0, 20.0]
    """

    def __init__(self, n: int) -> None:
        self._moved = np.zeros(n)  # when each count moved last
        self._counts = np.zeros(n)
        self._paces = np.zeros(n)
        self._took = np.zeros(n)

    def of(self, now: float, counts: np.ndarray) -> NDArray[np.float64]:
        """A second's growth of each count at the time `now`, which grows."""
        known = (self._paces > 0) & (now - self._moved < _SHORTEST)
        moved = (counts != self._counts) & ~known
        took = np.maximum(now - self._moved, 1e-9)
        self._paces = np.where(moved, (counts - self._counts) / took, self._paces)
        self._took = np.where(moved, took, self._took)
        self._moved = np.where(moved, now, self._moved)
        self._counts = np.where(moved, counts, self._counts)
        still = now - self._moved > np.maximum(_HELD, 3 * self._took)
        return np.where(still, 0.0, self._paces)


class CounterReader:
    """Reads one shard's window.

    workers: the worker of each rank.
    together: whether ranks wait for each other at every step.
    """

    def __init__(self, window: Window, workers: Sequence[str], *, together: bool) -> None:
        self._window = window
        self._workers = workers
        self._together = together
        self._nbytes = window.nbytes + window.store.nbytes
        self._rows = Pace(window.spec.n_ranks)
        self._load = Pace(2)

    def replicas(self, now: float) -> list[ReplicaFields]:
        """The event's fields of each replica, `now` seconds after the start."""
        rows = self._window.activity.copy()
        paces = self._rows.of(now, rows[:, ROWS])
        return [
            ReplicaFields(
                rank=rank,
                worker=worker,
                epoch=int(row[EPOCH]),
                step=int(row[STEPS]),
                rows=int(row[ROWS]),
                epoch_rows=int(row[EPOCH_ROWS]),
                rows_per_second=round(float(pace), 1),
                loss=mean_loss(row),
                seconds=seconds(row),
                staleness=histogram(row),
                staleness_mean=mean_staleness(row),
                staleness_max=float(row[STALE_MAX]),
                lead_max=int(row[LEAD_MAX]),
            )
            for rank, (worker, row, pace) in enumerate(zip(self._workers, rows, paces, strict=True))
        ]

    def shard(self, now: float) -> dict[str, Any]:
        """The event's fields of the shard, `now` seconds after the start."""
        rows = self._window.activity.copy()
        pushes, nbytes, apply = (int(rows[:, word].sum()) for word in (PUSHES, BYTES, APPLY))
        paces = self._load.of(now, np.array([pushes, nbytes]))
        stale = [histogram(row) for row in rows]
        return {
            "version": self._window.store.version,
            "pushes": pushes,
            "pushes_per_second": round(float(paces[0]), 1),
            "bytes": nbytes,
            "bytes_per_second": round(float(paces[1]), 1),
            "apply_seconds": apply / 1e9,
            "waiting": self.waiting(),
            "nbytes": self._nbytes,
            "staleness": stale if any(stale) else [],
        }

    def waiting(self) -> list[int]:
        """Ranks that wait for others; in modes without waits, those in the middle of a push."""
        load, ranks = self._window.words.rank_load, range(self._window.spec.n_ranks)
        if not self._together:
            return [rank for rank in ranks if not load(rank, Field.FREE)]
        ahead: set[int] = set()
        for barrier in (Field.ARRIVED, Field.DONE, Field.REDUCED):
            reached = [load(rank, barrier) for rank in ranks]
            ahead |= {rank for rank in ranks if reached[rank] > min(reached)}
        return sorted(ahead)

    def moments(self) -> list[Moment]:
        """Progress of each replica, for :class:`~dps.monitor.shard.stragglers.Stragglers`."""
        rows = self._window.activity.copy()
        busy = rows[:, [LOAD, COMPUTE, PULL, PUSH]].sum(axis=1) / 1e9
        load = self._window.words.rank_load
        return [
            Moment(int(row[ROWS]), int(row[STEPS]), float(busy[rank]), load(rank, Field.ARRIVED))
            for rank, row in enumerate(rows)
        ]


def mean_loss(row: NDArray[np.int64]) -> float | None:
    """Mean loss of the epoch so far; None before its first step."""
    if not row[EPOCH_ROWS]:
        return None
    return float(row[LOSS : LOSS + 1].view(np.float64)[0] / row[EPOCH_ROWS])


def mean_staleness(row: NDArray[np.int64]) -> float:
    """Mean staleness of a rank's pushes to a shard."""
    return float(row[STALE_SUM] / max(1, row[STALENESS:].sum()))


def histogram(row: NDArray[np.int64]) -> list[int]:
    """A rank's pushes to a shard by staleness, without the zeros at the end."""
    return np.trim_zeros(row[STALENESS:], "b").tolist()


def seconds(row: NDArray[np.int64]) -> SecondsFields:
    """A rank's time by phase."""
    load, compute, pull, push, wait = (
        round(int(row[phase]) / 1e9, 6) for phase in (LOAD, COMPUTE, PULL, PUSH, WAIT)
    )
    return SecondsFields(load=load, compute=compute, pull=pull, push=push, wait=wait)
