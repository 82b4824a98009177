"""A replica or a shard on a Dask worker, from its beginning to its end, for who looks there.

Brings together what of a fit is in this process (``board``), the columns of ``/workers`` and the
metrics of ``/metrics``. One board a process: so is Prometheus' registry, and in a
``LocalCluster(processes=False)`` several workers share both.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from distributed.metrics import context_meter

from dps._runtime.activity import Activity
from dps.monitor.board import Board, Entry, ReplicaEntry, ShardEntry
from dps.monitor.columns import update_columns
from dps.monitor.counters import seconds
from dps.monitor.prometheus import serve_metrics
from dps.server.window import Window

__all__ = ["Presence", "replica_presence"]

_board = Board()


class Presence:
    """Something on a worker that is shown until it ends.

    Parameters
    ----------
    worker : distributed.Worker
    entry : ReplicaEntry or ShardEntry
    """

    def __init__(self, worker: Any, entry: Entry) -> None:
        self._worker = worker
        self._entry = entry
        _board.add(entry)
        serve_metrics(_board)
        update_columns(worker, _board)

    @classmethod
    def of_shard(cls, worker: Any, window: Window) -> Presence:
        """A shard's; one that nobody closes goes with its client, and so do its columns."""
        shown = cls(worker, ShardEntry(worker.address, window))
        gone = weakref.finalize(window, update_columns, worker, _board)
        gone.atexit = False
        return shown

    def end(self) -> None:
        """Show it no more among what runs."""
        self._entry.end()
        update_columns(self._worker, _board)


@contextmanager
def replica_presence(worker: Any, fit: str, rank: int) -> Iterator[Callable[[Activity], None]]:
    """Give a function to be called with a replica's account, which is shown until the body ends.

    Where its time has gone then stands in the task's fine performance metrics too.
    """
    entries: list[ReplicaEntry] = []
    shown: list[Presence] = []

    def watch(activity: Activity) -> None:
        entries.append(ReplicaEntry(fit, worker.address, rank, activity.rows))
        shown.append(Presence(worker, entries[-1]))

    try:
        yield watch
    finally:
        for presence in shown:
            presence.end()
        for entry in entries:
            for phase, spent in seconds(entry.rows[0]).items():
                context_meter.digest_metric(f"dps {phase}", spent, "seconds")
