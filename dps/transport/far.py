"""A link to a shard whose window cannot be mapped: over a stream, or Actor calls elsewhere.

Both are wires with a thread at the shard on the other side (``serving.py``), which runs the same
steps in the window that a rank there would.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from distributed.comm import connect
from distributed.protocol import pickle

from dps._runtime.activity import WIDTH, Activity
from dps._runtime.ends import FarEnd
from dps._runtime.wire import ObjectWire, Wire
from dps.errors import DPSError, ServerLostError
from dps.server.operations import claim, leave
from dps.server.placement import Ranges
from dps.server.shard import EndKind, WindowCard
from dps.transport.call import CallingWire
from dps.transport.remote import PendingCall, Remote
from dps.transport.stream import TICK, can_be_taken_over, wire_of

__all__ = ["FarLink", "Patience"]

#: Seconds between probes of a shard whose answer is awaited.
_PROBE_EVERY = 5.0
#: Seconds that a shard may take to stop; of one that takes longer nothing more is wanted.
_TO_STOP = 1.0


class FarLink:
    """A link to a shard on another host, or behind another wall.

    Parameters
    ----------
    card : WindowCard
    remote : Remote
        The shard's Actor.
    rank : int
    fence : int
        The attempt, not zero.
    timeout : float
        Seconds without an answer that count as a loss.
    alive : callable, optional
        Called once a second while waiting; raises to give up.
    """

    window = None

    def __init__(
        self,
        card: WindowCard,
        remote: Remote,
        rank: int,
        fence: int,
        timeout: float,
        alive: Callable[[], None] | None = None,
    ) -> None:
        self.counts = np.zeros(WIDTH, np.int64)
        self._spec = card.spec
        self._remote = remote
        self._rank = rank
        self._fence = fence
        self._timeout = timeout
        self._look = Patience(remote, timeout, alive)
        self._wire: Wire | None = None
        self._end: FarEnd | None = None
        self._is_lost = False  # or does not answer

    def claim(self) -> None:
        """Take the rank, see :meth:`Link.claim`."""
        remote, rank, fence = self._remote, self._rank, self._fence
        key = self._spec.key
        name = remote.call("ask", key, "admit", claim, rank, fence, timeout=self._timeout)
        if name is not None:
            self._wire = remote.submit(self._connect(name)).result(self._timeout)
        if self._wire is None:
            remote.call(
                "ask", key, "serve_calls", rank, fence, remote.node.id, timeout=self._timeout
            )
            over = CallingWire(remote, (key, rank, fence), TICK)
            self._wire = ObjectWire(over, self._look, self._lost)
        self._end = self._made(0, ((0, self._spec.size),), Activity([self.counts]))

    async def _connect(self, name: str) -> Wire | None:
        """Connect to the handler of that name; None where the kind of comm does not serve."""
        remote = self._remote
        comm = await connect(remote.address, timeout=self._timeout, **remote.node.connection_args)
        try:
            if not can_be_taken_over(comm):
                comm.abort()
                return None
            await comm.write({"op": name, "rank": self._rank, "fence": self._fence})
            answer = await comm.read()
            if not isinstance(answer, tuple | list):  # Dask's, where there is no such handler
                raise self._lost("it has been released")
            admitted, value = answer
            if not admitted:
                raise pickle.loads(value)
            return wire_of(comm, self._look, self._lost, min(TICK, self._timeout / 4))
        except BaseException:
            comm.abort()
            raise

    def _lost(self, what: str) -> ServerLostError:
        self._is_lost = True
        return ServerLostError(
            f"shard {self._remote.key} cannot be reached ({what})", worker=self._remote.address
        )

    def _made(self, shard: int, ranges: Ranges, activity: Activity) -> FarEnd:
        spec = self._spec
        assert self._wire is not None
        return FarEnd(
            spec.dtype, spec.size, spec.n_ranks, ranges, spec.store.key_width, self._wire,
            pickle.loads, shard, activity,
        )  # fmt: skip

    def end(self, kind: EndKind, shard: int, ranges: Ranges, activity: Activity) -> FarEnd:
        """Make the end for steps, see :meth:`Link.end`; the shard has one of that kind."""
        self._end = self._made(shard, ranges, activity)
        return self._end

    def call(self, operation: Callable[..., Any], *args: Any) -> Any:
        """Call an operation, see :meth:`Link.call`."""
        assert self._end is not None
        done, value = pickle.loads(self._end.call(pickle.dumps((operation, args))))
        if not done:
            raise value
        return value

    def account(self) -> None:
        """Send what the rank counts, see :meth:`Link.account`."""
        if self._end is not None:
            self._end.account()

    def abort(self) -> None:
        """Stop the fit, see :meth:`Link.abort`."""
        if self._is_lost:
            return
        stopping = self._remote.start("ask", self._spec.key, "stop")
        try:
            stopping.within(_TO_STOP)
        except TimeoutError:  # it stops once it can
            self._is_lost = True

    def close(self) -> None:
        """Leave in good order and close the connection, see :meth:`Link.close`."""
        if self._wire is None:
            return
        if self._end is not None and not (self._end.pending or self._is_lost):
            with suppress(DPSError):
                self.call(leave)
        self._wire.close()
        self._wire = None


class Patience:
    """Whether it makes sense to go on waiting for a shard's answer: as long as the Actor lives.

    A shard may wait for others as long as it likes; one that has not answered a probe for
    `timeout` seconds counts as lost.
    """

    def __init__(self, remote: Remote, timeout: float, alive: Callable[[], None] | None) -> None:
        self._remote = remote
        self._timeout = timeout
        self._alive = alive
        self._probe: PendingCall | None = None
        self._looked = self._answered = 0.0

    def __call__(self) -> None:
        """Raise if it makes none."""
        if self._alive is not None:
            self._alive()
        now = time.monotonic()
        if now - self._looked > 3 * TICK:  # another wait
            self._answered = now
            self._probe = None
        self._looked = now
        if self._probe is not None and self._probe.done:
            self._probe.result(0)
            self._probe, self._answered = None, now
        elif self._probe is None and now - self._answered >= min(_PROBE_EVERY, self._timeout / 2):
            self._probe = self._remote.start("version")
        elif now - self._answered >= self._timeout:
            raise ServerLostError(
                f"shard {self._remote.key} did not answer for {self._timeout:g} s",
                worker=self._remote.address,
            )
