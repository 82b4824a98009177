"""A shard that ranks reach which cannot map its window: a thread for each, at the shard.

It owns the handler that ranks connect to and the threads. What a thread does is in
``_runtime/service.pyx``: it blocks, reads a gradient into the rank's slot, runs the step that a
rank here would run, and writes what comes of it. What a step does, and who waits for whom, is
nothing to it.

Protocol of a connection, one a rank and shard
    rank    ``{op, rank, fence}``, as one message of Dask's; `fence` must own the rank, once
    shard   answer: ``(True, None)``, or ``(False, pickled exception)``; both take the socket over
    rank    a request
    shard   its answer
    ...     in turn, until either side closes

Nobody reads a connection again that has been left in the middle of anything: where its bytes belong
is no longer known. The threads end when the shard goes, also one that nobody closes because its
client has died.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from distributed import get_worker
from distributed.core import Status
from distributed.protocol import pickle

from dps._runtime.activity import Activity
from dps._runtime.service import Service
from dps._runtime.wire import ObjectWire, Wire
from dps.errors import DPSError, FencedError
from dps.server.lease import LEFT, LOST
from dps.server.operations import Access, check_fence
from dps.server.shard import EndKind, GroupSpec, ParameterShard, ShardGroup
from dps.server.store import Store
from dps.server.watch import Watch
from dps.server.window import Field, Window
from dps.transport.call import Mailbox, Presence
from dps.transport.stream import TICK, accept, can_be_taken_over, handler_of

__all__ = ["ServedGroup", "ServedShard", "pickled", "serve_rank"]

_MOMENT = 1.0  # seconds that threads may take to end


class ServedGroup(ShardGroup):
    """A group at a shard, and threads for its ranks that are far."""

    def __init__(self, spec: GroupSpec, store: Store) -> None:
        super().__init__(spec, store)
        self._services: _Services | None = None

    def admit(self, operation: Callable[..., Any], rank: int, *args: Any) -> str | None:
        """Run the operation by which a rank is taken; the handler that it may connect to."""
        watch = Watch(self.window, self.spec.timeout, rank)
        operation(Access(self.window, rank, watch), *args)
        return self.services.name

    @property
    def services(self) -> _Services:
        """The threads, from the first rank on that needs one."""
        if self._services is None:
            spec = self.spec
            self._services = _Services(get_worker(), self.window, spec.end, spec.timeout)
        return self._services

    def serve_calls(self, rank: int, fence: int, sender: str) -> None:
        """Begin to serve a rank by Actor calls, as long as its sender is there."""
        check_fence(self.window, rank, fence)
        self.services.serve_calls(rank, sender)

    def abandon(self) -> None:
        """Stop the group, have the threads end, and give the window back."""
        super().abandon()
        if self._services is not None:
            self._services.close()

    def close(self) -> None:
        """The same, and wait a moment for the threads."""
        super().close()
        if self._services is not None:
            self._services.join()


class ServedShard(ParameterShard):
    """A slice of the parameters on a Dask Actor, and threads for ranks that are far."""

    group_kind = ServedGroup

    async def relay(
        self, key: tuple[str, int], rank: int, fence: int, message: bytes, answered: bool = True
    ) -> bytes:
        """The answer to a rank's request, see `Mailbox.relay`."""
        group = self.group(key)
        assert isinstance(group, ServedGroup)
        check_fence(group.window, rank, fence)
        return await group.services.mailboxes[rank].relay(message, answered)


class _Services:
    """The threads of a shard, one a far rank."""

    def __init__(self, worker: Any, window: Window, kind: EndKind, timeout: float) -> None:
        self.name = f"dps-shard-{window.token.hex()}"
        self.mailboxes: dict[int, Mailbox] = {}
        self._worker = worker
        self._window = window
        self._kind = kind
        self._timeout = timeout
        self._wires: dict[int, Wire] = {}
        self._threads: list[threading.Thread] = []
        self._closed = False
        worker.handlers[self.name] = handler_of(self._take)

    async def _take(self, comm: Any, rank: int, fence: int) -> Status:
        """Dask's handler: take a rank's connection over, or refuse it."""
        try:
            check_fence(self._window, rank, fence)
            if rank in self._wires:
                raise FencedError("a second connection is refused", rank=rank)
            if not can_be_taken_over(comm):
                raise FencedError("a connection without a socket is refused", rank=rank)
        except DPSError as error:
            await comm.write((False, pickle.dumps(error)))
            comm.abort()
            return Status.dont_reply
        wire = await accept(comm)
        if wire is not None:
            self._start(rank, wire)
        return Status.dont_reply

    def serve_calls(self, rank: int, sender: str) -> None:
        mailbox = self.mailboxes[rank] = Mailbox(TICK)
        self._start(rank, ObjectWire(mailbox, Presence(self._worker, sender), ConnectionError))

    def _start(self, rank: int, wire: Wire) -> None:
        self._wires[rank] = wire
        args = self._window, self._kind, rank, self._timeout, wire
        thread = threading.Thread(
            target=serve_rank, args=args, name=f"dps-rank-{rank}", daemon=True
        )
        self._threads.append(thread)
        thread.start()
        if self._closed:  # meanwhile
            wire.shut()

    def close(self) -> None:
        """End the threads; it does not wait for them."""
        self._closed = True
        self._worker.loop.add_callback(self._worker.handlers.pop, self.name, None)
        for wire in list(self._wires.values()):
            wire.shut()

    def join(self) -> None:
        """Wait a moment until the threads have ended: all Actors of a worker share this one."""
        deadline = time.monotonic() + _MOMENT
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def serve_rank(window: Window, kind: EndKind, rank: int, timeout: float, wire: Wire) -> None:
    """Serve a rank in a shard's window until it closes its wire; a thread's whole life."""
    window.words.want_core()
    watch = Watch(window, timeout, rank)
    activity = watch.activity = Activity([window.activity[rank]])
    ranges = ((0, window.spec.size),)
    end = kind(window, rank, 0, ranges, watch.go_on, watch.tick, activity)
    access = Access(window, rank, watch, end)

    def answer(message: bytes) -> bytes:
        try:
            operation, args = pickle.loads(message)
            return pickled((True, operation(access, *args)))
        except Exception as error:
            return pickled((False, error))

    try:
        Service(end, wire, answer).run(pickled)
    except OSError:  # the rank has gone
        return
    finally:
        if window.words.rank_load(rank, Field.LEASE) != LEFT:
            window.words.rank_store(rank, Field.LEASE, LOST)
        wire.close()


def pickled(value: Any) -> bytes:
    """What a rank is answered; an exception that cannot travel is described."""
    try:
        data: bytes = pickle.dumps(value)
        return data
    except Exception:
        error = value[1] if isinstance(value, tuple) else value
        told = RuntimeError(f"{type(error).__name__}: {error}")
        return bytes(pickle.dumps((False, told) if isinstance(value, tuple) else told))
