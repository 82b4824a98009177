"""A link over a window in this process's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dps._runtime.channel.mapped import MappedChannel
from dps._runtime.shared.activity import Activity
from dps.server.group.deadlines import Watch
from dps.server.group.operations import Access, claim
from dps.server.group.window import ABORTED, Window
from dps.server.memory.host import host_id
from dps.server.memory.lease import Lease
from dps.server.shard import ChannelKind, WindowCard
from dps.server.store.store import Store


class MappedLink:
    """A link over a window in this process's memory.

    fence: number of the attempt, not zero.
    timeout: seconds without progress that a wait tolerates.
    alive: called once a second while waiting; raises to give up.
    """

    def __init__(
        self,
        window: Window,
        rank: int,
        fence: int,
        timeout: float,
        alive: Callable[[], None] | None = None,
    ) -> None:
        self.window = window
        self.counts = window.activity[rank]
        self._lease: Lease | None = None
        self._fence = fence
        self._watch = Watch(window, timeout, rank, alive)
        self._access = Access(window, rank, self._watch)

    def claim(self) -> None:
        """Claim the rank, see :meth:`Link.claim`."""
        self.call(claim, self._fence)
        self._lease = Lease.of(self.window, self._access.rank)

    def channel(
        self, kind: ChannelKind, shard: int, first: int, activity: Activity
    ) -> MappedChannel:
        """Make the channel for steps, see :meth:`Link.channel`."""
        self._watch.activity = activity
        rank, watch = self._access.rank, self._watch
        channel = kind(self.window, rank, shard, first, watch.go_on, watch.tick, activity)
        self._access = Access(self.window, rank, watch, channel)
        return channel

    def call(self, operation: Callable[..., Any], *args: Any) -> Any:
        """Call an operation, see :meth:`Link.call`."""
        return operation(self._access, *args)

    def account(self) -> None:
        """Do nothing: the counters are in the window, see :meth:`Link.account`."""

    def abort(self) -> None:
        """Stop the fit, see :meth:`Link.abort`."""
        self.window.stop(ABORTED)

    def close(self) -> None:
        """Leave in good order, see :meth:`Link.close`; the window owns the mapping."""
        if self._lease is not None:
            self._lease.end()
            self._lease = None


def map_window(card: WindowCard) -> Window | None:
    """Map a window in this process; None if that fails."""
    if card.host != host_id():
        return None
    window = Window.find(card.spec, card.window)
    if window is None or hasattr(window, "store"):  # it is this process's own
        return window
    store = Store.find(card.spec.store, card.store)
    if store is None:
        return None
    if store.update is None:
        store.update = card.update
    window.store = store
    return window
