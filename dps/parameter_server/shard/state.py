"""The contents of one shard of a server, and the methods for callers.

Reads and writes of elements are native (``_runtime/tensors/part.pyx``). This module does the rest:
users' functions on a part, saving and loading, counts, and the mirror's side of mirroring.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dps._runtime.tensors.part import TensorPart
from dps._runtime.wire.message import Ending
from dps.errors import FencedError, NonFiniteError, ServerLostError, TableFullError
from dps.parameter_server.shard.creating import Creation, Creations
from dps.parameter_server.shard.frozen import Frozen
from dps.parameter_server.shard.layout import ServerSpec, TensorSpec
from dps.parameter_server.shard.mirroring import CallerSlots, Mirror, Mirroring, PartSnapshot
from dps.server.memory.arrays import MemoryCard
from dps.server.memory.files import sweep
from dps.server.memory.host import host_id
from dps.server.store.store import Store, StoreWord

Keys = NDArray[np.int64] | None
Values = NDArray[np.floating] | None

#: Methods for callers; those whose calls also go to a mirror.
CALLABLE = frozenset(
    {
        "abandoned", "apply", "card", "extend", "follow", "freeze", "frozen_rows", "note", "notes",
        "status", "thaw", "writes",
    }
)  # fmt: skip
SENT = frozenset({"count_from", "discard", "fill", "prepare", "put_note", "put_rows"})

#: Methods that write initial values to a part in creation.
FILLS = frozenset({"count_from", "fill", "put_rows"})

#: A part: its number, or in creation the creation's token and its number there.
At = int | tuple[str, int]

#: Stands for all parts of a mirror until it has the shard's contents.
_ALL = -1


@dataclass(frozen=True)
class TensorShardCard:
    """By trying a card a caller finds out whether it can map a shard's parts."""

    token: bytes  # identifies the shard in its own process
    host: str
    memories: tuple[MemoryCard, ...]  # of the parts, in order
    handler: str | None = None  # handler to connect to; None if connections are not served


class ImmediateResult(NamedTuple):
    """An immediate answer to a request."""

    ended: tuple[int, int]

    def result(self) -> tuple[int, int]:
        """Return the ending and the number of writes to the part; read values are in place."""
        return self.ended


