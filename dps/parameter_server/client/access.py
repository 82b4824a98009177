"""A caller's way to one shard of named tensors in another process: mapped memory, a wire.

Where the shard's memory can be mapped, it is read there. All else goes over wires, of which a
process has as many as it has requests under way; a wire is a connection of Dask's that has been
taken over, or Actor calls where there is none to be had.

Where a shard is gone that has a mirror, the first who notices has that lead, and all go on there:
what had not been answered is asked again, and done once. A shard is gone when the scheduler has its
Actor no longer; until it knows, callers wait. A shard that the scheduler has given up, and that is
alive nonetheless, answers no write any more: its mirror refuses what it passes on.

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

#: Seconds for which a file is believed to have an owner.
_BELIEVED = 0.1
#: Seconds that connecting, or an answer that nothing is waited for, may take.
_CONNECTING = 5.0
#: Seconds for which wires are Actor calls after a connection could not be made.
_CALLED = 60.0
#: Seconds for which a worker keeps a way that no handle has any more.
_KEPT = 5.0
#: Seconds between looks at what has become of a shard.
_ASKED = 0.05
#: The fate of a shard that the scheduler has lost.
_DIED = "its worker has died"
_CLOSED = "the server has been closed, or its maker has gone"


class PendingResult:
    """A request on a wire.

    A write whose connection ends before the answer, at a shard that lives, raises
    `UnknownOutcomeError`: it may have been done. Where the request has not been sent whole, or the
    shard has refused it, nothing has been done.
    """

    def __init__(self, access: RemoteAccess, *request: Any) -> None:
        self._access, self._request = access, request
        self._asked = False  # whether it was sent whole, and its end is not known
        self._caller, self._remote = access.take()
        self._ask(again=False)

    def again(self) -> None:
        """Ask once more, after an `UnknownOutcomeError`."""
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
        """Ask the mirror, where the shard is gone."""
        self._access.give_back(self._caller, self._remote)
        try:
            self._access.move(error, self._remote)
            self._caller, self._remote = self._access.take(self._caller)
        except ServerLostError as lost:
            raise self._unless_known(lost) from lost
        self._ask(again=True)

    def _unless_known(self, error: ServerLostError) -> ServerLostError:
        """The error of a shard that cannot be asked; another one where a write may be done."""
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
    moves: whether to go on with a mirror of the shard; not to that itself.
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
        #: Wires, and since when none has used them, the longest first.
        self._idle: list[tuple[Caller, float]] = []
        self._lock, self._moving = threading.Lock(), threading.Lock()
        self._calls_until = 0.0  # by the monotonic clock, after a connection could not be made
        self._looping: threading.Thread | None = None  # that of the event loop
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
            if store.file.owner_is_gone():  # its worker has died, or it has been closed
                self.move(self._lost("its worker has died"), remote)
                return self.peek(part, start, keys, out)
            self._seen = now
        ended = held.peek(start, keys, out)
        return None if ended == Ending.STOPPED else ended

    def begin(self, *request: Any) -> PendingResult:
        """Send a request, see `TensorShardState.begin`."""
        return PendingResult(self, *request)

    def call(self, method: str, *args: Any) -> Any:
        """Call it, see `TensorShardState.call`; what changes anything is not called again."""
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
        """A wire of its own."""
        return self._connect()

    def move(self, error: DPSError, remote: Remote) -> None:
        """Go on with the mirror where this shard is gone, else raise the error."""
        with self._moving:
            if self._remote is not remote:  # another thread was faster
                return
            known = self._spec.id, self._shard, self._remote, self._timeout
            found = mirrors_of(*known) if self._moves and self.is_gone() else []
            if not found:
                raise error
            for mirror in found:  # that of before, or the one that leads already
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
        """True if the shard has died, or has been given back by the cluster."""
        return self._fate()[1]

    def has_died(self) -> bool:
        """True if the shard is known to be gone."""
        try:
            return self.is_gone()
        except DPSError:
            return False

    def closed(self) -> ServerLostError:
        """The error of a shard that has stopped answering."""
        return ServerLostError(f"{self._spec} has been closed", worker=self._remote.address)

    def lost(self, what: str) -> ServerLostError:
        """The error of a shard that cannot be reached, which says what it holds."""
        if not self._moves:
            return ServerLostError(f"a mirror: {what}", worker=self._remote.address)
        return self._spec.lost(self._shard, what, self._remote.address)

    def _lost(self, what: str) -> DPSError:
        """The same of a wire that has ended: the shard's worker knows whether it is there."""
        if threading.current_thread() is self._looping:
            return self.lost(what)
        try:
            return self.lost(self._fate()[0] or what)
        except ClusterError as error:
            return error

    async def _who_has(self) -> Any:
        return await self._remote.node.scheduler.who_has(keys=[self._remote.key])

    def _fate(self) -> tuple[str | None, bool]:
        """The fate of the shard, if any, and whether the scheduler has lost it.

        A worker that does not answer has died, which the scheduler has not heard yet, or is busy.
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
                if "released" in error.message:  # meanwhile
                    return _CLOSED, True
                if time.monotonic() > ending:
                    return error.message, False
                probe = None
                time.sleep(_ASKED)

    def take(self, before: Caller | None = None) -> tuple[Caller, Remote]:
        """A wire, and whose it is; by which another one's last request is to be asked `again`."""
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
        """The error of a connection that could not be made, with what has become of the shard."""
        try:
            fate, _ = self._fate()
        except DPSError:
            return error
        return error if fate is None else self.lost(fate)

    def give_back(self, caller: Caller, remote: Remote) -> None:
        """Keep a wire for the next request, unless it is of no more use."""
        now, ended = time.monotonic(), [caller]
        with self._lock:
            if not caller.broken and self._leave.alive and remote is self._remote:
                self._idle.append((caller, now))
                ended = [old for old, since in self._idle if now - since > _KEPT]
                del self._idle[: len(ended)]  # the last to come is the first to go
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

        # A wire's callback must not keep this object alive after its callers have dropped it.
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
            self._check()  # which may have died as it was connected to
            self._calls_until = time.monotonic() + _CALLED
            name = f"{name} {uuid.uuid4().hex[:8]}"
            wire = called(remote, name, look, lost, self._timeout, self._check)
        return Caller(wire, before)

    async def _opened(self, opening: Coroutine[Any, Any, Wire | None]) -> Wire | None:
        """A connection; None where there is none to be had from here."""
        self._looping = threading.current_thread()
        try:
            return await opening
        except (OSError, ValueError):  # a client need not have a way to workers
            return None


