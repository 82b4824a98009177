"""A caller's access to one shard of named tensors in another process.

If the shard's memory can be mapped, reads go there. Everything else uses wires; a process has as
many as it has pending requests. A wire is a connection of Dask that has been taken over, or Actor
calls if there is none.

If a mirrored shard is lost, the first caller that notices promotes the mirror, and all continue
there: unanswered requests are repeated, and done once. A shard is lost once the scheduler no longer
has its Actor; until the scheduler knows, callers wait. A shard that the scheduler has given up
although it lives answers no more writes, because its mirror refuses what it forwards.

All handles in a process share one access per shard, which ends with the last handle. A worker,
where each task brings a handle, keeps it for some seconds longer.
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

from dps._runtime.wire.message import Caller, Ending, Op
from dps._runtime.wire.wire import Wire
from dps.errors import ClusterError, DPSError, ServerLostError, UnknownOutcomeError
from dps.parameter_server.shard.layout import ServerSpec
from dps.parameter_server.shard.state import (
    Keys,
    TensorShardCard,
    TensorShardState,
    find_shard_state,
    map_parts,
)
from dps.server.memory.host import host_id
from dps.transport.remote import Remote
from dps.transport.wires import ShardProbe, called, connected

#: Seconds for which a file is assumed to have an owner after a check.
_BELIEVED = 0.1
#: Seconds in which a connection, or an answer that waits for nothing, must come.
_CONNECTING = 5.0
#: Seconds for which Actor calls replace connections after one has failed.
_CALLED = 60.0
#: Seconds for which a worker keeps an access without handles.
_KEPT = 5.0
#: Seconds between checks of a shard's state.
_ASKED = 0.05
#: The state of a shard that the scheduler has lost.
_DIED = "its worker has died"
_CLOSED = "the server has been closed, or its maker has gone"


class PendingResult:
    """A pending request on a wire.

    If the connection of a write ends before the answer, and the shard lives, the result raises
    `UnknownOutcomeError`: the write may have been done. If the request was not sent completely, or
    the shard has refused it, nothing was done.
    """

    def __init__(self, access: RemoteAccess, *request: Any) -> None:
        self._access, self._request = access, request
        self._asked = False  # whether it was sent completely, with an unknown outcome
        self._caller, self._remote = access.take()
        self._ask(again=False)

    def again(self) -> None:
        """Send the request again, after an `UnknownOutcomeError`."""
        try:
            self._caller, self._remote = self._access.take(self._caller)
            self._ask(again=True)
        except ServerLostError as error:
            raise self._unless_known(error) from error

    def _ask(self, again: bool) -> None:
        try:
            self._caller.ask(*self._request, again=again)
        except ServerLostError as error:
            self._move(error)
        except BaseException:
            self._access.give_back(self._caller, self._remote)
            raise

    def _move(self, error: DPSError) -> None:
        """Send the request to the mirror if the shard is lost."""
        self._access.give_back(self._caller, self._remote)
        try:
            self._access.move(error, self._remote)
            self._caller, self._remote = self._access.take(self._caller)
        except ServerLostError as lost:
            raise self._unless_known(lost) from lost
        self._ask(again=True)

    def _unless_known(self, error: ServerLostError) -> ServerLostError:
        """Return the error of a shard that cannot be asked; another one if a write may be done."""
        if not self._asked or self._request[0] == Op.READ or self._access.has_died():
            return error
        return UnknownOutcomeError(error.message, worker=error.worker)

    def result(self) -> tuple[int, int]:
        """Wait for the answer, see `ImmediateResult`."""
        while True:
            try:
                self._asked = True
                ended, writes, error = self._caller.hear(self._request[-1])
                if ended == Ending.RAISED:
                    raised = pickle.loads(error)
                    self._asked = isinstance(raised, UnknownOutcomeError)
                    raise raised
                self._asked = False
                if ended not in (Ending.MOVED, Ending.STOPPED):
                    break
                raise self._access.closed()
            except ServerLostError as lost:
                self._move(lost)
            except BaseException:
                self._access.give_back(self._caller, self._remote)
                raise
        self._access.give_back(self._caller, self._remote)
        return ended, writes


class RemoteAccess:
    """A shard on an Actor in another process.

    timeout: seconds without an answer that count as a loss.
    moves: whether to continue with a mirror of the shard; False for access to the mirror itself.
    """

    def __init__(
        self,
        spec: ServerSpec,
        shard: int,
        card: TensorShardCard,
        remote: Remote,
        timeout: float,
        moves: bool = True,
    ) -> None:
        self._spec, self._shard, self._card = spec, shard, card
        self._remote, self._timeout, self._moves = remote, timeout, moves
        self._mapped = map_parts(spec, shard, card)
        self._seen = 0.0
        #: Idle wires with the times of their last use, the oldest first.
        self._idle: list[tuple[Caller, float]] = []
        self._lock, self._moving = threading.Lock(), threading.Lock()
        self._calls_until = 0.0  # monotonic time until which Actor calls replace connections
        self._looping: threading.Thread | None = None  # the thread of the event loop
        self._leave = weakref.finalize(self, _leave, self._idle)
        self.used = 0.0

    @property
    def remote(self) -> Remote:
        """The shard's Actor."""
        return self._remote

    @property
    def worker(self) -> str:
        """Address of the shard's worker."""
        return self._remote.address

    @property
    def key(self) -> str:
        """Key of the Actor on the cluster."""
        return self._remote.key

    def peek(self, part: int, start: int, keys: Keys, out: NDArray[np.floating]) -> int | None:
        """Read in mapped memory, see `TensorShardState.peek`."""
        mapped, remote = self._mapped, self._remote
        if mapped is None:
            return None
        held, store = mapped[part]
        now = time.monotonic()
        if now - self._seen > _BELIEVED and store.file is not None:
            if store.file.owner_is_gone():  # its worker has died, or the shard was closed
                self.move(self._lost("its worker has died"), remote)
                return self.peek(part, start, keys, out)
            self._seen = now
        ended = held.peek(start, keys, out)
        return None if ended == Ending.STOPPED else ended

    def begin(self, *request: Any) -> PendingResult:
        """Send a request, see `TensorShardState.begin`."""
        return PendingResult(self, *request)

    def call(self, method: str, *args: Any) -> Any:
        """Call a method, see `TensorShardState.call`; calls that change state are not repeated."""
        message = bytes(pickle.dumps((method, args)))
        while True:
            caller, remote = self.take()
            try:
                ended, answer = caller.call(message)
                value = pickle.loads(answer)
                done, value = value if ended == Ending.RAN else (False, value)
                if not done:
                    raise value
                return value
            except ServerLostError as error:
                try:
                    self.move(error, remote)
                except ServerLostError:
                    if method != "apply" or self.has_died():
                        raise
                if method == "apply":
                    raise UnknownOutcomeError(
                        f"{error.message}; whether the function was at work is not known. Others "
                        "go on",
                        worker=remote.address,
                    ) from error
            finally:
                self.give_back(caller, remote)

    def caller(self) -> Caller:
        """Return a wire for one user."""
        return self._connect()

    def move(self, error: DPSError, remote: Remote) -> None:
        """Continue with the mirror if this shard is lost, else raise the error."""
        with self._moving:
            if self._remote is not remote:  # another thread was faster
                return
            known = self._spec.id, self._shard, self._remote, self._timeout
            found = mirrors_of(*known) if self._moves and self.is_gone() else []
            if not found:
                raise error
            for mirror in found:  # the earlier one, or the one that leads already
                try:
                    card = mirror.call("promote", timeout=self._timeout)
                except ServerLostError as failed:
                    raise self.lost(failed.message) from failed
                if card is None:
                    continue
                with self._lock:
                    _leave(self._idle)
                    self._card, self._remote, self._calls_until = card, mirror, 0.0
                    self._mapped = map_parts(self._spec, self._shard, card)
                return
            raise self.lost("its worker has died while a mirror was being made")

    def is_gone(self) -> bool:
        """True if the shard has died or Dask has released it."""
        return self._fate()[1]

    def has_died(self) -> bool:
        """True if the shard is known to be lost."""
        try:
            return self.is_gone()
        except DPSError:
            return False

    def closed(self) -> ServerLostError:
        """Return the error of a shard that has stopped answering."""
        return ServerLostError(f"{self._spec} has been closed", worker=self._remote.address)

    def lost(self, what: str) -> ServerLostError:
        """Return the error of a shard that cannot be reached, with its tensors."""
        if not self._moves:
            return ServerLostError(f"a mirror: {what}", worker=self._remote.address)
        return self._spec.lost(self._shard, what, self._remote.address)

    def _lost(self, what: str) -> DPSError:
        """Return the error for a wire that has ended; the shard's worker knows whether it lives."""
        if threading.current_thread() is self._looping:
            return self.lost(what)
        try:
            return self.lost(self._fate()[0] or what)
        except ClusterError as error:
            return error

    async def _who_has(self) -> Any:
        return await self._remote.node.scheduler.who_has(keys=[self._remote.key])

    def _fate(self) -> tuple[str | None, bool]:
        """Return why the shard is lost, if it is, and whether the scheduler has lost it.

        A worker that does not answer is busy, or has died without the scheduler's knowledge.
        """
        remote, probe = self._remote, None
        ending = time.monotonic() + min(self._timeout, _CONNECTING)
        while True:
            if not remote.submit(self._who_has()).result(self._timeout).get(remote.key):
                known = remote.submit(remote.node.scheduler.ncores()).result(self._timeout)
                return (_CLOSED if remote.address in known else _DIED), True
            probe = probe or remote.start("there")
            try:
                return (None if probe.within(_ASKED) else _CLOSED), False
            except TimeoutError:
                if time.monotonic() > ending:
                    return "its worker does not answer", False
            except ServerLostError as error:
                if "released" in error.message:  # released meanwhile
                    return _CLOSED, True
                if time.monotonic() > ending:
                    return error.message, False
                probe = None
                time.sleep(_ASKED)

    def take(self, before: Caller | None = None) -> tuple[Caller, Remote]:
        """Return a wire and its Actor; with `before`, repeat the last request of that wire."""
        while True:
            with self._lock:
                remote = self._remote
                if self._idle and before is None:
                    return self._idle.pop()[0], remote
            try:
                return self._connect(before), remote
            except ServerLostError as error:
                self.move(self._explained(error), remote)

    def _explained(self, error: ServerLostError) -> DPSError:
        """Return the error of a failed connection, with the state of the shard."""
        try:
            fate, _ = self._fate()
        except DPSError:
            return error
        return error if fate is None else self.lost(fate)

    def give_back(self, caller: Caller, remote: Remote) -> None:
        """Keep a wire for the next request, unless it is broken."""
        now, ended = time.monotonic(), [caller]
        with self._lock:
            if not caller.broken and self._leave.alive and remote is self._remote:
                self._idle.append((caller, now))
                ended = [old for old, since in self._idle if now - since > _KEPT]
                del self._idle[: len(ended)]  # the last wire in is the first out
        for each in ended:
            each.close()

    def _check(self) -> None:
        """Raise if the shard cannot be reached."""
        fate, _ = self._fate()
        if fate is not None:
            raise self.lost(fate)

    def _connect(self, before: Caller | None = None) -> Caller:
        self._check()
        patience = ShardProbe(self._remote, self._timeout, None)

        # A wire's callbacks must not keep this object alive after its callers have dropped it.
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
        if time.monotonic() >= self._calls_until:
            within = min(self._timeout, _CONNECTING)
            opening = self._opened(
                connected(remote, handler, name, look, lost, within, self._spec.silence)
            )
            wire = remote.submit(opening).result(self._timeout)
        if wire is None:
            self._check()  # the shard may have died during the connection
            self._calls_until = time.monotonic() + _CALLED
            name = f"{name} {uuid.uuid4().hex[:8]}"
            wire = called(remote, name, look, lost, self._timeout, self._check)
        return Caller(wire, before)

    async def _opened(self, opening: Coroutine[Any, Any, Wire | None]) -> Wire | None:
        """Return a connection, or None if none can be made from here."""
        self._looping = threading.current_thread()
        try:
            return await opening
        except (OSError, ValueError):  # a client may be unable to reach workers
            return None


