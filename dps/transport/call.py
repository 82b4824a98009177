"""Wires over Actor calls, for clusters whose connections have no socket.

A request is an argument of a call, and its answer the result; both ends see bytes of a wire. There
is no connection that ends when a sender dies, so the shard asks the scheduler now and then.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import queue
import time
from collections.abc import Callable
from typing import Any

from distributed.protocol.pickle import dumps

from dps.errors import DPSError
from dps.transport.remote import PendingCall, Remote

#: Seconds between two questions whether a sender lives.
_ASK_EVERY = 5.0


class CallingWire:
    """The caller's end, for an `ObjectWire`.

    remote: the Actor, whose `relay` takes requests.
    sender: the first argument of `relay`.
    """

    def __init__(self, remote: Remote, sender: Any, tick: float) -> None:
        self._remote = remote
        self._sender = sender
        self._tick = tick
        self._request: list[bytes] = []
        self._pending: PendingCall | None = None
        self._came = memoryview(b"")

    def send(self, pieces: list[memoryview], look: Callable[[], None]) -> None:
        """Add to the request, which is sent when its answer is awaited."""
        self._request += map(bytes, pieces)

    def flush(self, look: Callable[[], None]) -> None:
        """Send a request without an answer; it has arrived when this returns."""
        message, self._request = b"".join(self._request), []
        sent = self._remote.start("relay", self._sender, message, False)
        while True:
            try:
                sent.within(self._tick)
                return
            except TimeoutError:
                look()

    def receive(self, into: memoryview) -> int:
        """Receive bytes of the answer."""
        if not self._came:
            if self._pending is None:
                message, self._request = b"".join(self._request), []
                self._pending = self._remote.start("relay", self._sender, message)
            self._came = memoryview(self._pending.within(self._tick))
            self._pending = None
        n = min(len(self._came), len(into))
        into[:n] = self._came[:n]
        self._came = self._came[n:]
        return n

    def shut(self) -> None:
        """Do nothing: there is no socket."""

    def close(self) -> None:
        """End the thread at the shard, if the shard lives."""
        with contextlib.suppress(DPSError):
            self._remote.start("leave", self._sender)


class Presence:
    """The check of a waiting shard that a sender lives.

    sender: id of the sender's client or worker.
    """

    def __init__(self, worker: Any, sender: str) -> None:
        self._worker, self._sender = worker, sender
        self._asked: concurrent.futures.Future[bool] | None = None
        self._next = time.monotonic() + _ASK_EVERY

    def __call__(self) -> None:
        """Raise if the sender is lost."""
        now = time.monotonic()
        if self._asked is None:
            if now >= self._next:
                loop = self._worker.loop.asyncio_loop
                self._asked = asyncio.run_coroutine_threadsafe(self._ask(), loop)
        elif self._asked.done():
            asked, self._asked, self._next = self._asked, None, now + _ASK_EVERY
            if asked.exception() is None and not asked.result():
                raise ConnectionError(f"{self._sender} has gone")

    async def _ask(self) -> bool:
        answer = await self._worker.scheduler.run_function(
            function=dumps(_knows()), args=dumps(()), kwargs=dumps({"sender": self._sender}),
            wait=True,
        )  # fmt: skip
        return bool(answer["result"])


def _knows() -> Callable[..., bool]:
    """Return a function for the scheduler, made here so that it is pickled by value."""

    def knows(dask_scheduler: Any, sender: str) -> bool:
        workers = dask_scheduler.workers.values()
        return sender in dask_scheduler.clients or any(each.server_id == sender for each in workers)

    return knows


class Mailbox:
    """The shard's end: requests arrive in the event loop, and a thread answers them."""

    def __init__(self, tick: float) -> None:
        self._tick = tick
        self._requests: queue.Queue[bytes | None] = queue.Queue()
        self._answers: queue.Queue[concurrent.futures.Future[bytes]] = queue.Queue()
        self._came = memoryview(b"")
        self._ended = False

    async def relay(self, message: bytes, answered: bool = True) -> bytes:
        """Return the answer to a request, if it has one.

        The message is empty if all of the request was sent before, as a request without an answer.

        Raises ConnectionError: the shard no longer answers.
        """
        answer: concurrent.futures.Future[bytes] = concurrent.futures.Future()
        if answered:
            self._answers.put(answer)
        else:
            answer.set_result(b"")
        if message:
            self._requests.put(bytes(message))
        if self._ended:  # the answering thread may have missed this request
            answer.cancel()
            raise ConnectionError("this end has stopped answering")
        return await asyncio.wrap_future(answer)

    def send(self, pieces: list[memoryview], look: Callable[[], None]) -> None:
        """Answer the current request."""
        answer = self._answers.get()
        if not answer.cancelled():
            answer.set_result(b"".join(pieces))

    def receive(self, into: memoryview) -> int:
        """Receive bytes of a request."""
        if not self._came:
            try:
                message = self._requests.get(timeout=self._tick)
            except queue.Empty:
                raise TimeoutError from None
            if message is None:
                return 0
            self._came = memoryview(message)
        n = min(len(self._came), len(into))
        into[:n] = self._came[:n]
        self._came = self._came[n:]
        return n

    def shut(self) -> None:
        """End a wait for a request."""
        self._requests.put(None)

    def close(self) -> None:
        """Stop answering."""
        self._ended = True
        while not self._answers.empty():
            self._answers.get().cancel()
