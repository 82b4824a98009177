"""A caller's way to one shard of named tensors in another process: mapped memory, a wire.

Where the shard's memory can be mapped, it is read there. All else goes over wires, of which a
process has as many as it has requests under way; a wire is a connection of Dask's that has been
taken over, or Actor calls where there is none to be had.

All handles of a process share one way to a shard, which ends with the last of them. A worker, whose
tasks come with a handle each, keeps it for some seconds more.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
import weakref
from collections.abc import Coroutine
from typing import Any

import numpy as np
from distributed import Client
from distributed.protocol import pickle
from numpy.typing import NDArray

from dps._runtime.message import Caller, Ending
from dps._runtime.wire import Wire
from dps.errors import ClusterError, DPSError, ServerLostError
from dps.server.holding import Holding, HoldingCard, Keys, Values, find_holding, map_parts
from dps.server.host import host_id
from dps.server.tensors import ServerSpec
from dps.transport.remote import Remote
from dps.transport.wires import ShardProbe, called, connected

__all__ = ["RemoteAccess", "Sent", "access_to"]

#: Seconds for which a file is believed to have an owner.
_BELIEVED = 0.1
#: Seconds that connecting, or an answer that nothing is waited for, may take.
_CONNECTING = 5.0
#: Seconds for which a worker keeps a way that no handle has any more.
_KEPT = 5.0
#: What has happened to a shard that its worker does not have.
_CLOSED = "the server has been closed, or whoever made it has gone"


class Sent:
    """A request on a wire."""

    def __init__(self, access: RemoteAccess, caller: Caller, out: Values) -> None:
        self._access, self._caller, self._out = access, caller, out

    def result(self) -> tuple[int, int]:
        """Wait for the answer, see `Done`."""
        try:
            ended, writes, error = self._caller.hear(self._out)
        finally:
            self._access.give_back(self._caller)
        if ended == Ending.RAISED:
            assert error is not None
            raise pickle.loads(error)
        return ended, writes


class RemoteAccess:
    """A shard on an Actor in another process.

    Parameters
    ----------
    spec : ServerSpec
    shard : int
    card : HoldingCard
    remote : Remote
    timeout : float
        Seconds without an answer that count as a loss.
    """

    def __init__(
        self, spec: ServerSpec, shard: int, card: HoldingCard, remote: Remote, timeout: float
    ) -> None:
        self._spec, self._shard, self._card = spec, shard, card
        self._remote, self._timeout = remote, timeout
        self._mapped = map_parts(spec, shard, card)
        self._seen = 0.0
        self._idle: list[Caller] = []
        self._lock = threading.Lock()
        self._calls = False  # where no connection can be made
        self._looping: threading.Thread | None = None  # that of the event loop
        self._leave = weakref.finalize(self, _leave, self._idle)
        self.used = 0.0

    def peek(self, part: int, start: int, keys: Keys, out: NDArray[np.floating]) -> int | None:
        """Read in mapped memory, see `Holding.peek`."""
        if self._mapped is None:
            return None
        held, store = self._mapped[part]
        now = time.monotonic()
        if now - self._seen > _BELIEVED and store.file is not None:
            if store.file.owner_is_gone():
                raise self._lost("its worker has died")  # or it has been closed
            self._seen = now
        return held.peek(start, keys, out)

    def begin(
        self,
        op: int,
        part: int,
        start: int,
        keys: Keys,
        values: Values,
        weight: float,
        out: Values,
    ) -> Sent:
        """Send a request, see `Holding.begin`."""
        caller = self._take()
        try:
            caller.ask(op, part, start, keys, values, weight, out)
        except BaseException:
            self.give_back(caller)
            raise
        return Sent(self, caller, out)

    def call(self, method: str, *args: Any) -> Any:
        """Call it, see `Holding.call`."""
        message = bytes(pickle.dumps((method, args)))
        caller = self._take()
        try:
            ended, answer = caller.call(message)
        finally:
            self.give_back(caller)
        done, value = pickle.loads(answer) if ended == Ending.RAN else (False, pickle.loads(answer))
        if not done:
            raise value
        return value

    def lost(self, what: str) -> ServerLostError:
        """The error of a shard that cannot be reached, which says what it holds."""
        return self._spec.lost(self._shard, what, self._remote.address)

    def _lost(self, what: str) -> DPSError:
        """The same of a wire that has ended: the shard's worker knows whether it is there."""
        if threading.current_thread() is self._looping:
            return self.lost(what)
        try:
            self._ask_whether_there()
        except (ServerLostError, ClusterError) as error:
            return error
        return self.lost(what)

    def _ask_whether_there(self) -> None:
        """Raise if the shard is not there any more."""
        timeout = min(self._timeout, _CONNECTING)
        held, alive = self._remote.submit(self._looked_for()).result(timeout)
        if not alive:
            raise self.lost("its worker has died")
        if not held:
            raise self.lost(_CLOSED)
        try:
            there = self._remote.call("there", timeout=timeout)
        except ServerLostError as error:  # meanwhile
            raise self.lost(_CLOSED if "released" in error.message else error.message) from error
        if not there:
            raise self.lost(_CLOSED)

    async def _looked_for(self) -> tuple[bool, bool]:
        """Whether the scheduler knows the shard, and its worker."""
        remote = self._remote
        held = await remote.node.scheduler.who_has(keys=[remote.key])
        return bool(held.get(remote.key)), remote.address in await remote.node.scheduler.ncores()

    def _take(self) -> Caller:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._connect()

    def give_back(self, caller: Caller) -> None:
        """Keep a wire for the next request, unless it is of no more use."""
        if caller.broken or not self._leave.alive:
            caller.close()
            return
        with self._lock:
            self._idle.append(caller)

    def _connect(self) -> Caller:
        self._ask_whether_there()
        patience = ShardProbe(self._remote, self._timeout, None)

        # What a wire calls must not keep this object alive, which is forgotten by its callers.
        known = weakref.WeakMethod(self.lost), weakref.WeakMethod(self._lost)

        def look() -> None:
            try:
                patience()
            except ServerLostError as error:
                say = known[0]()
                raise error if say is None else say(error.message) from error

        def lost(what: str) -> DPSError:
            say = known[1]()
            return ServerLostError(what) if say is None else say(what)

        handler = self._card.handler
        assert handler is not None

        remote, wire, name = self._remote, None, _name()
        if not self._calls:
            within = min(self._timeout, _CONNECTING)
            opening = self._opened(connected(remote, handler, name, look, lost, within))
            wire = remote.submit(opening).result(self._timeout)
        if wire is None:
            self._calls = True
            name = f"{name} {uuid.uuid4().hex[:8]}"
            wire = called(remote, None, name, look, lost, self._timeout)
        return Caller(wire)

    async def _opened(self, opening: Coroutine[Any, Any, Wire | None]) -> Wire | None:
        """A connection; None where there is none to be had from here."""
        self._looping = threading.current_thread()
        try:
            return await opening
        except (OSError, ValueError):  # a client need not have a way to workers
            return None


