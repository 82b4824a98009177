"""A link over a window in this process's memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dps._runtime.activity import Activity
from dps._runtime.ends import MappedEnd
from dps.server.host import host_id
from dps.server.memory import SharedFile
from dps.server.operations import Access, claim
from dps.server.placement import Ranges
from dps.server.shard import WindowCard
from dps.server.window import ABORTED, Watch, Window, own_window

__all__ = ["MappedLink", "map_window"]


class MappedLink:
    """A link over a window in this process's memory.

    Parameters
    ----------
    window : Window
    rank : int
    fence : int
        The attempt, not zero.
    timeout : float
        Seconds without progress that a wait tolerates.
    alive : callable, optional
        Called once a second while waiting; raises to give up.
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
        self._fence = fence
        self._watch = Watch(window, timeout, rank, alive)
        self._access = Access(window, rank, self._watch)

    def claim(self) -> None:
        """Take the rank, see :meth:`Link.claim`."""
        self.call(claim, self._fence)

    def end(
        self, kind: type[MappedEnd], shard: int, ranges: Ranges, activity: Activity
    ) -> MappedEnd:
        """Make the end for steps, see :meth:`Link.end`."""
        self._watch.activity = activity
        rank, watch = self._access.rank, self._watch
        end = kind(self.window, rank, shard, ranges, watch.go_on, watch.tick, activity)
        self._access = Access(self.window, rank, watch, end)
        return end

    def call(self, operation: Callable[..., Any], *args: Any) -> Any:
        """Call an operation, see :meth:`Link.call`."""
        return operation(self._access, *args)

    def account(self) -> None:
        """Nothing to send, see :meth:`Link.account`."""

    def abort(self) -> None:
        """Stop the fit, see :meth:`Link.abort`."""
        self.window.stop(ABORTED)

    def close(self) -> None:
        """Nothing to give back: the mapping goes with the window, see :meth:`Link.close`."""


def map_window(card: WindowCard) -> Window | None:
    """The window in this process's memory; None where that cannot be, which only trying shows."""
    own = own_window(card.token)
    if own is not None:
        return own
    if card.path is None or card.host != host_id():
        return None
    try:
        file = SharedFile.open(Path(card.path))
        window = Window(card.spec, file.memory, update=card.update, file=file)
    except (OSError, ValueError):  # not there, not ours, or something else by that name
        return None
    return window if window.is_window(card.token) else None
