"""A shard's shared memory, read by another process while the shard lives and after it has died.

Nothing is written. An epoch is closed when all of its snapshots have been taken, and a snapshot
that is being written lies in another place than those before it. So what the window says is closed
can be read.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dps.server.group.window import Window
from dps.server.shard import ShardStatus, WindowCard, status_of
from dps.server.store.snapshots import Snapshot
from dps.server.store.store import Store


class ShardMemory:
    """Answers in the place of a shard, see `ParameterShard`.

    window: that of the group that was at work, with its store.
    """

    def __init__(self, window: Window) -> None:
        self._window = window

    @classmethod
    def find(cls, card: WindowCard) -> ShardMemory | None:
        """Map a shard of this host; None if it is not there."""
        window = Window.find(card.spec, card.window)
        store = None if window is None else Store.find(card.spec.store, card.store)
        if window is None or store is None:
            return None
        window.store = store
        return cls(window)

    def snapshot(self, epochs: int, first: int = 0, steps: int = 0) -> Snapshot:
        """The snapshot of that time, see `Snapshots.kept`."""
        return self._window.store.snapshots.kept(epochs, first, steps)

    def status(self, since: int) -> ShardStatus:
        """Records from epoch `since` on, and where every rank is, or was."""
        return status_of(self._window, since)

    def counts(self) -> NDArray[np.int64]:
        """Counts of every rank, see `ParameterShard.counts`."""
        return self._window.activity.copy()

    def stop(self) -> None:
        """Do nothing: after its death only ranks could be stopped, and they have seen it."""
