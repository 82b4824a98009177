"""The Actor that holds a shard of named tensors, and a thread for each caller that is not with it.

It owns the handler that callers connect to and the threads. What a thread does is native
(``_runtime/tensors.pyx``): it reads a request, whole, does it on the shard's part, and answers.

Protocol of a connection, one a caller and shard
    caller  ``{op, caller}``, as one message of Dask's
    shard   ``(True, None)``; both take the socket over (``stream.py``)
    caller  a request
    shard   its answer
    ...     in turn, until either side closes

A caller that dies inside a request has asked for nothing. One that dies before its answer has been
served: what it asked for has been done, once. Where a connection has no socket, requests and
answers travel as Actor calls, through the same thread.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from dataclasses import replace
from typing import Any

from distributed import get_worker
from distributed.core import Status
from distributed.protocol import pickle

from dps._runtime.tensors import TensorService
from dps._runtime.wire import ObjectWire, Wire
from dps.server.holding import Holding, HoldingCard
from dps.server.tensors import ServerSpec
from dps.transport.call import Mailbox, Presence
from dps.transport.serving import pickled
from dps.transport.stream import TICK, accept, can_be_taken_over, handler_of

__all__ = ["TensorShard"]


class TensorShard:
    """A shard of a server of named tensors, as a Dask Actor.

    Parameters
    ----------
    spec : ServerSpec
    shard : int
    """

    def __init__(self, spec: ServerSpec, shard: int) -> None:
        self._holding = Holding(spec, shard, shared=True)
        self._services = _Services(get_worker(), self._holding)
        self._close = weakref.finalize(self, _close, self._services, self._holding)

    def card(self) -> HoldingCard:
        """How callers reach it."""
        return replace(self._holding.card(), handler=self._services.name)

    def extend(self, spec: ServerSpec) -> ServerSpec:
        """Hold further tensors, see `Holding.extend`."""
        return self._holding.extend(spec)

    def status(self) -> dict[str, Any]:
        """What has been done here, and who is connected."""
        return {**self._holding.counts(), "callers": self._services.callers()}

    def traffic(self) -> dict[str, Any]:
        """The same, as far as it takes no time to tell."""
        return {"parts": self._holding.traffic(), "callers": self._services.callers()}

    def version(self) -> int:
        """Nothing: that it answers is what is asked."""
        return 0

    def there(self) -> bool:
        """Whether callers are still served."""
        return self._close.alive

    def serve_calls(self, caller: str, sender: str) -> None:
        """Begin to serve a caller by Actor calls, as long as its sender is there."""
        self._services.serve_calls(caller, sender)

    def leave(self, caller: str) -> None:
        """End that."""
        self._services.leave(caller)

    async def relay(self, caller: str, message: bytes) -> bytes:
        """The answer to a caller's request."""
        return await self._services.mailboxes[caller].relay(message)

    def close(self) -> None:
        """Refuse all callers, and give the memory back."""
        self._close()


def _close(services: _Services, holding: Holding) -> None:
    holding.close()
    services.close()


class _Services:
    """The threads of a shard, one a caller."""

    def __init__(self, worker: Any, holding: Holding) -> None:
        self.name = f"dps-server-{holding.token.hex()}"
        self.mailboxes: dict[str, Mailbox] = {}
        self._worker = worker
        self._holding = holding
        self._wires: dict[Wire, str] = {}
        self._lock = threading.Lock()
        self._closed = False
        worker.handlers[self.name] = handler_of(self._take)

    async def _take(self, comm: Any, caller: str) -> Status:
        """Dask's handler: take a caller's connection over."""
        if not can_be_taken_over(comm):
            with contextlib.suppress(OSError):  # the caller has gone
                await comm.write((False, None))
            comm.abort()
            return Status.dont_reply
        wire = await accept(comm)
        if wire is not None:
            self._start(caller, wire)
        return Status.dont_reply

    def serve_calls(self, caller: str, sender: str) -> None:
        mailbox = self.mailboxes[caller] = Mailbox(TICK)
        self._start(caller, ObjectWire(mailbox, Presence(self._worker, sender), ConnectionError))

    def leave(self, caller: str) -> None:
        mailbox = self.mailboxes.pop(caller, None)
        if mailbox is not None:
            mailbox.shut()

    def callers(self) -> list[str]:
        """Who is connected."""
        with self._lock:
            return sorted(self._wires.values())

    def _start(self, caller: str, wire: Wire) -> None:
        with self._lock:
            self._wires[wire] = caller
        thread = threading.Thread(
            target=self._serve, args=(wire,), name=f"dps-caller-{caller}", daemon=True
        )
        thread.start()
        if self._closed:  # meanwhile
            wire.shut()

    def _serve(self, wire: Wire) -> None:
        """Serve a caller until it closes its wire; a thread's whole life."""
        try:
            TensorService(self._holding.parts, wire).serve_all(self._answer, pickled)
        except OSError:  # the caller has gone
            pass
        finally:
            with self._lock:
                caller = self._wires.pop(wire)
            self.mailboxes.pop(caller, None)
            wire.close()

    def _answer(self, message: bytes) -> bytes:
        try:
            method, args = pickle.loads(message)
            return pickled((True, self._holding.call(method, *args)))
        except Exception as error:
            return pickled((False, error))

    def close(self) -> None:
        """End the threads; it does not wait for them."""
        self._closed = True
        self._worker.loop.add_callback(self._worker.handlers.pop, self.name, None)
        with self._lock:
            for wire in self._wires:
                wire.shut()
