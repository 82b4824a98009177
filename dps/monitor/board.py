"""What of fits happens in this process: for the columns of ``/workers``, and for Prometheus.

Owns which replicas and shards there are, and for how long those that have ended are still told
of. It must not know how they are shown (``columns``, ``prometheus``).

Entries are made and ended by tasks and Actors, and read by the event loop: a lock guards the
list. Counts are read while they are written, see ``reading``.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dps.server.window import Window

__all__ = ["Board", "Entry", "ReplicaEntry", "ShardEntry"]

#: Seconds for which an ended fit is shown: Prometheus asks every 15 to 60 seconds.
LINGER = 90.0
#: Ended replicas and shards that are told of at the most; the oldest go first.
MOST_ENDED = 64


class ReplicaEntry:
    """A replica in this process.

    Parameters
    ----------
    fit : str
    worker : str
        Address.
    rank : int
    rows : sequence of (WIDTH,) int64 array
        What it counts, for each shard.

    Attributes
    ----------
    ended : float or None
        When, by the monotonic clock.
    """

    def __init__(self, fit: str, worker: str, rank: int, rows: Sequence[NDArray[np.int64]]) -> None:
        self.fit, self.worker, self.rank = fit, worker, rank
        self.rows = list(rows)
        self.ended: float | None = None

    def end(self) -> None:
        """Keep the last counts, and let go of the windows that they lie in."""
        self.rows = [row.copy() for row in self.rows]
        self.ended = time.monotonic()


class ShardEntry:
    """A shard in this process; it does not keep its window alive.

    Parameters
    ----------
    worker : str
        Address.
    window : Window

    Attributes
    ----------
    ended : float or None
        When, by the monotonic clock.
    """

    def __init__(self, worker: str, window: Window) -> None:
        self.fit, self.worker, self.shard = window.spec.fit, worker, window.spec.shard
        self.nbytes = window.nbytes + window.store.nbytes
        self._window = weakref.ref(window)
        self._last = np.zeros_like(window.activity), 0
        self.ended: float | None = None

    def counts(self) -> tuple[NDArray[np.int64], int]:
        """What all ranks have counted, (n_ranks, WIDTH), and the shard's version."""
        window = self._window()
        if self.ended is None and window is not None:
            self._last = window.activity.copy(), window.store.version
        return self._last

    def end(self) -> None:
        """Keep the last counts."""
        self.counts()
        self.ended = time.monotonic()

    @property
    def alive(self) -> bool:
        """Whether the shard is there; one that nobody closed has gone with its client."""
        return self.ended is None and self._window() is not None


Entry = ReplicaEntry | ShardEntry
AnyEntry = TypeVar("AnyEntry", ReplicaEntry, ShardEntry)


class Board:
    """The replicas and shards of a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._replicas: list[ReplicaEntry] = []
        self._shards: list[ShardEntry] = []

    def add(self, entry: Entry) -> None:
        """Tell of a replica or a shard."""
        with self._lock:
            self._forget()
            if isinstance(entry, ReplicaEntry):
                self._replicas.append(entry)
            else:
                self._shards.append(entry)

    def replicas(self) -> list[ReplicaEntry]:
        """Those that run, and those that have ended lately."""
        with self._lock:
            self._forget()
            return list(self._replicas)

    def shards(self) -> list[ShardEntry]:
        """Those that are there, and those that have ended lately."""
        with self._lock:
            self._forget()
            return list(self._shards)

    def _forget(self) -> None:
        for shard in self._shards:
            if shard.ended is None and not shard.alive:
                shard.end()
        self._replicas = _lately(self._replicas)
        self._shards = _lately(self._shards)


def _lately(entries: list[AnyEntry]) -> list[AnyEntry]:
    oldest = time.monotonic() - LINGER
    ended = sorted(entry.ended for entry in entries if entry.ended is not None)
    if len(ended) > MOST_ENDED:
        oldest = max(oldest, ended[-MOST_ENDED])
    return [entry for entry in entries if entry.ended is None or entry.ended >= oldest]