class TensorShardState:
    """The contents of a shard; code in its process calls it directly.

    A shard sends each write to its mirror before it answers, see `TensorPart`, and all other
    changes through `follow`. A caller that knows that the shard is lost calls `promote`; the mirror
    leads from then on, and refuses messages of the shard. While a part is being sent it counts as
    torn, and a mirror with a torn part does not lead.

    shared: whether other processes on the host should be able to map it.
    leads: False for a mirror.
    handler: for connections of callers.
    callers: returns the connected callers.
    """

    def __init__(self, spec: ServerSpec, shard: int, *, shared: bool, leads: bool = True) -> None:
        sweep()
        self.handler: str | None = None
        self.callers: Callable[[], list[Any]] = list
        self.leads = leads
        self._torn = set() if leads else {_ALL}  # torn parts of a mirror
        # Until a caller knows that its write has failed, and as long again while it may repeat it.
        self.entries = CallerSlots(3 * spec.timeout)
        self.spec, self.shard = replace(spec, tensors=()), shard
        self._shared = shared
        self._began = time.monotonic()
        self.token = os.urandom(16)
        self._held: list[tuple[TensorSpec, int, Store]] = []
        self.parts: list[TensorPart] = []
        self.creations = Creations()
        self._frozen = Frozen(spec.timeout)
        self._notes: dict[str, bytes] = {}
        self._closed = False
        self._lock = threading.Lock()  # for the lists, which grow
        self._extending = threading.Lock()  # held while parts are added, here and in the mirror
        self._following = threading.Lock()  # held while a mirror repeats a call of its shard
        self.mirroring = Mirroring(self)
        self.extend(spec)
        _own[self.token] = self

    def extend(self, spec: ServerSpec) -> ServerSpec:
        """Hold further tensors of a server, if they follow the present ones.

        Their parts have been prepared, see `creating`.

        Returns the tensors afterwards: `spec` and perhaps more, or others if another caller was
            first.
        Raises ServerLostError: the server has been closed, or the creation was abandoned.
        """
        with self._extending:
            now = self.spec.tensors
            if spec.tensors[: len(now)] != now:
                return self.spec
            further = spec.held(self.shard)[len(self._held) :]
            prepared = self.creations.taken(spec.tensors[len(now) :])
            stores: list[Store] = []
            try:
                for tensor, number in further:
                    store = prepared.get(tensor.name)
                    if store is None and tensor.creation and self.leads:
                        raise ServerLostError(
                            f"{tensor.where(number)} on shard {self.shard} of {self.spec} was not "
                            "created to the end, and has been given up: create it again"
                        )
                    stores.append(self._made(tensor, number) if store is None else store)
                with self._lock:
                    self.check_open()
                    self.parts += [
                        TensorPart(store, spec.rate, spec.timeout, self.leads) for store in stores
                    ]
                    self._held += [
                        (*each, store) for each, store in zip(further, stores, strict=True)
                    ]
                    self.spec = spec
            except BaseException:
                for store in stores:
                    store.close()
                raise
            self.mirroring.extend()
            return spec

    def abandoned(self) -> tuple[str, ...]:
        """Return creations without use for as long as an answer may take."""
        return self.creations.idle(self.spec.timeout)

    def prepare(
        self, token: str, tensors: tuple[TensorSpec, ...], abandoned: tuple[str, ...]
    ) -> tuple[str, ...]:
        """Begin a creation, and abandon unused ones; return those that were abandoned here.

        Raises ValueError: there is a tensor of one of the names.
        """
        self.check_open()
        check_new(self.spec, tensors)
        gone = self.creations.discard(abandoned)
        if self.creations.get(token) is None:  # else the call is repeated
            held = replace(self.spec, tensors=tensors).held(self.shard)
            creation = Creation(tensors, held)
            try:
                for tensor, number in held:
                    creation.stores.append(self._made(tensor, number))
            except BaseException:
                creation.close()
                raise
            self.creations.add(token, creation)
        return gone

    def discard(self, token: str) -> bool:
        """Abandon a creation; return whether it was not committed here."""
        return bool(self.creations.discard([token]))

    def _at(self, at: At) -> tuple[TensorSpec, int, Store]:
        """Return the tensor of a part, the part's number there, and its store."""
        if not isinstance(at, tuple):
            return self._held[at]
        token, number = at
        if (creation := self.creations.get(token)) is None:
            raise ServerLostError(f"a creation on {self.spec} has been given up: create it again")
        return (*creation.held[number], creation.stores[number])

    @property
    def stores(self) -> list[Store]:
        """The memory of the parts, in order."""
        return [store for _, _, store in self._held]

    def check_open(self) -> None:
        """Raise if it has been closed."""
        if self._closed:
            raise ServerLostError(f"{self.spec} has been closed")

    def mirror(self, mirror: Mirror, *, fresh: bool) -> None:
        """Forward all writes from now on, see `Mirroring.begin`."""
        with self._extending:
            self.mirroring.begin(mirror, fresh)

    def resign(self) -> None:
        """Stop answering: the mirror answers."""
        self._closed = True
        for store in self.stores:
            store.words.store(StoreWord.CLOSED, 1)

    def follow(self, method: str, *args: Any) -> Any:
        """Repeat a call of the shard that this mirrors."""
        with self._following:
            if self.leads:
                raise FencedError("the mirror of a shard leads, and does not follow any more")
            return getattr(self, method)(*args)

    def tear(self, at: int) -> None:
        """Begin to receive a whole part."""
        self._torn.add(at)

    def mended(self, at: int, writes: int, noted: bytes) -> None:
        """End that, with the word of the part's writes, which is even, and callers' last writes."""
        self._held[at][2].words.store(StoreWord.WRITES, writes)
        self.parts[at].noted = noted
        self._torn.discard(at)

    def whole(self, leader: str = "") -> None:
        """Have all contents of the shard with that key from now on."""
        self.mirroring.leader = leader
        self._torn.discard(_ALL)

    def promote(self) -> TensorShardCard | None:
        """Lead from now on: the shard that this mirrors is lost.

        Returns None if it has not all of the shard's contents.

        Raises ServerLostError: it has been closed.
        """
        with self._following, self._lock:
            self.check_open()
            if not self.leads:
                if self._torn:
                    return None
                self.leads = True
                for part in self.parts:
                    with part:
                        part.leads = True
                    self.entries.skip(part.n_noted)
                self.mirroring.on_loss()
        return self.card()

    def _made(self, tensor: TensorSpec, number: int) -> Store:
        spec = self.spec
        store_spec = tensor.store(spec.id, number, spec.optimizer)
        store = Store.make(store_spec, spec.id, shared=self._shared)
        store.update = spec.update(store_spec.size)
        if tensor.table is None:
            spec.optimizer.initialize(store.state)
        return store

    def card(self) -> TensorShardCard:
        """The card by which callers find it."""
        with self._lock:
            cards = tuple(store.card for _, _, store in self._held)
        return TensorShardCard(self.token, host_id(), cards, self.handler)

    def peek(self, part: int, start: int, keys: Keys, out: NDArray[np.floating]) -> int | None:
        """Read in memory, see `TensorPart.peek`; None if the shard must be asked."""
        return self.parts[part].peek(start, keys, out)

    def begin(
        self, op: int, part: int, start: int, keys: Keys, values: Values, weight: float, out: Values
    ) -> ImmediateResult:
        """Begin an operation, see `TensorPart.do`; parts are in the order of their tensors."""
        return ImmediateResult(self.parts[part].do(op, start, keys, values, weight, out))

    def call(self, method: str, *args: Any) -> Any:
        """Call one of `CALLABLE` or `SENT`."""
        if method not in CALLABLE | SENT:
            raise ValueError(f"callers may not call {method!r}")
        self.check_open()
        if method not in SENT:
            return getattr(self, method)(*args)
        if method in FILLS and not isinstance(args[0], tuple):
            raise ValueError(f"{method!r} is for tensors that are being created")
        with self.mirroring.sending:
            result = getattr(self, method)(*args)
            self.mirroring.send(method, *args)
        return result

    def status(self) -> dict[str, Any]:
        """Return counts of each part, its age in seconds, and its callers."""
        parts = self.traffic()
        with self._lock:
            held = self._held[: len(parts)]
        for tensor, number, store in held:
            parts[tensor.name] |= {
                "part": number,
                "rows": int((store.ids[0] > 0).sum()) if store.table else None,
            }
        return {
            "parts": parts,
            "seconds": time.monotonic() - self._began,
            "callers": self.callers(),
            "mirror": self.mirroring.worker,
        }

    def traffic(self) -> dict[str, dict[str, Any]]:
        """Quick counts of each part."""
        with self._lock:
            held = list(self._held)
        return {
            tensor.name: {
                "writes": store.words.load(StoreWord.WRITES) // 2,
                "pushes": store.words.load(StoreWord.VERSION),
                "reads": store.words.load(StoreWord.READS),
                "bytes": store.nbytes,
            }
            for tensor, _, store in held
        }

    def apply(self, at: int, function: Callable[..., Any]) -> Any:
        """Call a function on a copy of a part, and store the result; see `ParameterServer`."""
        tensor, number, store = self._held[at]
        with self.parts[at] as part:
            there: Any = slice(None)
            if store.table is not None:
                there = np.flatnonzero(store.ids[0] > 0)
            rows = store.params.reshape(-1, tensor.width)
            values = np.array(rows[there])
            shown = values if store.table is not None else values.reshape(_shape(tensor, number))
            given = (store.ids[0, there] - 1, shown) if store.table is not None else (shown,)
            result = function(*given)
            if not np.isfinite(values).all():
                raise NonFiniteError(
                    f"the function has made {tensor.where(number)} NaN or infinite"
                )
            if not np.array_equal(values, rows[there]):
                ids = None if store.table is None else store.ids[0, there] - 1
                start = -1 if store.table is not None else 0
                if part.put(start, ids, values.ravel())[0] != Ending.RAN:
                    raise ServerLostError(f"{self.spec} has been closed")
        return result

    def freeze(self, at: int, token: str) -> tuple[int, Any, int]:
        """Copy a part, see `Frozen`."""
        with self.parts[at]:
            part = self.taken(at)
        return self._frozen.add(at, token, part)

    def frozen_rows(self, at: int, token: str, start: int, stop: int) -> NDArray[np.floating]:
        """Return rows of a copy."""
        return self._frozen.rows(at, token, start, stop)

    def thaw(self, at: int, token: str) -> None:
        """Drop a copy."""
        self._frozen.discard(at, token)

    def taken(self, at: At) -> PartSnapshot:
        """Return a part that is held, or one in creation, as it is."""
        tensor, _, store = self._at(at)
        there: Any = slice(None)
        ids = None
        if store.table is not None:
            there = np.flatnonzero(store.ids[0] > 0)
            ids = store.ids[0, there] - 1
        rows = [row.reshape(-1, tensor.width)[there] for row in (store.params, *store.state)]
        return PartSnapshot(np.stack(rows), ids, store.version)

    def writes(self, at: int) -> int:
        """Number of writes to a part."""
        return self._held[at][2].words.load(StoreWord.WRITES) // 2

    def fill(self, at: At, row: int, start: int, values: NDArray[np.floating]) -> None:
        """Set initial elements, of parameters (row 0) or state, before there are callers."""
        _, _, store = self._at(at)
        held = store.state[row - 1] if row else store.params
        held[start : start + len(values)] = values

    def put_rows(self, at: At, ids: NDArray[np.int64], values: NDArray[np.floating]) -> None:
        """Set initial rows of a table, (1 + state_rows, n, width), before there are callers."""
        tensor, number, store = self._at(at)
        with_ages = np.stack([ids, np.zeros_like(ids)])
        try:
            store.put_rows(with_ages, values.reshape(len(values), -1))
        except TableFullError as error:
            raise TableFullError(f"{tensor.where(number)}: {error}") from None

    def count_from(self, at: At, version: int) -> None:
        """Set the number of pushes so far."""
        self._at(at)[2].words.store(StoreWord.VERSION, version)

    def put_note(self, name: str, note: bytes) -> None:
        """Store bytes by a name."""
        self._notes[name] = bytes(note)

    def note(self, name: str) -> bytes | None:
        """The note with a name, or None."""
        return self._notes.get(name)

    def notes(self) -> dict[str, bytes]:
        """Return all notes."""
        return dict(self._notes)

    def close(self) -> None:
        """Refuse new callers, and free all memory."""
        with self._lock:
            self._closed = True
        self.mirroring.end()
        self.creations.discard([token for token, _ in self.creations])
        self._frozen.close()
        for store in self.stores:
            store.words.store(StoreWord.CLOSED, 1)
            store.close()


