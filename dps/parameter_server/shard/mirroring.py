"""Forwarding of a shard's writes to its mirror, and handling of a lost mirror.

Writes of elements are forwarded natively, while the part is held (``tensors/mirror.pyx``). This
module does the rest: the first copy, parts that are created later, and calls that change something.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dps._runtime.tensors.mirror import MirrorLink
from dps._runtime.tensors.part import TensorPart
from dps.errors import DPSError, FencedError, ServerLostError, UnknownOutcomeError
from dps.parameter_server.shard.creating import Creations
from dps.parameter_server.shard.layout import ServerSpec
from dps.server.store.store import Store, StoreWord

#: Elements that are sent at a time.
_PIECE = 1 << 20
#: Seconds between attempts to reach a mirror; and between pieces, for writes that wait.
_PAUSE, _TURN = 0.05, 0.001


@dataclass(frozen=True)
class PartSnapshot:
    """A part between two writes."""

    values: NDArray[np.floating]  # (1 + state_rows, n, width) rows and their optimizer state
    ids: NDArray[np.int64] | None  # (n,) ids of a table's rows
    version: int  # number of pushes


def pieces_of(taken: PartSnapshot) -> Iterator[tuple[Any, ...]]:
    """Return the calls that copy a part, without the part's number."""
    if taken.ids is not None:
        each = max(1, _PIECE // max(taken.values[:, :1].size, 1))
        for start in range(0, len(taken.ids), each):
            rows = slice(start, start + each)
            yield "put_rows", taken.ids[rows], taken.values[:, rows]
    else:
        for row, values in enumerate(taken.values):
            flat = values.reshape(-1)
            for start in range(0, len(flat), _PIECE):
                yield "fill", row, start, flat[start : start + _PIECE]
    if taken.version:
        yield "count_from", taken.version


class Mirror(Protocol):
    """A shard's access to its mirror."""

    @property
    def worker(self) -> str:
        """Address of the worker."""

    @property
    def key(self) -> str:
        """Key of the Actor on the cluster."""

    def caller(self) -> Any:
        """Return a wire for one part."""

    def call(self, method: str, *args: Any) -> Any:
        """Call one of the mirror's `CALLABLE`."""

    def is_gone(self) -> bool:
        """True if it has died or been closed, so that no caller will use it."""


class CallerSlots:
    """Notes of callers' last writes: a number for each connected caller.

    spare: seconds for which the number of a departed caller is not reused: its connection may have
        broken, and the shard may die before the caller knows the outcome of its write.
    """

    def __init__(self, spare: float) -> None:
        self._free: deque[tuple[float, int]] = deque()
        self._n, self._spare = 0, spare
        self._lock = threading.Lock()

    def take(self) -> int:
        """Return a free number."""
        with self._lock:
            if self._free and self._free[0][0] + self._spare < time.monotonic():
                return self._free.popleft()[1]
            self._n += 1
            return self._n - 1

    def give_back(self, entry: int) -> None:
        """Release the number of a departed caller."""
        with self._lock:
            self._free.append((time.monotonic(), entry))

    def skip(self, n: int) -> None:
        """Leave the numbers below n to callers of another shard."""
        with self._lock:
            self._n = max(self._n, n)


class Mirrored(Protocol):
    """The contents of a shard that its mirror follows."""

    spec: ServerSpec
    creations: Creations
    mirroring: Mirroring

    @property
    def stores(self) -> Sequence[Store]:
        """Stores of its parts."""

    @property
    def parts(self) -> Sequence[TensorPart]:
        """Parts of tensors."""

    def notes(self) -> dict[str, Any]:
        """Notes by name."""

    def taken(self, at: Any) -> PartSnapshot:
        """Return a part as it is."""

    def check_open(self) -> None:
        """Raise if it has been closed."""

    def resign(self) -> None:
        """Stop answering because its mirror leads."""


class Mirroring:
    """A shard's side of its mirror.

    on_loss: called when the mirror is lost, or when the shard begins to lead without one.
    key, leader: the Actor's key, and for a mirror the key of its shard.
    sending: held during calls, other than writes, that change both, so that their order is the
        same.
    """

    def __init__(self, holding: Mirrored) -> None:
        self._known = weakref.ref(holding)
        self.on_loss: Callable[[], None] = lambda: None
        self.sending = threading.Lock()
        self.key = self.leader = ""
        self._mirror: Mirror | None = None
        self._whole = False  # it could take over
        self._n = 0  # number of its parts

    @property
    def _holding(self) -> Mirrored:
        holding = self._known()
        assert holding is not None  # the caller has it
        return holding

    @property
    def is_on(self) -> bool:
        """True if writes are forwarded."""
        return self._mirror is not None

    @property
    def worker(self) -> str | None:
        """The worker of the mirror, if it could take over."""
        mirror = self._mirror
        return mirror.worker if mirror is not None and self._whole else None

    def begin(self, mirror: Mirror, fresh: bool) -> None:
        """Forward all writes from now on.

        fresh: whether nothing has been written yet, so that both have the same contents.
        """
        holding = self._holding
        mirror.call("follow", "extend", holding.spec)
        self._mirror, self._n = mirror, 0
        try:
            with self.sending:
                for name, note in holding.notes().items():
                    mirror.call("follow", "put_note", name, note)
                for token, creation in holding.creations:
                    mirror.call("follow", "prepare", token, creation.tensors, ())
                    for at in ((token, number) for number in range(len(creation.held))):
                        for method, *args in pieces_of(holding.taken(at)):
                            mirror.call("follow", method, at, *args)
            self.extend(fresh)
            mirror.call("follow", "whole", self.key)
            holding.check_open()
            self._whole = True
        except BaseException:
            self._go_without(mirror)
            raise

    def extend(self, fresh: bool = True) -> None:
        """Make the mirror hold parts that it lacks."""
        parts = self._holding.parts
        if self._n < len(parts):
            self.send("extend", self._holding.spec)
        while (mirror := self._mirror) is not None and self._n < len(parts):
            part, at = parts[self._n], self._n
            if fresh:
                self._reach(part, at, mirror)
            else:
                self._copy(at, mirror, part)
            self._n += 1

    def _reach(self, part: TensorPart, at: int, mirror: Mirror) -> None:
        """Forward writes to a part that is new in both, or continue without the mirror."""
        try:
            with part:
                part.reach(self._link(at, mirror))
        except (DPSError, OSError):
            if not mirror.is_gone():
                raise
            self._go_without(mirror)

    def send(self, method: str, *args: Any) -> None:
        """Call the same method at the mirror."""
        while (mirror := self._mirror) is not None:
            try:
                mirror.call("follow", method, *args)
                return
            except FencedError as error:
                raise self._overtaken() from error
            except (DPSError, OSError):
                if not mirror.is_gone():
                    raise
                self._go_without(mirror)

    def mend(self, at: int, written: bool) -> None:
        """Copy a part to the mirror again, or continue without it; the part is held.

        Raises ServerLostError: the mirror leads. If it lives but cannot be reached, the error is an
            `UnknownOutcomeError` for a write that has been done here.
        """
        holding = self._holding
        ending = time.monotonic() + holding.spec.timeout
        while (mirror := self._mirror) is not None:
            try:
                self._copy(at, mirror, nullcontext())
                return
            except FencedError as error:
                raise self._overtaken() from error
            except (DPSError, OSError) as error:
                if mirror.is_gone():
                    self._go_without(mirror)
                elif time.monotonic() > ending:
                    kind = UnknownOutcomeError if written else ServerLostError
                    outcome = "and may lack the write" if written else "so nothing was written"
                    raise kind(f"its mirror cannot be reached ({error}), {outcome}") from error
                else:
                    time.sleep(_PAUSE)
        holding.parts[at].reach(None)

    def end(self) -> None:
        """Drop the mirror."""
        self._mirror, self._whole = None, False

    def _link(self, at: int, mirror: Mirror, torn: bool = False) -> MirrorLink:
        return MirrorLink(mirror.caller(), at, partial(_mend, weakref.ref(self._holding), at), torn)

    def _copy(self, at: int, mirror: Mirror, hold: AbstractContextManager[Any]) -> None:
        """Forward writes to a part, and send its elements to the mirror.

        `hold` holds the part for one piece at a time; other writes happen between pieces. A write
        that cannot be forwarded repairs the part: then there is another link, and nothing is left
        to do.
        """
        holding = self._holding
        store, part = holding.stores[at], holding.parts[at]
        with hold:
            mirror.call("follow", "tear", at)
            link = self._link(at, mirror, torn=True)
            part.reach(link)
            mirror.call("follow", "count_from", at, store.version)
            pieces = list(_pieces(store))
        for start, stop, keys, rows in pieces:
            if not isinstance(hold, nullcontext):
                time.sleep(_TURN)  # a mutex is not fair: writes would wait for many pieces
            with hold:
                if not part.reaches(link):
                    return
                # Parameters and state together, since a write in between changes both.
                for row, of_row in enumerate((store.params, *store.state)):
                    if keys is None:
                        values = of_row[start:stop]
                    else:
                        values = of_row.reshape(-1, store.spec.key_width)[rows].reshape(-1)
                    link.fill(row, start, keys, values)
        with hold:
            if part.reaches(link):
                writes = store.words.load(StoreWord.WRITES)
                mirror.call("follow", "mended", at, writes, part.noted)
                link.torn = False

    def look(self, is_gone: Callable[[Mirror], bool]) -> None:
        """Drop the mirror if it is lost, even without writes."""
        mirror = self._mirror
        if mirror is not None and is_gone(mirror):
            self._go_without(mirror)

    def _go_without(self, mirror: Mirror) -> None:
        if self._mirror is mirror:
            self.end()
            self.on_loss()

    def _overtaken(self) -> ServerLostError:
        self._holding.resign()
        return ServerLostError("its mirror has taken over")


def _pieces(
    store: Store,
) -> Iterator[tuple[int, int, NDArray[np.int64] | None, NDArray[np.int64] | None]]:
    """Return first element and end of each piece; for a table its keys and rows.

    The writes that add rows to a table later also forward them.
    """
    each = max(1, _PIECE // (1 + store.spec.state_rows))
    if store.table is None:
        for start in range(0, store.spec.size, each):
            yield start, min(start + each, store.spec.size), None, None
        return
    there = np.flatnonzero(store.ids[0] > 0)
    each = max(1, each // max(store.spec.key_width, 1))
    for start in range(0, len(there), each):
        rows = there[start : start + each]
        yield -1, -1, np.ascontiguousarray(store.ids[0, rows] - 1), rows


def _mend(known: Callable[[], Mirrored | None], at: int, written: bool) -> None:
    holding = known()
    if holding is not None:
        holding.mirroring.mend(at, written)