def _leave(idle: list[tuple[Caller, float]]) -> None:
    while idle:
        idle.pop()[0].close()


def shard_key(server: str, shard: int) -> str:
    """Return the key of a shard's first Actor."""
    return f"dps-server-{server}-{shard}"


def mirror_key(server: str, *numbers: int) -> str:
    """Return the key of a mirror, from its shard and a number from 1, and of its dataset."""
    return "-".join(["dps-mirror", server, *map(str, numbers)])


def mirrors_of(server: str, shard: int, remote: Remote, timeout: float) -> list[Remote]:
    """Return the mirrors of a shard that the scheduler has, oldest first.

    A mirror that has taken over is the shard itself. The given Actor, through which the scheduler
    is asked, is left out.
    """
    node, begin = remote.node, f"{mirror_key(server, shard)}-"

    async def held() -> Any:
        names = await node.scheduler.publish_list()
        keys = {mirror_key(server, shard, 1)}
        keys |= {name for name in names if isinstance(name, str) and name.startswith(begin)}
        return await node.scheduler.who_has(keys=sorted(keys))

    found = {
        int(key.removeprefix(begin)): Remote(workers[0], key, node)
        for key, workers in remote.submit(held()).result(timeout).items()
        if workers and key != remote.key
    }
    return [found[number] for number in sorted(found)]


def _name() -> str:
    """Return the name of this process for the list of callers."""
    return f"{os.uname().nodename}:{os.getpid()}"


#: Accesses of this process by server, its number of tensors, shard, and client or worker.
_ways: weakref.WeakValueDictionary[tuple[Any, ...], RemoteAccess] = weakref.WeakValueDictionary()
#: Accesses that tasks of workers have used recently.
_kept: set[RemoteAccess] = set()
_lock = threading.Lock()


def access_to(
    spec: ServerSpec, shard: int, card: TensorShardCard, remote: Remote, timeout: float
) -> TensorShardState | RemoteAccess:
    """Return the access to a shard, found by trying."""
    holding = find_shard_state(card)
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
    """Drop an access, unless it has been used recently."""
    with _lock:
        left = access.used + _KEPT - time.monotonic()
        if left <= 0:
            _kept.discard(access)
    if left > 0:
        loop.call_later(left, _let_go, access, loop)
