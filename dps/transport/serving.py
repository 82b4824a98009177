"""Access to a shard for peers that cannot map its memory: one thread each, at the shard.

It owns the threads and the handler that ranks and callers connect to (``wires.py`` has the
protocol). What a thread does is native (``wire/service.pyx``): it takes the steps that a rank here
would take, or reads and writes parts of tensors.

A connection is never read again after a message was interrupted, since the position in it is lost.
The threads end when the shard goes away, even if no process has closed it because its client has
died.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any

from distributed import get_worker
from distributed.core import Status
from distributed.protocol import pickle

from dps._runtime.shared.activity import Activity
from dps._runtime.wire.service import Service
from dps._runtime.wire.wire import ObjectWire, Wire
from dps.errors import DPSError, FencedError
from dps.server.group.deadlines import Watch
from dps.server.group.operations import Access, check_fence
from dps.server.group.window import Field, Window
from dps.server.memory.lease import LEFT, LOST
from dps.server.shard import ChannelKind, ShardSpec
from dps.transport.call import Mailbox, Presence
from dps.transport.stream import SILENCE, TICK, accept, can_be_taken_over, handler_of

_JOIN_SECONDS = 1.0  # seconds in which threads must end


class FarRanks:
    """Threads for the remote ranks of a group.

    spec, window: of the shard; this object does not keep it alive.
    """

    def __init__(self, spec: ShardSpec, window: Window) -> None:
        self._channel, self._timeout, self._window = spec.channel, spec.timeout, window
        self._services: Services | None = None
        self._taken: set[int] = set()

    def admit(self, operation: Callable[..., Any], rank: int, *args: Any) -> str | None:
        """Run the operation that claims a rank; return the handler that it may connect to."""
        watch = Watch(self._window, self._timeout, rank)
        operation(Access(self._window, rank, watch), *args)
        return self.services.name

    @property
    def services(self) -> Services:
        """The threads, created for the first rank that needs one."""
        if self._services is None:
            self._services = Services(get_worker(), self._window.token, self._check, self._serve)
        return self._services

    def _check(self, who: Any) -> None:
        rank, fence = who
        check_fence(self._window, rank, fence)
        if rank in self._taken:
            raise FencedError("a second connection is refused", rank=rank)
        self._taken.add(rank)

    def _serve(self, who: Any, wire: Wire) -> None:
        serve_rank(self._window, self._channel, who[0], self._timeout, wire)

    def close(self) -> None:
        """Make the threads end."""
        if self._services is not None:
            self._services.close()

    def join(self) -> None:
        """Wait a moment for the threads."""
        if self._services is not None:
            self._services.join()


class Served(ABC):
    """An Actor whose methods also serve callers without a connection."""

    @property
    @abstractmethod
    def services(self) -> Services:
        """The threads that serve ranks or callers."""

    async def in_turn(self, method: str, *args: Any) -> Any:
        """Call a method in a thread of its own, one call after another.

        All Actors of a worker share Dask's thread, where a long call of another user's Actor would
        delay this one.
        """
        function = getattr(self, method)
        if inspect.iscoroutinefunction(function):
            return await function(*args)
        async with self._turn:
            return await asyncio.to_thread(function, *args)

    @cached_property
    def _turn(self) -> asyncio.Lock:
        return asyncio.Lock()

    def serve_calls(self, who: Any, sender: str) -> None:
        """Begin to serve a caller by Actor calls, as long as the sender lives."""
        self.services.serve_calls(who, sender)

    async def relay(self, who: Any, message: bytes, answered: bool = True) -> bytes:
        """Return the answer to a request, see `Mailbox.relay`."""
        return await self.services.mailboxes[who].relay(message, answered)

    def leave(self, who: Any) -> None:
        """Stop serving a sender by Actor calls."""
        self.services.leave(who)


class Services:
    """The threads of a shard, one per connection.

    token: names its handler.
    check: ``check(who)`` raises to refuse a caller.
    serve: ``serve(who, wire)`` runs in a thread until the wire ends.
    """

    def __init__(
        self,
        worker: Any,
        token: bytes,
        check: Callable[[Any], None],
        serve: Callable[[Any, Wire], None],
    ) -> None:
        self.name = f"dps-shard-{token.hex()}"
        self.mailboxes: dict[Any, Mailbox] = {}
        self._worker, self._check, self._serve = worker, check, serve
        self._served: dict[Wire, tuple[Any, threading.Thread]] = {}
        self._lock = threading.Lock()
        self._closed = False
        worker.handlers[self.name] = handler_of(self._take)

    async def _take(self, comm: Any, who: Any, silence: float = SILENCE) -> Status:
        """Dask's handler: take over a connection, or refuse it."""
        who = tuple(who) if isinstance(who, list) else who
        try:
            self._check(who)
            if not can_be_taken_over(comm):
                raise FencedError("a connection without a socket is refused")
        except DPSError as error:
            with contextlib.suppress(OSError):  # the caller is lost
                await comm.write((False, pickle.dumps(error)))
            comm.abort()
            return Status.dont_reply
        wire = await accept(comm, silence)
        if wire is not None:
            self._start(who, wire)
        return Status.dont_reply

    def serve_calls(self, who: Any, sender: str) -> None:
        """Begin to serve a caller by Actor calls, as long as the sender lives."""
        self._check(who)
        mailbox = self.mailboxes[who] = Mailbox(TICK)
        self._start(who, ObjectWire(mailbox, Presence(self._worker, sender), ConnectionError))

    def leave(self, who: Any) -> None:
        """Stop serving a sender by Actor calls."""
        mailbox = self.mailboxes.pop(who, None)
        if mailbox is not None:
            mailbox.shut()

    def callers(self) -> list[Any]:
        """The connected callers."""
        with self._lock:
            return sorted((who for who, _ in self._served.values()), key=str)

    def _start(self, who: Any, wire: Wire) -> None:
        thread = threading.Thread(
            target=self._run, args=(who, wire), name=f"dps-service-{who}", daemon=True
        )
        with self._lock:
            self._served[wire] = who, thread
            thread.start()  # before `join` can see it
        if self._closed:  # closed meanwhile
            wire.shut()

    def _run(self, who: Any, wire: Wire) -> None:
        try:
            self._serve(who, wire)
        finally:
            with self._lock:
                del self._served[wire]
            self.mailboxes.pop(who, None)
            wire.close()

    def close(self) -> None:
        """End the threads without waiting for them."""
        self._closed = True
        self._worker.loop.add_callback(self._worker.handlers.pop, self.name, None)
        with self._lock:
            for wire in self._served:
                wire.shut()

    def join(self) -> None:
        """Wait a moment until the threads have ended: all Actors of a worker share this one."""
        deadline = time.monotonic() + _JOIN_SECONDS
        with self._lock:
            threads = [thread for _, thread in self._served.values()]
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def serve_rank(window: Window, kind: ChannelKind, rank: int, timeout: float, wire: Wire) -> None:
    """Serve a rank in a shard's window until it closes its wire; this is a thread's whole life."""
    window.words.want_core()
    watch = Watch(window, timeout, rank)
    activity = watch.activity = Activity([window.activity[rank]])
    channel = kind(window, rank, 0, 0, watch.go_on, watch.tick, activity)
    access = Access(window, rank, watch, channel)

    try:
        Service(wire, answering(lambda call, args: call(access, *args)), channel).run(pickled)
    except OSError:  # the rank is lost
        return
    finally:
        if window.words.rank_load(rank, Field.LEASE) != LEFT:
            window.words.rank_store(rank, Field.LEASE, LOST)


def answering(call: Callable[[Any, Any], Any]) -> Callable[[bytes], bytes]:
    """Return a function that answers messages by ``call(function, args)``, or by its exception."""

    def answer(message: bytes) -> bytes:
        try:
            result = call(*pickle.loads(message))
        except Exception as error:
            return bytes(pickle.dumps((False, sendable(error))))
        try:
            return bytes(pickle.dumps((True, result)))
        except Exception as error:
            refused = TypeError(f"the result of the call cannot be pickled: {error}")
            return bytes(pickle.dumps((False, refused)))

    return answer


def pickled(error: Exception) -> bytes:
    """Pickle an exception, or its text."""
    return bytes(pickle.dumps(sendable(error)))


def sendable(error: Exception) -> Exception:
    """Return an exception, or another one with its text if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error} (which cannot be pickled)")
    return error
