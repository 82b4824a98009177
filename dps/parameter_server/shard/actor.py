"""The Actor of a shard of named tensors, with a thread for each caller in another process.

The threads are native (``wire/service.pyx``): each reads a complete request, does it on the shard's
part, and answers. If a caller dies during a request, nothing is done. If it dies before the answer,
its request has been done once. To its mirror, an Actor of the same kind, a shard is a caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from distributed import get_worker

from dps._runtime.wire.service import Service
from dps._runtime.wire.wire import Wire
from dps.errors import FencedError
from dps.monitor.shard.server_reporter import ServerReporter
from dps.parameter_server.client.access import RemoteAccess, mirror_key, shard_key
from dps.parameter_server.shard.layout import ServerSpec
from dps.parameter_server.shard.state import TensorShardCard, TensorShardState
from dps.server.memory.files import sweep
from dps.transport.remote import Remote
from dps.transport.serving import Served, Services, answering, pickled

#: Creates a mirror of a shard on a worker, by its number, and calls a function with it; False if
#: there is no other worker.
MirrorMaker = Callable[[ServerSpec, int, int, Any, Callable[[Remote], None]], bool]

_log = logging.getLogger("dps")

#: Seconds until another attempt to create a mirror, and between checks of it.
_RETRY_SECONDS, _LOOK_SECONDS = 2.0, 1.0


class TensorShard(Served):
    """A shard of a server of named tensors, as a Dask Actor.

    number: number of the mirror; 0: it is the shard.
    make_mirror: creates another mirror once it leads and its mirror is lost.
    watched: whether it reports its activity while it leads.
    """

    def __init__(
        self,
        spec: ServerSpec,
        shard: int,
        number: int = 0,
        make_mirror: MirrorMaker | None = None,
        watched: bool = False,
    ) -> None:
        self._holding = holding = TensorShardState(spec, shard, shared=True, leads=number == 0)
        serve = partial(_serve, holding)  # it does not keep this object alive
        worker = self._worker = get_worker()
        self._services = Services(worker, holding.token, _check_name, serve)
        holding.handler, holding.callers = self._services.name, self._services.callers
        closed = threading.Event()
        holding.mirroring.key = (
            mirror_key(spec.id, shard, number) if number else shard_key(spec.id, shard)
        )
        self._make, self._number, self._closed = make_mirror, number, closed
        if number:
            self._keep()
        self._close = weakref.finalize(self, _close, self._services, holding, closed)
        self._watched = watched
        self._report_end: weakref.finalize[Any, Any] | None = None
        if number == 0:
            self._report()

    def card(self) -> TensorShardCard:
        """The card by which callers reach it."""
        return self._holding.card()

    async def mirror(self, card: TensorShardCard, remote: Remote) -> None:
        """Add a mirror before the first write.

        This must not run in the thread that all Actors of a worker share: the mirror's worker may
        be waiting for this one in the same way.
        """
        remote = Remote(remote.address, remote.key, self._worker)
        await asyncio.to_thread(_mirror, self._holding, card, remote, True)
        self._keep()

    def _keep(self) -> None:
        """Keep the shard mirrored; the first mirror is created with the shard."""
        number = max(self._number, 1)
        _Keeper(self, self._holding, self._worker, self._make, number, self._closed)

    def promote(self) -> TensorShardCard | None:
        """Lead from now on, see `TensorShardState.promote`."""
        led, card = self._holding.leads, self._holding.promote()
        if card is not None and not led:
            held = self._holding
            _log.warning("shard %d of %s is lost, and its mirror leads", held.shard, held.spec)
            self._report()
        return card

    def _report(self) -> None:
        """Report the activity of this shard from now on."""
        if not self._watched:
            return
        known, held = weakref.WeakMethod(self.traffic), self._holding

        def look() -> dict[str, Any] | None:
            traffic = known()
            return None if traffic is None else traffic()

        spec = held.spec
        reporter = ServerReporter(self._worker, spec.id, held.shard, spec.n_shards, spec.name, look)
        end = self._report_end = weakref.finalize(self, reporter.end)
        end.atexit = False

    def traffic(self) -> dict[str, Any]:
        """Quick counts and callers of this shard."""
        return {"parts": self._holding.traffic(), "callers": self._services.callers()}

    def version(self) -> int:
        """Return 0; the answer itself is the point."""
        return 0

    def there(self) -> bool:
        """True while callers are served."""
        return self._close.alive

    @property
    def services(self) -> Services:
        """The threads that serve callers."""
        return self._services

    def close(self) -> None:
        """Refuse all callers, and free the memory."""
        self._close()
        if self._report_end is not None:
            self._report_end()


def _check_name(who: Any) -> None:
    if not isinstance(who, str):
        raise FencedError(f"a caller gives {who!r} as its name, which is no str")


def _serve(holding: TensorShardState, who: str, wire: Wire) -> None:
    """Serve a caller until it closes its wire; this is a thread's whole life."""
    answer = answering(lambda method, args: holding.call(method, *args))
    entry = holding.entries.take()
    try:
        with contextlib.suppress(OSError):  # the caller is lost
            Service(wire, answer, parts=holding.parts, entry=entry).run(pickled)
    finally:
        holding.entries.give_back(entry)


