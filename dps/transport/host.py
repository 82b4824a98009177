"""A rank's access to the window of its host, in which ranks sum before one of them sends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dps._runtime.channel.host_sum import HostReducer
from dps._runtime.shared.activity import Activity
from dps.errors import WindowError
from dps.server.group.deadlines import Watch
from dps.server.group.window import ABORTED, Field, Window
from dps.server.memory.lease import Lease
from dps.server.shard import WindowCard
from dps.transport.mapped import map_window


class HostLink:
    """A rank's access to the window of its host.

    place: its number there; the first one leads.
    ranks: the ranks there.
    timeout: seconds without progress of another rank that raise an error.
    """

    def __init__(self, window: Window, place: int, ranks: Sequence[int], timeout: float) -> None:
        self.window = window
        self._place = place
        self._ranks = tuple(ranks)
        self._timeout = timeout
        self._lease = Lease.of(window, place)
        window.words.rank_claim(place, Field.CLAIM, 1)

    @classmethod
    def of(cls, card: WindowCard, rank: int, ranks: Sequence[int], timeout: float) -> HostLink:
        """Map the window of a host.

        Raises WindowError: it cannot be mapped, although all workers of the host share memory.
        """
        window = map_window(card)
        if window is None:
            why = card.unshared or "it is private memory, or has gone"
            raise WindowError(
                f"the window of a host with the ranks {list(ranks)} cannot be mapped ({why}); "
                "use access='stream'",
                rank=rank,
            )
        return cls(window, ranks.index(rank), ranks, timeout)

    def channel(self, activity: Activity, alive: Callable[[], None]) -> HostReducer:
        """Make the channel for steps; `alive` is called once a second while it waits for others."""
        watch = Watch(self.window, self._timeout, self._place, alive, self._ranks)
        watch.activity = activity
        return HostReducer(self.window, self._place, 0, watch.go_on, watch.tick, activity)

    def abort(self) -> None:
        """End every wait in the window, because of an error here."""
        self.window.stop(ABORTED)

    def close(self) -> None:
        """Leave in good order."""
        if self._lease is not None:
            self._lease.end()
            self._lease = None
