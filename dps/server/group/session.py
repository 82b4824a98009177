"""Handles on shards and on the group that works there, which replicas receive.

They can be pickled. They know where shards are and which elements they hold; ``dps/cluster``
creates and releases shards.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dps.models.layout import TableSpec
from dps.server.group.reading import ShardMemory
from dps.server.group.window import PROGRESS
from dps.server.placement import Placement
from dps.server.shard import ShardStatus, WindowCard
from dps.server.store.export import ExportRequest, ExportResult
from dps.server.store.snapshots import Snapshot

#: Called while waiting for an answer; raises to give up.
Check = Callable[[], None]


class Answer(Protocol):
    """A pending answer to a call."""

    def result(self, timeout: float, check: Check | None = None) -> Any:
        """Wait for the answer at most `timeout` seconds; `check` is called meanwhile."""


class Endpoint(ABC):
    """The short methods of a shard, which never wait for other ranks."""

    @abstractmethod
    def start(self, method: str, *args: Any) -> Answer:
        """Start a call; several calls may be pending."""

    def call(self, method: str, *args: Any, timeout: float, check: Check | None = None) -> Any:
        """Call a method; `check` is called meanwhile, and raises to give up."""
        return self.start(method, *args).result(timeout, check)


@dataclass(frozen=True)
class Lazy:
    """A call that is made when its answer is needed."""

    made: Callable[[float], Any]

    def result(self, timeout: float, check: Check | None = None) -> Any:
        """Make the call."""
        return self.made(timeout)


@dataclass(frozen=True)
class Local(Endpoint):
    """A shard in this process."""

    shard: Any

    def start(self, method: str, *args: Any) -> Lazy:
        """Start a call; it never waits."""
        return Lazy(lambda _: getattr(self.shard, method)(*args))


def call_each(
    ends: Iterable[Endpoint], method: str, *args: Any, timeout: float, check: Check | None = None
) -> list[Any]:
    """Call a method of several shards at once; return their answers in order."""
    answers = [end.start(method, *args) for end in ends]
    return [answer.result(timeout, check) for answer in answers]


@dataclass(frozen=True)
class Stores:
    """The stores of all shards."""

    shards: tuple[Endpoint, ...]
    placement: Placement
    timeout: float  # seconds in which a shard must answer
    # The table of the first elements, if it has one.
    table: TableSpec | None = None
    silence: float = 2.0  # seconds without any answer after which a shard's host is lost

    def snapshot(self, epochs: int, check: Check | None = None, steps: int = 0) -> Snapshot:
        """Fetch parameters and optimizer state after `epochs` closed epochs.

        check: called while waiting; raises to give up.
        steps: steps of the next epoch, for a snapshot within it.
        Returns the snapshot, with the rows of a table in the order of their ids.
        """
        shards = range(len(self.shards))
        if self.table is not None:
            parts = [list(self._parts(shard, epochs, check, steps)) for shard in shards]
            return joined(parts, self.placement, self.table)
        whole = None
        for shard in shards:
            first = 0
            for part in self._parts(shard, epochs, check, steps):
                if whole is None:
                    shape = len(part.values), self.placement.cuts[-1]
                    whole = part._replace(values=np.empty(shape, part.values.dtype), rest=0)
                self.placement.put(shard, part.values, whole.values, first)
                first = part.rest
        assert whole is not None
        return whole

    def rest(self, check: Check | None = None) -> None:
        """Free all memory except snapshots and mapped memory, once no rank works any more."""
        call_each(self.shards, "rest", timeout=self.timeout, check=check)

    def _parts(
        self, shard: int, epochs: int, check: Check | None, steps: int
    ) -> Iterator[Snapshot]:
        rest = 0
        while True:
            part: Snapshot = self.shards[shard].call(
                "snapshot", epochs, rest, steps, timeout=self.timeout, check=check
            )
            yield part
            rest = part.rest
            if not rest:
                return

    def write(
        self, shard: int, asked: Sequence[ExportRequest], copied: bool, check: Check | None
    ) -> None:
        """Make a shard start to export snapshots of the current group, see `Exporter`.

        Raises LookupError: a snapshot to be copied does not exist, or not any more.
        """
        self.shards[shard].call("write", asked, copied, timeout=self.timeout, check=check)

    def written(self, shard: int, check: Check | None) -> ExportResult | None:
        """Return the result of an export; None while it runs."""
        return self.shards[shard].call("written", timeout=self.timeout, check=check)

    def open(self, hosts: Sequence[Endpoint] = (), check: Check | None = None) -> Session:
        """Start a group; `hosts` have the windows of hosts whose ranks sum."""
        ends, n = (*self.shards, *hosts), len(self.shards)
        cards = call_each(ends, "open", timeout=self.timeout, check=check)
        handles = tuple(map(WindowHandle, cards, ends))
        return Session(self, handles[:n], handles[n:])


def joined(
    parts: Sequence[Sequence[Snapshot]], placement: Placement, table: TableSpec | None = None
) -> Snapshot:
    """Join the pieces of a snapshot, given for each shard in order.

    The rows of a table come in the order of their ids.
    """
    first, width = parts[0][0], 0 if table is None else table.width
    of_table = 0 if table is None else table.rows * width
    n = placement.cuts[-1] - of_table
    ids = np.concatenate([part.ids for each in parts for part in each], axis=1)
    order = np.argsort(ids[0])
    rows = len(order) * width
    values = np.empty((len(first.values), rows + n), first.values.dtype)
    where, behind = placement.behind(of_table), values[:, rows:]
    for shard, (part, *_) in enumerate(parts):
        where.put(shard, part.split(width)[1], behind)
    if rows:
        places = np.argsort(order)  # the place of each row
        made, done = values[:, :rows].reshape(len(values), -1, width), 0
        for part in (part for each in parts for part in each):
            at = places[done : done + part.ids.shape[1]]
            made[:, at] = part.split(width)[0].reshape(len(values), -1, width)
            done += len(at)
    return Snapshot(values, first.version, ids[:, order])


@dataclass(frozen=True)
class WindowHandle:
    """A group's window at one shard: how to map it, and where to call it."""

    card: WindowCard
    endpoint: Endpoint


