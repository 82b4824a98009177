"""A replica's way to one shard: the window itself, or the Actor in front of it.

Both take the same operations. Which way it is, is found out by trying.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dps._kernels.activity import WIDTH, Activity
from dps.errors import WindowError
from dps.server.host import host_id
from dps.server.memory import SharedFile
from dps.server.operations import account, claim
from dps.server.remote import PendingCall, Remote
from dps.server.shard import WindowCard
from dps.server.window import ABORTED, Operation, Wait, Watch, Window, drive, own_window

if TYPE_CHECKING:
    from dps.server.gateway import Connection

__all__ = ["ACCESSES", "GatewayLink", "Link", "MappedLink", "link"]

ACCESSES = ("auto", "mapped", "gateway")

#: Nanoseconds after which a far rank gives account of itself again.
_ACCOUNT_EVERY = 250_000_000


class Link(Protocol):
    """A rank's way to one shard."""

    @property
    def window(self) -> Window | None:
        """The window, where it can be reached directly."""
        ...

    @property
    def counts(self) -> NDArray[np.int64]:
        """The rank's row of what it does, (WIDTH,): the window's, or one that is sent there."""
        ...

    def attach(self, activity: Activity, shard: int) -> None:
        """Enter waits, and time spent on the shard's memory, in an account."""
        ...

    def account(self) -> None:
        """Have what the rank counts stand in the window."""
        ...

    def claim(self) -> None:
        """Take the rank for this attempt."""
        ...

    def start(self, operation: Callable[..., Operation], *args: Any) -> None:
        """Begin an operation, up to where it would wait. One at a time."""
        ...

    def finish(self) -> Any:
        """End the operation that was begun; its result."""
        ...

    def run(self, operation: Callable[..., Operation], *args: Any) -> Any:
        """Begin and end an operation."""
        ...

    def abort(self) -> None:
        """Stop the fit for all, because of an error here."""
        ...

    def close(self) -> None:
        """Give back what belongs to this link alone; it may be called in any state."""
        ...


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
        self._rank = rank
        self._fence = fence
        self._watch = Watch(window, timeout, rank, alive)
        self._activity: Activity | None = None
        self._shard = 0
        self._operation: Operation | None = None
        self._ahead: Any = None

    def claim(self) -> None:
        """Take the rank, see :meth:`Link.claim`."""
        self.run(claim, self._fence)

    def attach(self, activity: Activity, shard: int) -> None:
        """Enter waits and work in an account, see :meth:`Link.attach`."""
        self._activity = self._watch.activity = activity
        self._shard = shard

    def account(self) -> None:
        """Nothing to send, see :meth:`Link.account`."""

    def start(self, operation: Callable[..., Operation], *args: Any) -> None:
        """Begin an operation, see :meth:`Link.start`."""
        began = time.monotonic_ns()
        self._operation = operation(self.window, self._rank, *args)
        try:
            self._ahead = next(self._operation)
        except StopIteration as end:
            self._operation = None
            self._ahead = end.value
        self._worked(began)

    def finish(self) -> Any:
        """End the operation, see :meth:`Link.finish`."""
        operation, self._operation = self._operation, None
        if operation is None:
            return self._ahead
        try:
            while True:
                self._watch.until(self._ahead)
                began = time.monotonic_ns()
                try:
                    self._ahead = operation.send(None)
                finally:
                    self._worked(began)
        except StopIteration as end:
            return end.value

    def _worked(self, began: int) -> None:
        if self._activity is not None:
            self._activity.worked(self._shard, time.monotonic_ns() - began)

    def run(self, operation: Callable[..., Operation], *args: Any) -> Any:
        """Begin and end an operation, see :meth:`Link.run`."""
        return drive(operation(self.window, self._rank, *args), self._watch)

    @property
    def tick(self) -> float:
        """Seconds of a wait after which it is looked whether it will end."""
        return self._watch.tick

    def until(self, wait: Wait) -> None:
        """Wait as an operation would, with its deadlines."""
        self._watch.until(wait)

    def abort(self) -> None:
        """Stop the fit, see :meth:`Link.abort`."""
        self.window.stop(ABORTED)

    def close(self) -> None:
        """Nothing to give back: the mapping goes with the window, see :meth:`Link.close`."""