def check_new(spec: ServerSpec, tensors: Sequence[TensorSpec]) -> None:
    """Raise unless a server has no tensor of these names."""
    there = {tensor.name for tensor in spec.tensors} & {tensor.name for tensor in tensors}
    if there:
        raise ValueError(f"there is a tensor {min(there)!r} on {spec} already")


def _shape(tensor: Any, number: int) -> tuple[int, ...]:
    _, first, last = tensor.parts[number]
    return (last - first, *tensor.shape[1:]) if tensor.shape else ()


_own: weakref.WeakValueDictionary[bytes, TensorShardState] = weakref.WeakValueDictionary()


def find_shard_state(card: TensorShardCard) -> TensorShardState | None:
    """Return the shard itself, if it is in this process."""
    return _own.get(card.token)


def map_parts(
    spec: ServerSpec, shard: int, card: TensorShardCard
) -> list[tuple[TensorPart, Store]] | None:
    """Map the parts of a shard for reading; None if that fails."""
    if card.host != host_id():
        return None
    parts = []
    held = zip(spec.held(shard), card.memories, strict=False)  # the shard may have later ones, too
    for (tensor, number), memory in held:
        store = Store.find(tensor.store(spec.id, number, spec.optimizer), memory)
        if store is None:
            return None
        parts.append((TensorPart(store), store))
    return parts
