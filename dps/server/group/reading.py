"""Read access to a shard's shared memory, while the shard lives and after it has died.

Nothing is written. An epoch is closed after all of its snapshots were taken, and a snapshot is
written to another slot than the earlier ones. So everything that the window declares closed can be
read.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dps.server.group.window import Window
from dps.server.shard import ShardStatus, WindowCard, status_of
from dps.server.store.snapshots import Snapshot
from dps.server.store.store import Store


class ShardMemory:
    """Answers in place of a shard, see `ParameterShard`.

    window: the window of the last group, with its store.
    """

    def __init__(self, window: Window) -> None:
        self._window = window

    @classmethod
    def find(cls, card: WindowCard) -> ShardMemory | None:
        """Map a shard of this host; None if that fails."""
        window = Window.find(card.spec, card.window)
        store = None if window is None else Store.find(card.spec.store, card.store)
        if window is None or store is None:
            return None
        window.store = store
        return cls(window)

    def snapshot(self, epochs: int, first: int = 0, steps: int = 0) -> Snapshot:
        """Return a snapshot, see `Snapshots.kept`."""
        return self._window.store.snapshots.kept(epochs, first, steps)

    def status(self, since: int) -> ShardStatus:
        """Return records from epoch `since` on, and the progress of every rank."""
        return status_of(self._window, since)

    def counts(self) -> NDArray[np.int64]:
        """Return the counters of every rank, see `ParameterShard.counts`."""
        return self._window.activity.copy()

    def stop(self) -> None:
        """Do nothing: a dead shard has only ranks to stop, and they have noticed its death."""