@dataclass(frozen=True)
class Session:
    """A group at a parameter server."""

    server: Stores
    shards: tuple[WindowHandle, ...]
    # Windows in which ranks of a host sum before one of them sends.
    hosts: tuple[WindowHandle, ...] = ()

    def status(self, since: int, check: Check | None = None) -> ShardStatus:
        """Progress of the group, from the first shard, which keeps the epochs.

        since: first epoch whose record is wanted.
        """
        return self.shards[0].endpoint.call(
            "status", since, timeout=self.server.timeout, check=check
        )

    def waits(self, check: Check | None = None) -> list[int]:
        """Number of each rank's checks while it waited, at any shard."""
        at, found = PROGRESS.index("WAITS"), self._each("status", 0, check=check)
        return [
            sum(each) for each in zip(*([p[at] for p in s.progress] for s in found), strict=True)
        ]

    def counts(self, check: Check | None = None) -> list[NDArray[np.int64]]:
        """Counters of every rank at each shard (``_runtime/shared/activity.pyx``).

        Counters that belong to no shard are at the first one. A remote rank sends its own several
        times per second.
        """
        return self._each("counts", check=check)

    def stop(self, check: Check | None = None) -> None:
        """Stop the fit for every replica."""
        ends = [handle.endpoint for handle in (*self.shards, *self.hosts)]
        call_each(ends, "stop", timeout=self.server.timeout, check=check)

    def near(self) -> Session:
        """Return a session that reads shards in this host's memory directly."""
        ends = tuple(
            handle.endpoint
            if isinstance(handle.endpoint, Local)
            or (memory := ShardMemory.find(handle.card)) is None
            else Local(memory)
            for handle in self.shards
        )
        handles = tuple(replace(h, endpoint=end) for h, end in zip(self.shards, ends, strict=True))
        return replace(self, server=replace(self.server, shards=ends), shards=handles)

    def _each(self, method: str, *args: Any, check: Check | None) -> list[Any]:
        ends = [handle.endpoint for handle in self.shards]
        return call_each(ends, method, *args, timeout=self.server.timeout, check=check)
