"""Wires over Actor calls, for clusters whose connections have no socket.

A request is an argument, its answer the result; both ends see them as bytes of a wire.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
from collections.abc import Callable
from typing import Any

from dps.transport.remote import PendingCall, Remote

__all__ = ["CallingWire", "Mailbox"]


class CallingWire:
    """The rank's end, as an `ObjectWire` uses it.

    Parameters
    ----------
    remote : Remote
        The Actor, whose `relay` takes requests.
    sender : tuple
        The first arguments of `relay`: who sends.
    tick : float
    """

    def __init__(self, remote: Remote, sender: tuple[Any, ...], tick: float) -> None:
        self._remote = remote
        self._sender = sender
        self._tick = tick
        self._request: list[bytes] = []
        self._pending: PendingCall | None = None
        self._came = memoryview(b"")

    def send(self, pieces: list[memoryview], look: Callable[[], None]) -> None:
        """Add to the request, which goes when its answer is asked for."""
        self._request += map(bytes, pieces)

    def receive(self, into: memoryview) -> int:
        """Put bytes of the answer there."""
        if not self._came:
            if self._pending is None:
                message, self._request = b"".join(self._request), []
                self._pending = self._remote.start("relay", *self._sender, message)
            self._came = memoryview(self._pending.within(self._tick))
            self._pending = None
        n = min(len(self._came), len(into))
        into[:n] = self._came[:n]
        self._came = self._came[n:]
        return n

    def shut(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is held."""


class Mailbox:
    """The shard's end: requests come in the event loop, a thread answers them.

    Parameters
    ----------
    tick : float
    """

    def __init__(self, tick: float) -> None:
        self._tick = tick
        self._requests: queue.Queue[bytes | None] = queue.Queue()
        self._answers: queue.Queue[concurrent.futures.Future[bytes]] = queue.Queue()
        self._came = memoryview(b"")
        self._ended = False

    async def relay(self, message: bytes) -> bytes:
        """The answer to a request.

        Raises
        ------
        ConnectionError
            Nobody answers any more.
        """
        answer: concurrent.futures.Future[bytes] = concurrent.futures.Future()
        self._answers.put(answer)
        self._requests.put(bytes(message))
        if self._ended:  # whoever would have answered may not have seen this one
            answer.cancel()
            raise ConnectionError("nobody answers here any more")
        return await asyncio.wrap_future(answer)

    def send(self, pieces: list[memoryview], look: Callable[[], None]) -> None:
        """Answer the request that has come."""
        answer = self._answers.get()
        if not answer.cancelled():
            answer.set_result(b"".join(pieces))

    def receive(self, into: memoryview) -> int:
        """Put bytes of a request there."""
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
        """End what waits for a request."""
        self._requests.put(None)

    def close(self) -> None:
        """Nobody answers any more."""
        self._ended = True
        while not self._answers.empty():
            self._answers.get().cancel()
