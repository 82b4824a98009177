"""A link to a shard whose window cannot be mapped: over a stream, or by Actor calls.

Both are wires. A thread at the shard (``serving.py``) takes the steps in the window that a rank
there would take.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from distributed.protocol import pickle

from dps._runtime.channel.stream import StreamChannel
from dps._runtime.shared.activity import WIDTH, Activity
from dps._runtime.wire.wire import Wire
from dps.errors import DPSError, ServerLostError
from dps.server.group.operations import claim, say_left
from dps.server.shard import ChannelKind, WindowCard
from dps.transport.remote import Remote
from dps.transport.stream import SILENCE
from dps.transport.wires import ShardProbe, called, connected

#: Seconds in which a shard must stop; afterwards the link is given up.
_TO_STOP = 1.0


class FarLink:
    """A link to a shard on another host, or in another container.

    remote: the shard's Actor.
    fence: number of the attempt, not zero.
    timeout: seconds without an answer that count as a loss.
    alive: called once a second while waiting; raises to give up.
    silence: seconds without any answer after which the shard's host is lost.
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
        silence: float = SILENCE,
    ) -> None:
        self.counts = np.zeros(WIDTH, np.int64)
        self._spec = card.spec
        self._remote = remote
        self._rank = rank
        self._fence = fence
        self._timeout, self._silence = timeout, silence
        self._look = ShardProbe(remote, timeout, alive)
        self._wire: Wire | None = None
        self._channel: StreamChannel | None = None
        self._is_lost = False  # also if it does not answer

    def claim(self) -> None:
        """Claim the rank, see :meth:`Link.claim`."""
        remote, who = self._remote, (self._rank, self._fence)
        name = remote.call("admit", claim, *who, timeout=self._timeout)
        towards = who, self._look, self._lost, self._timeout
        if name is not None:
            opening = connected(remote, name, *towards, self._silence)
            self._wire = remote.submit(opening).result(self._timeout)
        if self._wire is None:
            self._wire = called(remote, *towards)
        self._channel = self._made(0, 0, Activity([self.counts]))

    def _lost(self, what: str) -> ServerLostError:
        self._is_lost = True
        return ServerLostError(
            f"shard {self._remote.key} cannot be reached ({what})", worker=self._remote.address
        )

    def _made(self, shard: int, first: int, activity: Activity) -> StreamChannel:
        spec = self._spec
        assert self._wire is not None
        return StreamChannel(
            spec.dtype, spec.size, spec.n_ranks, first, spec.store.key_width, self._wire,
            pickle.loads, shard, activity,
        )  # fmt: skip

    def channel(
        self, kind: ChannelKind, shard: int, first: int, activity: Activity
    ) -> StreamChannel:
        """Make the channel for steps, see :meth:`Link.channel`; the shard has one of that kind."""
        self._channel = self._made(shard, first, activity)
        return self._channel

    def call(self, operation: Callable[..., Any], *args: Any) -> Any:
        """Call an operation, see :meth:`Link.call`."""
        assert self._channel is not None
        done, value = pickle.loads(self._channel.call(pickle.dumps((operation, args))))
        if not done:
            raise value
        return value

    def account(self) -> None:
        """Send the rank's counters, see :meth:`Link.account`."""
        if self._channel is not None:
            self._channel.account()

    def abort(self) -> None:
        """Stop the fit, see :meth:`Link.abort`."""
        if self._is_lost:
            return
        stopping = self._remote.start("stop")
        try:
            stopping.within(_TO_STOP)
        except TimeoutError:  # it stops once it can
            self._is_lost = True

    def close(self) -> None:
        """Leave in good order and close the connection, see :meth:`Link.close`."""
        if self._wire is None:
            return
        if self._channel is not None and not (self._channel.pending or self._is_lost):
            with suppress(DPSError):
                self.call(say_left)
        self._wire.close()
        self._wire = None