class GatewayLink:
    """A link through the Actor, for a replica that cannot map the window.

    Operations go over a connection of the rank's own where the cluster's kind of comm allows
    it, as Actor calls elsewhere; whatever is not an operation is an Actor call.
    """

    window = None

    def __init__(self, remote: Remote, rank: int, fence: int, timeout: float) -> None:
        self._remote = remote
        self._rank = rank
        self._fence = fence
        self._timeout = timeout
        self._connection: Connection | None = None
        self._pending: PendingCall | None = None
        self.counts = np.zeros(WIDTH, np.int64)
        self._activity: Activity | None = None
        self._accounted = 0

    def claim(self) -> None:
        """Take the rank, see :meth:`Link.claim`."""
        from dps.server.gateway import Connection

        rank, fence, timeout = self._rank, self._fence, self._timeout
        name = self._remote.call("admit", claim, rank, fence, timeout=timeout)
        self._connection = Connection.open(self._remote, name, rank, fence, timeout)

    def attach(self, activity: Activity, shard: int) -> None:
        """Enter waits in an account, see :meth:`Link.attach`; the shard knows its own work."""
        self._activity = activity

    def account(self) -> None:
        """Send what the rank counts, see :meth:`Link.account`."""
        self._accounted = time.monotonic_ns()
        self._start(account, self.counts.copy())
        self.finish()

    def start(self, operation: Callable[..., Operation], *args: Any) -> None:
        """Begin an operation, see :meth:`Link.start`."""
        if time.monotonic_ns() - self._accounted >= _ACCOUNT_EVERY:
            self.account()
        self._start(operation, *args)

    def _start(self, operation: Callable[..., Operation], *args: Any) -> None:
        if self._connection is not None:
            self._pending = self._connection.start(operation, *args)
        else:
            self._pending = self._remote.start("run", operation, self._rank, self._fence, *args)

    def finish(self) -> Any:
        """End the operation, see :meth:`Link.finish`."""
        assert self._pending is not None
        pending, self._pending = self._pending, None
        value, waited = pending.result_while_alive(self._timeout)
        if self._activity is not None:
            self._activity.waited(waited)
        return value

    def run(self, operation: Callable[..., Operation], *args: Any) -> Any:
        """Begin and end an operation, see :meth:`Link.run`."""
        self.start(operation, *args)
        return self.finish()

    def abort(self) -> None:
        """Stop the fit, see :meth:`Link.abort`."""
        self._remote.call("stop", timeout=self._timeout)

    def close(self) -> None:
        """Close the connection, see :meth:`Link.close`."""
        if self._connection is not None:
            self._connection.close()


def link(
    card: WindowCard,
    remote: Remote | None,
    rank: int,
    fence: int,
    *,
    access: str,
    timeout: float,
    alive: Callable[[], None] | None = None,
) -> Link:
    """Find the way to a shard.

    Parameters
    ----------
    access : {"auto", "mapped", "gateway"}
        Try to map and fall back, insist on mapping, or do not try.

    Raises
    ------
    WindowError
        `access` is ``"mapped"`` and the window cannot be mapped from here, or it is
        ``"gateway"`` and there is no Actor.
    """
    window = None if access == "gateway" else _map(card)
    if window is not None:
        return MappedLink(window, rank, fence, timeout, alive)
    if access == "mapped" or remote is None:
        raise WindowError(
            f"access={access!r} is not possible here: the window of shard {card.spec.shard} "
            f"({card.path or 'private memory'}) cannot be reached that way; use access='auto'",
            rank=rank,
        )
    return GatewayLink(remote, rank, fence, timeout)


def _map(card: WindowCard) -> Window | None:
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
    if not window.is_window(card.token):
        return None
    return window