def _leave(idle: list[tuple[Caller, float]]) -> None:
    while idle:
        idle.pop()[0].close()


def shard_key(server: str, shard: int) -> str:
    """The key of a shard, as it is first made."""
    return f"dps-server-{server}-{shard}"


def mirror_key(server: str, *numbers: int) -> str:
    """Return the key of a mirror, from its shard and a number from 1; its dataset has it, too."""
    return "-".join(["dps-mirror", server, *map(str, numbers)])


def mirrors_of(server: str, shard: int, remote: Remote, timeout: float) -> list[Remote]:
    """The mirrors of a shard that the scheduler has, in the order in which they were made.

    One of them is the shard itself where it has taken over. Without that which is given, by which
    the scheduler is asked.
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
    """Name of this process, for the list of callers."""
    return f"{os.uname().nodename}:{os.getpid()}"


#: The ways of this process: by server, how many tensors it had, shard, and client or worker.
_ways: weakref.WeakValueDictionary[tuple[Any, ...], RemoteAccess] = weakref.WeakValueDictionary()
#: Those that tasks of workers have used lately.
_kept: set[RemoteAccess] = set()
_lock = threading.Lock()


def access_to(
    spec: ServerSpec, shard: int, card: TensorShardCard, remote: Remote, timeout: float
) -> TensorShardState | RemoteAccess:
    """The way to a shard, found out by trying."""
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
    """Keep a way no longer, unless it has been used lately."""
    with _lock:
        left = access.used + _KEPT - time.monotonic()
        if left <= 0:
            _kept.discard(access)
    if left > 0:
        loop.call_later(left, _let_go, access, loop)
