"""Handles on all shards, and on a group that works there; the latter is what a replica is given.

They pickle. They know where shards are and which elements they hold, and ask them; they do not
make or release them (``dps/cluster`` does).
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

#: Called while an answer is awaited; raises to give up.
Check = Callable[[], None]


class Answer(Protocol):
    """The answer to a call, to come."""

    def result(self, timeout: float, check: Check | None = None) -> Any:
        """Wait for it at most `timeout` seconds; `check` is called meanwhile."""


class Endpoint(ABC):
    """The short methods of a shard, which do not wait for others."""

    @abstractmethod
    def start(self, method: str, *args: Any) -> Answer:
        """Begin a call; several may be under way."""

    def call(self, method: str, *args: Any, timeout: float, check: Check | None = None) -> Any:
        """Call a method; `check` is called meanwhile, and raises to give up."""
        return self.start(method, *args).result(timeout, check)


@dataclass(frozen=True)
class Lazy:
    """A call that is made when its answer is wanted."""

    made: Callable[[float], Any]

    def result(self, timeout: float, check: Check | None = None) -> Any:
        """Make the call."""
        return self.made(timeout)


@dataclass(frozen=True)
class Local(Endpoint):
    """A shard in this process."""

    shard: Any

    def start(self, method: str, *args: Any) -> Lazy:
        """Begin a call; it never waits."""
        return Lazy(lambda _: getattr(self.shard, method)(*args))


def call_each(
    ends: Iterable[Endpoint], method: str, *args: Any, timeout: float, check: Check | None = None
) -> list[Any]:
    """Call a method of several shards at once; their answers in order."""
    answers = [end.start(method, *args) for end in ends]
    return [answer.result(timeout, check) for answer in answers]


@dataclass(frozen=True)
class Stores:
    """The stores of all shards."""

    shards: tuple[Endpoint, ...]
    placement: Placement
    timeout: float  # seconds within which a shard must answer
    # The table of the first elements, if their rows are made when they are touched.
    table: TableSpec | None = None
    silence: float = 2.0  # seconds without any answer after which a shard's host is gone

    def snapshot(self, epochs: int, check: Check | None = None, steps: int = 0) -> Snapshot:
        """Fetch parameters and optimizer state as they were after `epochs` closed epochs.

        check: called while the answer is awaited; raises to give up.
        steps: steps into the next epoch, for a snapshot within it.
        Returns all of it, with the rows of a table in the order of their ids.
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
        """Keep only snapshots, once no rank works any more; memory that others map stays."""
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
        """Have a shard begin to hand snapshots of the group at work on, see `Exporter`.

        Raises LookupError: one that is copied is not, or no longer, there.
        """
        self.shards[shard].call("write", asked, copied, timeout=self.timeout, check=check)

    def written(self, shard: int, check: Check | None) -> ExportResult | None:
        """The result; None while the export runs."""
        return self.shards[shard].call("written", timeout=self.timeout, check=check)

    def open(self, hosts: Sequence[Endpoint] = (), check: Check | None = None) -> Session:
        """Begin a group; `hosts` have the windows of hosts whose ranks sum before they send."""
        ends, n = (*self.shards, *hosts), len(self.shards)
        cards = call_each(ends, "open", timeout=self.timeout, check=check)
        handles = tuple(map(WindowHandle, cards, ends))
        return Session(self, handles[:n], handles[n:])


def joined(
    parts: Sequence[Sequence[Snapshot]], placement: Placement, table: TableSpec | None = None
) -> Snapshot:
    """A snapshot, from the parts of each shard's in their order.

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
        places = np.argsort(order)  # of each row that has come
        made, done = values[:, :rows].reshape(len(values), -1, width), 0
        for part in (part for each in parts for part in each):
            at = places[done : done + part.ids.shape[1]]
            made[:, at] = part.split(width)[0].reshape(len(values), -1, width)
            done += len(at)
    return Snapshot(values, first.version, ids[:, order])


@dataclass(frozen=True)
class WindowHandle:
    """A group's window at one shard: how to map it, and where to call."""

    card: WindowCard
    endpoint: Endpoint


@dataclass(frozen=True)
class Session:
    """A group at a parameter server."""

    server: Stores
    shards: tuple[WindowHandle, ...]
    hosts: tuple[WindowHandle, ...] = ()  # windows in which ranks of a host sum before they send

    def status(self, since: int, check: Check | None = None) -> ShardStatus:
        """Progress of the group, from the shard that keeps the epochs (the first).

        since: first epoch whose record is wanted.
        """
        return self.shards[0].endpoint.call(
            "status", since, timeout=self.server.timeout, check=check
        )

    def waits(self, check: Check | None = None) -> list[int]:
        """Numbers of each rank's looks around while it waited, at any shard."""
        at, found = PROGRESS.index("WAITS"), self._each("status", 0, check=check)
        return [
            sum(each) for each in zip(*([p[at] for p in s.progress] for s in found), strict=True)
        ]

    def counts(self, check: Check | None = None) -> list[NDArray[np.int64]]:
        """Counts of every rank at each shard (``_runtime/shared/activity.pyx``); (n_ranks, WIDTH).

        Counts of no shard are at the first one. A far rank sends its own a few times a second.
        """
        return self._each("counts", check=check)

    def stop(self, check: Check | None = None) -> None:
        """End the fit for every replica."""
        ends = [handle.endpoint for handle in (*self.shards, *self.hosts)]
        call_each(ends, "stop", timeout=self.server.timeout, check=check)

    def near(self) -> Session:
        """Return the session to read from: shards in memory of this host are read there."""
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
