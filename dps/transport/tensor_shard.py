"""The Actor that holds a shard of named tensors, and a thread for each caller that is not with it.

What a thread does is native (``_runtime/service.pyx``): it reads a request, whole, does it on the
shard's part, and answers. A caller that dies inside a request has asked for nothing. One that dies
before its answer has been served: what it asked for has been done, once. To its mirror, an Actor of
the same kind, the shard is a caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from distributed import get_worker

from dps._runtime.service import Service
from dps._runtime.wire import Wire
from dps.server.holding import Holding, HoldingCard
from dps.server.tensors import ServerSpec
from dps.transport.callers import RemoteAccess
from dps.transport.remote import Remote
from dps.transport.serving import Served, Services, answering, pickled

#: Makes mirror number so and so of a shard on a worker, and calls a function with it; False where
#: there is no other worker.
MirrorMaker = Callable[[ServerSpec, int, int, Any, Callable[[Remote], None]], bool]

_log = logging.getLogger("dps")

#: Seconds until a mirror is tried to be made again.
_AGAIN = 2.0


class TensorShard(Served):
    """A shard of a server of named tensors, as a Dask Actor.

    Parameters
    ----------
    spec : ServerSpec
    shard : int
    number : int, default=0
        Of the mirror that it is of the shard; 0: it is the shard.
    make_mirror : callable, optional
        By which it has another mirror, when it leads and the one it had is gone.
    """

    def __init__(
        self,
        spec: ServerSpec,
        shard: int,
        number: int = 0,
        make_mirror: MirrorMaker | None = None,
    ) -> None:
        self._holding = holding = Holding(spec, shard, shared=True, leads=number == 0)
        serve = partial(_serve, holding)  # which does not keep this object
        worker = self._worker = get_worker()
        self._services = Services(worker, holding.token, lambda who: None, serve)
        holding.handler, holding.callers = self._services.name, self._services.callers
        closed = threading.Event()
        if make_mirror is not None:
            # The first one was made with the shard.
            keeper = _Keeper(holding, worker, make_mirror, max(number, 1), closed)
            holding.mirroring.on_loss = keeper.begin
        self._close = weakref.finalize(self, _close, self._services, holding, closed)

    def card(self) -> HoldingCard:
        """How callers reach it."""
        return self._holding.card()

    async def mirror(self, card: HoldingCard, remote: Remote) -> None:
        """Have a mirror, where nothing has been written yet.

        Not in the one thread that all Actors of a worker share: the mirror's worker may wait for
        this one's likewise.
        """
        remote = Remote(remote.address, remote.key, self._worker)
        await asyncio.to_thread(_mirror, self._holding, card, remote, True)

    def promote(self) -> HoldingCard | None:
        """Lead from now on, see `Holding.promote`."""
        led, card = self._holding.leads, self._holding.promote()
        if card is not None and not led:
            held = self._holding
            _log.warning("shard %d of %s is lost, and its mirror leads", held.shard, held.spec)
        return card

    def traffic(self) -> dict[str, Any]:
        """What has been done here and who is connected, as far as it takes no time to tell."""
        return {"parts": self._holding.traffic(), "callers": self._services.callers()}

    def version(self) -> int:
        """Nothing: that it answers is what is asked."""
        return 0

    def there(self) -> bool:
        """Whether callers are still served."""
        return self._close.alive

    def services(self, group: None) -> Services:
        """The threads that serve callers."""
        return self._services

    def close(self) -> None:
        """Refuse all callers, and give the memory back."""
        self._close()


def _serve(holding: Holding, who: str, wire: Wire) -> None:
    """Serve a caller until it closes its wire; a thread's whole life."""
    answer = answering(lambda method, args: holding.call(method, *args))
    entry = holding.entries.take()
    try:
        with contextlib.suppress(OSError):  # the caller has gone
            Service(wire, answer, parts=holding.parts, entry=entry).run(pickled)
    finally:
        holding.entries.give_back(entry)


def _mirror(holding: Holding, card: HoldingCard, remote: Remote, fresh: bool) -> None:
    spec = holding.spec
    access = RemoteAccess(spec, holding.shard, card, remote, spec.timeout, moves=False)
    holding.mirror(access, fresh=fresh)


class _Keeper:
    """Has another mirror made, in a thread, once there is a worker for it."""

    def __init__(
        self,
        holding: Holding,
        worker: Any,
        make: MirrorMaker,
        last: int,
        closed: threading.Event,
    ) -> None:
        self._holding = weakref.ref(holding)
        self._worker, self._make, self._closed = worker, make, closed
        self._numbers = itertools.count(last + 1)
        self._busy = threading.Lock()

    def begin(self) -> None:
        """Begin, unless it has begun."""
        if self._busy.acquire(blocking=False):
            threading.Thread(target=self._run, name="dps-mirror", daemon=True).start()

    def _run(self) -> None:
        try:
            while self._is_wanted():
                try:
                    self._try()
                except Exception as error:
                    _log.warning("no mirror could be made, which is tried again: %s", error)
                if self._is_wanted():
                    self._closed.wait(_AGAIN)
        finally:
            self._busy.release()
        if self._is_wanted():  # somebody has asked for it meanwhile
            self.begin()

    def _is_wanted(self) -> bool:
        holding = self._holding()
        return holding is not None and not self._closed.is_set() and not holding.mirroring.is_on

    def _try(self) -> None:
        holding = self._holding()
        if holding is not None:
            spec, shard = holding.spec, holding.shard
            del holding
            self._make(spec, shard, next(self._numbers), self._worker, self._use)

    def _use(self, remote: Remote) -> None:
        holding = self._holding()
        if holding is not None:
            card = remote.call("card", timeout=holding.spec.timeout)
            _mirror(holding, card, remote, fresh=False)


def _close(services: Services, holding: Holding, closed: threading.Event) -> None:
    closed.set()
    holding.close()
    services.close()