def _mirror(holding: TensorShardState, card: TensorShardCard, remote: Remote, fresh: bool) -> None:
    spec = holding.spec
    access = RemoteAccess(spec, holding.shard, card, remote, spec.timeout, moves=False)
    holding.mirror(access, fresh=fresh)


class _Keeper:
    """A thread that keeps a shard mirrored: every second each side checks the other.

    A shard whose mirror is lost continues without it, and has another one created once there is a
    worker for it. A mirror whose shard is lost takes over. The other side is lost if the scheduler
    still has this Actor but not the other one; if it has neither, the server was closed.
    """

    def __init__(
        self,
        shard: TensorShard,
        holding: TensorShardState,
        worker: Any,
        make: MirrorMaker | None,
        last: int,
        closed: threading.Event,
    ) -> None:
        self._holding, self._promote = weakref.ref(holding), weakref.WeakMethod(shard.promote)
        self._worker, self._make, self._closed = worker, make, closed
        self._numbers = itertools.count(last + 1)
        self._wanted = threading.Event()
        self._tried = -math.inf
        self._said = False
        holding.mirroring.on_loss = self._wanted.set
        threading.Thread(target=self._run, name="dps-mirror", daemon=True).start()

    def _run(self) -> None:
        while not self._closed.is_set():
            self._wanted.wait(_LOOK_SECONDS)
            if (holding := self._holding()) is None or self._closed.is_set():
                return
            try:
                self._look(holding)
            except Exception as error:  # the next check is in a second
                _log.debug("a shard could not be looked after: %s", error)
            del holding  # this thread does not keep it alive
            if self._wanted.is_set():
                self._closed.wait(_LOOK_SECONDS)

    def _look(self, holding: TensorShardState) -> None:
        sweep(_LOOK_SECONDS, holding.spec.id)  # files of a dead shard or mirror on this host
        if not holding.leads:
            self._wanted.clear()
            promote = self._promote()
            leader = holding.mirroring.leader
            if promote is not None and leader and self._is_gone(holding, leader):
                promote()
            return
        holding.mirroring.look(lambda mirror: self._is_gone(holding, mirror.key))
        if not self._wanted.is_set():
            return
        if self._make is None or holding.mirroring.is_on:
            self._wanted.clear()
        elif time.monotonic() - self._tried >= _RETRY_SECONDS:
            try:
                self._make(
                    holding.spec, holding.shard, next(self._numbers), self._worker, self._use
                )
            except Exception as error:
                log = _log.info if self._said else _log.warning
                log("no mirror could be made, which is tried again: %s", error)
                self._said = True
            self._tried = time.monotonic()

    def _is_gone(self, holding: TensorShardState, key: str) -> bool:
        """True if the scheduler has lost that Actor, but not this one."""
        asking = self._worker.scheduler.who_has(keys=[holding.mirroring.key, key])
        loop = self._worker.loop.asyncio_loop
        found = asyncio.run_coroutine_threadsafe(asking, loop).result(holding.spec.timeout)
        return bool(found.get(holding.mirroring.key)) and not found.get(key)

    def _use(self, remote: Remote) -> None:
        holding = self._holding()
        if holding is not None:
            card = remote.call("card", timeout=holding.spec.timeout)
            _mirror(holding, card, remote, fresh=False)
            self._said = False


def _close(services: Services, holding: TensorShardState, closed: threading.Event) -> None:
    closed.set()
    holding.close()
    services.close()
