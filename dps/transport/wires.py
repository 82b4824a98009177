"""Wires to a shard for ranks and callers: connections that are taken over, or Actor calls.

Protocol of a connection
    client  ``{op, who, silence}``, as one message of Dask's: who it is, as the shard wants to know
    shard   ``(True, None)``, or ``(False, pickled exception)``; both take the socket over
    client  a request
    shard   its answer
    ...     in turn, until either side closes
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from distributed.comm import connect
from distributed.protocol import pickle

from dps._runtime.wire.wire import ObjectWire, Wire
from dps.errors import DPSError, ServerLostError
from dps.transport.call import CallingWire
from dps.transport.remote import PendingCall, Remote
from dps.transport.stream import SILENCE, TICK, can_be_taken_over, wire_of

#: Seconds between probes of a shard while its answer is awaited.
_PROBE_EVERY = 5.0


async def connected(
    remote: Remote,
    handler: str,
    who: Any,
    look: Callable[[], None],
    lost: Callable[[str], DPSError],
    timeout: float,
    silence: float = SILENCE,
) -> Wire | None:
    """Connect to a shard's handler; None if this kind of connection has no socket.

    remote: the shard's Actor.
    who: the caller.
    look, lost: see `wire_of`.
    timeout: seconds without an answer that count as a loss.
    silence: seconds without any answer after which the other host is lost, on both sides.
    """
    silence = min(silence, timeout)
    node = remote.node
    comm = await connect(remote.address, timeout=timeout, **node.connection_args)
    try:
        if not can_be_taken_over(comm):
            comm.abort()
            return None
        await comm.write({"op": handler, "who": who, "silence": silence})
        answer = await comm.read()
        if not isinstance(answer, tuple | list):  # Dask's answer if there is no such handler
            raise lost("it has been released")
        admitted, value = answer
        if not admitted:
            raise pickle.loads(value)
        return wire_of(comm, look, lost, min(TICK, timeout / 4), silence)
    except BaseException:
        comm.abort()
        raise


def called(
    remote: Remote,
    who: Any,
    look: Callable[[], None],
    lost: Callable[[str], DPSError],
    timeout: float,
    check: Callable[[], None] | None = None,
) -> Wire:
    """Make a wire of Actor calls, see `connected`; `check` as in `Remote.call`."""
    remote.call("serve_calls", who, remote.node.id, timeout=timeout, check=check)
    return ObjectWire(CallingWire(remote, who, TICK), look, lost)


class ShardProbe:
    """Checks that a shard whose answer is awaited still lives.

    A shard may wait for other ranks as long as it likes; without an answer to a probe for `timeout`
    seconds it counts as lost.
    """

    def __init__(self, remote: Remote, timeout: float, alive: Callable[[], None] | None) -> None:
        self._remote = remote
        self._timeout = timeout
        self._alive = alive
        self._probe: PendingCall | None = None
        self._looked = self._answered = 0.0

    def __call__(self) -> None:
        """Raise if the shard is lost."""
        if self._alive is not None:
            self._alive()
        now = time.monotonic()
        if now - self._looked > 3 * TICK:  # a new wait
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
