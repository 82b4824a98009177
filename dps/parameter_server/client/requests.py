"""Requests to a server's tensors: which part holds which rows, and what errors say."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dps._runtime.wire.message import Ending, Op
from dps.errors import (
    DPSError,
    NonFiniteError,
    ServerLostError,
    TableFullError,
    UnknownOutcomeError,
)
from dps.parameter_server.client.rows import Piece, choose, summed, values_for
from dps.parameter_server.shard.layout import ServerSpec, TensorSpec
from dps.parameter_server.shard.mirroring import PartSnapshot
from dps.parameter_server.shard.state import ImmediateResult, TensorShardState, check_new
from dps.parameter_server.whole import CopyLostError, gathered, restore

if TYPE_CHECKING:
    from dps.parameter_server.client.access import PendingResult, RemoteAccess
    from dps.parameter_server.client.local import Place

    Way = TensorShardState | RemoteAccess
    Answer = ImmediateResult | PendingResult

#: Attempts to read a tensor whose copies are lost, besides one for each lost shard.
_ATTEMPTS = 5


@dataclass
class _Asked:
    """A request to one part, and its outcome."""

    piece: Piece
    again: NDArray[np.int64] | None  # the place of each key among those that are asked
    into: NDArray[np.floating] | None  # where the elements that are read go
    request: Any = None  # for a write: its operation, keys, values and rows
    sent: Answer | None = None
    error: Exception | None = None


class Requests:
    """The requests of one handle to a server.

    accesses: to the shards that have been used.
    closed: whether this handle has closed the server.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.accesses: dict[int, Way] = {}
        self.closed = False
        self._lock = threading.Lock()
        self._know()

    def _know(self) -> None:
        """Take over the tensors that the place knows."""
        self.spec = self.place.spec
        self._numbers = {
            (tensor.name, part): (shard, local)
            for shard in range(self.spec.n_shards)
            for local, (tensor, part) in enumerate(self.spec.held(shard))
        }
        self.tensors = {tensor.name: tensor for tensor in self.spec.tensors}

    def extend(self, spec: ServerSpec) -> None:
        """Make the shards hold further tensors, or learn of those that others have created."""
        if self.closed:
            raise ServerLostError(f"{self.spec} has been closed")
        self.place.extend(spec)
        if self.place.spec.tensors == self.spec.tensors:
            return
        # Earlier accesses have the tensors of their time.
        self.leave()
        self._know()

    def create(self, tensors: tuple[TensorSpec, ...], whole: Mapping[str, PartSnapshot]) -> None:
        """Make the shards hold further tensors with initial values; see `creating`.

        Raises ValueError: there is a tensor of that name.
        """
        if not tensors:
            return
        check_new(self.spec, tensors)
        shards, token = range(self.spec.n_shards), tensors[0].creation
        numbers = {
            (tensor.name, part): (shard, (token, number))
            for shard in shards
            for number, (tensor, part) in enumerate(replace(self.spec, tensors=tensors).held(shard))
        }

        def fill(tensor: TensorSpec, part: int, method: str, *args: Any) -> None:
            shard, at = numbers[tensor.name, part]
            self.reach(shard).call(method, at, *args)

        gone = self.reach(0).call("abandoned")
        try:
            for shard in shards:
                found = self.reach(shard).call("prepare", token, tensors, gone)
                gone = gone if shard else found
            for tensor in tensors:
                if tensor.name in whole:
                    restore(tensor, whole[tensor.name], fill)
            while True:
                check_new(self.spec, tensors)
                wanted = replace(self.spec, tensors=(*self.spec.tensors, *tensors))
                self.extend(wanted)
                if self.spec.tensors[: len(wanted.tensors)] == wanted.tensors:
                    return
        except BaseException:
            with contextlib.suppress(DPSError):
                # Once the first shard has committed it, it is complete, and other clients may have
                # it.
                if self.reach(0).call("discard", token):
                    for shard in shards[1:]:
                        self.reach(shard).call("discard", token)
            raise

    def leave(self) -> None:
        """Drop all accesses to shards."""
        with self._lock:
            self.accesses = {}

    def tensor(self, name: str) -> TensorSpec:
        """Return the tensor with a name, which another client may have created."""
        try:
            return self.tensors[name]
        except (KeyError, TypeError):
            pass
        if isinstance(name, str):
            self.extend(self.spec)  # another client may have made it
            if name in self.tensors:
                return self.tensors[name]
        raise KeyError(
            f"there is no tensor {name!r} on {self.spec}; there are {sorted(self.tensors)}"
        )

    def _access(self, tensor: TensorSpec, part: int) -> tuple[Way, int]:
        """Return the access to the shard that has a part, and the part's number there."""
        shard, number = self._numbers[tensor.name, part]
        return self.reach(shard), number

    def reach(self, shard: int) -> Way:
        """Return the access to a shard."""
        access = self.accesses.get(shard)
        if access is None:
            with self._lock:
                if self.closed:
                    raise ServerLostError(f"{self.spec} has been closed")
                access = self.accesses.get(shard)
                if access is None:
                    access = self.accesses[shard] = self.place.connect(shard)
        return access

    def call(self, tensor: TensorSpec, part: int, method: str, *args: Any) -> Any:
        """Call a method of a part's shard."""
        access, number = self._access(tensor, part)
        return access.call(method, number, *args)

    def status(self) -> list[dict[str, Any]]:
        """Return reports of each shard about the known tensors."""
        status = self.place.status()
        if any(name not in self.tensors for shard in status for name in shard["parts"]):
            self.extend(self.spec)
            status = self.place.status()
        return status

    def writes(self, tensor: TensorSpec) -> int:
        """Return the number of writes to all parts that are not lost."""
        found, lost = [], None
        for part in range(len(tensor.parts)):
            try:
                found.append(int(self.call(tensor, part, "writes")))
            except ServerLostError as error:
                if self.closed:
                    raise
                lost = error
        if lost is not None and not found:
            raise lost
        return min(found)

    def pull(self, name: str, keys: Any) -> NDArray[np.floating]:
        """See `ParameterServer.pull`."""
        tensor = self.tensor(name)
        chosen = choose(tensor, keys)
        found = np.empty((chosen.rows, tensor.width), tensor.dtype)
        pending: list[_Asked] = []
        try:
            for piece in chosen.pieces:
                if piece.n == 0:
                    continue
                into = found[piece.at]
                if not isinstance(piece.at, slice):
                    into = np.empty((len(piece.at), tensor.width), tensor.dtype)
                access, number = self._access(tensor, piece.part)
                ended = access.peek(number, piece.start, piece.keys, into)
                if ended is None:
                    sent = access.begin(Op.READ, number, piece.start, piece.keys, None, 1, into)
                    pending.append(_Asked(piece, None, into, None, sent))
                    continue
                self._judge(tensor, piece, ended)
                if not isinstance(piece.at, slice):
                    found[piece.at] = into
        finally:
            self._collect(tensor, pending, found)
        return found.reshape(chosen.shape)

    def write(
        self, op: Op, name: str, values: Any, keys: Any, rows: Any, back: bool
    ) -> NDArray[np.floating] | None:
        """See `ParameterServer.push` and the other methods that write."""
        tensor = self.tensor(name)
        chosen = choose(tensor, keys)
        given = values_for(tensor, chosen, values, spread=op != Op.APPLY)
        if isinstance(rows, bool) or not isinstance(rows, int | float | np.number):
            raise TypeError(f"rows must be a number above 0, got {rows!r}")
        if not 0 < rows < np.inf:
            raise ValueError(f"rows must be a number above 0, got {rows!r}")
        if not np.isfinite(given).all():
            self._judge(tensor, None, Ending.BAD_GRADIENT)
        found = np.empty(chosen.shape, given.dtype) if back else None
        pending = []
        # A write is counted at every part, so that all have the same number.
        for piece in chosen.pieces:
            own, picks, again = given[piece.at], piece.keys, None
            if op == Op.APPLY and picks is not None:
                picks, own, again = summed(picks, own)
            own = np.ascontiguousarray(own)
            into = np.empty_like(own) if back else None
            pending.append(_Asked(piece, again, into, (op, picks, own, float(rows))))
        self._write(tensor, pending, found)
        return found

    def _write(
        self, tensor: TensorSpec, asked: Sequence[_Asked], found: NDArray[np.floating] | None
    ) -> None:
        """Do the remaining writes; raise the first error once all shards have answered."""
        for each in asked:
            try:
                if isinstance(each.error, UnknownOutcomeError) and not isinstance(
                    each.sent, ImmediateResult
                ):
                    assert each.sent is not None
                    each.sent.again()
                else:
                    access, number = self._access(tensor, each.piece.part)
                    op, picks, own, rows = each.request
                    each.sent = access.begin(
                        op, number, each.piece.start, picks, own, rows, each.into
                    )
                each.error = None
            except ServerLostError as error:
                each.error = error
        self._collect(tensor, asked, found)

    def _collect(
        self, tensor: TensorSpec, asked: Sequence[_Asked], found: NDArray[np.floating] | None
    ) -> None:
        """Collect all answers, then raise the first error."""
        rows = None if found is None else found.reshape(-1, tensor.width)
        for each in asked:
            if each.error is not None or each.sent is None:
                continue
            try:
                self._judge(tensor, each.piece, each.sent.result()[0])
            except Exception as error:
                each.error = error
                continue
            if rows is not None and each.into is not None:
                rows[each.piece.at] = each.into if each.again is None else each.into[each.again]
        failed = [
            each
            for each in asked
            if each.error is not None
            and (each.piece.n or self.closed or not isinstance(each.error, ServerLostError))
        ]
        if not failed:
            return
        first = failed[0].error
        assert first is not None
        lost = [each for each in failed if isinstance(each.error, ServerLostError)]
        if len(lost) == len(failed) and asked[0].request is not None and not self.closed:
            done = any(each.error is None and each.piece.n for each in asked)
            if done or any(isinstance(each.error, UnknownOutcomeError) for each in lost):
                raise self._unknown(tensor, lost, found, done) from first
        raise first

    def _unknown(
        self,
        tensor: TensorSpec,
        lost: Sequence[_Asked],
        found: NDArray[np.floating] | None,
        done: bool,
    ) -> UnknownOutcomeError:
        """Return the error of a write that was done in part, or perhaps; it can be repeated."""
        outcomes = []
        for each in lost:
            perhaps = isinstance(each.error, UnknownOutcomeError)
            how = "may have been written" if perhaps else "has not been written"
            message = getattr(each.error, "message", each.error)
            outcomes.append(f"{tensor.where(each.piece.part)} {how} ({message})")
        worker = getattr(lost[0].error, "worker", None)
        if done:
            outcomes.append("the rest has been written")
        made = UnknownOutcomeError(
            f"{'; '.join(outcomes)}. `retry` of this error writes the missing part, once",
            worker=worker,
        )
        ending = time.monotonic() + self.spec.timeout

        def again() -> NDArray[np.floating] | None:
            if time.monotonic() > ending:
                raise UnknownOutcomeError(
                    f"{made.message}. More than {self.spec.timeout:g} s have passed since, and "
                    "the shards may not know the write any more: look at what they have",
                    worker=worker,
                )
            if left := [each for each in lost if each.error is not None]:
                self._write(tensor, left, found)
            return found

        made._again = again
        return made

    def _judge(self, tensor: TensorSpec, piece: Piece | None, ended: int) -> None:
        """Raise unless a request ended well."""
        if ended == Ending.RAN:
            return
        if ended == Ending.BAD_GRADIENT:
            raise NonFiniteError(
                f"what was given for {tensor.name!r} is NaN or infinite; nothing has been changed"
            )
        assert piece is not None
        where = f"{tensor.where(piece.part)} on shard {tensor.parts[piece.part][0]}"
        if ended == Ending.BAD_UPDATE:
            raise NonFiniteError(
                f"elements of {where}, are infinite after this write: assign finite values to "
                "them, and after a push lower learning_rate, too"
            )
        if ended == Ending.FULL_TABLE:
            raise TableFullError(
                f"{where}, has no room for another row: make it with more than "
                f"capacity={tensor.shape[0]}"
            )
        if ended == Ending.STOPPED:
            raise ServerLostError(f"{self.spec} has been closed")
        raise IndexError(f"what was asked for is outside of {where}")

    def whole(
        self, rescue: bool
    ) -> tuple[dict[str, PartSnapshot], dict[str, bytes], dict[int, Exception]]:
        """Return all tensors, the notes, and the lost shards that are left out.

        rescue: whether lost shards are left out; otherwise they raise.
        """
        self.extend(self.spec)
        gone: dict[int, Exception] = {}  # errors by shard

        def give_up(shard: int, error: ServerLostError) -> None:
            if not rescue or self.closed:
                raise error
            gone[shard] = error
            if len(gone) == self.spec.n_shards:
                raise error

        found = {tensor.name: self._gathered(tensor, gone, give_up) for tensor in self.spec.tensors}
        notes = {}
        if 0 not in gone:
            try:
                notes = self.reach(0).call("notes")
            except ServerLostError as error:
                give_up(0, error)
        return found, notes, gone

    def _gathered(
        self,
        tensor: TensorSpec,
        gone: Mapping[int, Exception],
        give_up: Callable[[int, ServerLostError], None],
    ) -> PartSnapshot:
        """Return a whole tensor, without shards that are left out."""
        failed: set[int] = set()

        def call(part: int, method: str, *args: Any) -> Any:
            shard = tensor.parts[part][0]
            if method == "thaw" and shard in failed:  # it would take another `timeout`
                return None
            try:
                return self.call(tensor, part, method, *args)
            except ServerLostError as error:
                failed.add(shard)
                if method != "thaw":
                    give_up(shard, error)
                raise CopyLostError(f"shard {shard} of {self.spec} was lost") from error

        attempts = _ATTEMPTS + self.spec.n_shards
        for _ in range(attempts):
            try:
                return gathered(tensor, self.spec.optimizer, gone, call)
            except CopyLostError as error:  # read again without that shard, or from its mirror
                lost = error
        raise ServerLostError(
            f"{tensor.name!r} of {self.spec} could not be read in {attempts} attempts"
        ) from lost