def _leave(idle: list[Caller]) -> None:
    while idle:
        idle.pop().close()


def _name() -> str:
    """Of this process, for those who look at who is connected."""
    return f"{os.uname().nodename}:{os.getpid()}"


#: The ways of this process: by server, how many tensors it had, shard, and client or worker.
_ways: weakref.WeakValueDictionary[tuple[Any, ...], RemoteAccess] = weakref.WeakValueDictionary()
#: Those that tasks of workers have used lately.
_kept: set[RemoteAccess] = set()
_lock = threading.Lock()


def access_to(
    spec: ServerSpec, shard: int, card: HoldingCard, remote: Remote, timeout: float
) -> Holding | RemoteAccess:
    """The way to a shard, found out by trying."""
    holding = find_holding(card)
    if holding is not None and card.host == host_id():
        return holding
    node = remote.node
    key = spec.id, len(spec.tensors), shard, node.id
    with _lock:
        access = _ways.get(key)
        if access is None:
            access = _ways[key] = RemoteAccess(spec, shard, card, remote, timeout)
        if not isinstance(node, Client):
            access.used = time.monotonic()
            if access not in _kept:
                _kept.add(access)
                node.loop.add_callback(node.loop.call_later, _KEPT, _let_go, access, node.loop)
    return access


def _let_go(access: RemoteAccess, loop: Any) -> None:
    """Keep a way no longer, unless it has been used lately."""
    with _lock:
        left = access.used + _KEPT - time.monotonic()
        if left <= 0:
            _kept.discard(access)
    if left > 0:
        loop.call_later(left, _let_go, access, loop)
