"""A shard of a fit: it owns a store and the window of the group that works on it.

It takes no part in steps: ranks work in the window themselves, or a thread does for a remote one
(``dps/transport``). When the shard goes away, every user of the window is stopped, even if no
process has closed it, because its client has died and Dask releases it.

A shard has one group. The next generation of a fit has other Actors and therefore new memory: a
frozen rank that wakes up in the middle of an update writes into memory that is no longer read.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dps._runtime.channel.mapped import MappedChannel
from dps._runtime.shared.activity import STEPS
from dps.errors import FencedError
from dps.optimizers.update import Update
from dps.server.group.window import ABORTED, Field, Window, WindowSpec, Word
from dps.server.memory.arrays import MemoryCard
from dps.server.memory.files import sweep
from dps.server.memory.host import host_id
from dps.server.store.export import Exporter, ExportRequest, ExportResult
from dps.server.store.snapshots import Snapshot
from dps.server.store.store import Store, StoreSpec

#: Makes a rank's channel in the window of a shard: a class, or one with a mode's options.
ChannelKind = Callable[..., MappedChannel]

#: Bytes of a row of initial values up to which they are part of the specification.
_FEW_BYTES = 1 << 16


@dataclass(frozen=True)
class MonitorInfo:
    """Facts for monitoring that a window does not hold."""

    workers: tuple[str, ...]  # the worker of each rank
    together: bool  # whether ranks wait for each other at every step


@dataclass(frozen=True)
class Initial:
    """Initial parameters and optimizer state; constant rows take no memory."""

    size: int
    dtype: str
    # Parameters, then rows of state: one number, or (size,) numbers.
    rows: tuple[float | NDArray[np.floating], ...]

    @classmethod
    def of(cls, params: NDArray[np.floating], state: NDArray[np.floating]) -> Initial:
        """Make it from (n,) parameters and (state_rows, n) state."""
        rows = [
            float(row[0]) if row.size and (row == row[0]).all() else np.ascontiguousarray(row)
            for row in (params, *state)
        ]
        return cls(params.size, str(params.dtype), tuple(rows))

    def apart(self) -> tuple[Initial, dict[int, NDArray[np.floating]]]:
        """Return it without large rows, and these rows by number."""
        rest = {
            number: row for number, row in enumerate(self.rows)
            if isinstance(row, np.ndarray) and row.nbytes > _FEW_BYTES
        }  # fmt: skip
        rows = tuple(0.0 if number in rest else row for number, row in enumerate(self.rows))
        return replace(self, rows=rows), rest


@dataclass(frozen=True)
class ShardSpec:
    """What a shard and its group need."""

    window: WindowSpec
    # Parameters and optimizer state of this shard; with a part of a table, those after the table.
    initial: Initial
    channel: ChannelKind  # the channel of a rank's steps, from its mode
    timeout: float  # seconds without progress that a waiting rank tolerates
    version: int = 0  # updates in the initial parameters
    # How gradients are applied; None if replicas hold the parameters.
    update: Update | None = None
    shared: bool = False  # whether its memory is to be files that other processes can map
    watched: MonitorInfo | None = None  # None if the fit is not monitored

    @property
    def store(self) -> StoreSpec:
        """The shard's memory."""
        return self.window.store


@dataclass(frozen=True)
class WindowCard:
    """By trying a card a replica finds out whether it can map a window and its store."""

    spec: WindowSpec
    window: MemoryCard
    store: MemoryCard
    update: Update | None
    host: str
    unshared: str | None


@dataclass(frozen=True)
class ShardStatus:
    """A shard's report on a running fit."""

    closed: int  # number of closed epochs
    stop: int  # 0 while running
    # (k, RECORD_WIDTH + n_ranks) records of closed epochs, from the requested one on.
    records: NDArray[np.float64]
    # Counters of each rank, which change while it makes progress or waits for others.
    progress: tuple[tuple[int, ...], ...]
    steps: tuple[int, ...]  # sequence number of each rank's last gradient
    claimed: tuple[bool, ...]  # whether each rank has been claimed
    # (1 + n_ranks, INTERIM_WIDTH) note of the last snapshot within an epoch, see `Window.interims`.
    interim: NDArray[np.float64] | None = None


def status_of(window: Window, since: int) -> ShardStatus:
    """Return records from epoch `since` on, and the progress of every rank."""
    ranks = range(window.spec.n_ranks)
    closed = window.words.load(Word.CLOSED)
    rows = [epoch % window.spec.history for epoch in range(since, closed)]
    return ShardStatus(
        closed=closed,
        stop=window.stopped,
        records=window.history[rows],
        progress=tuple(
            (*window.progress(rank), int(window.activity[rank, STEPS])) for rank in ranks
        ),
        steps=tuple(
            window.words.rank_load(rank, Field.ARRIVED)
            if rank in window.spec.active
            else int(window.activity[rank, STEPS])
            for rank in ranks
        ),
        claimed=tuple(map(window.is_claimed, ranks)),
        interim=_interim(window),
    )


def _interim(window: Window) -> NDArray[np.float64] | None:
    """Return the last published note; the one after the next overwrites it."""
    while published := window.words.load(Word.INTERIM):
        found: NDArray[np.float64] = window.interims[published % 2].copy()
        # Unlike a load, an add cannot be executed before the reads in front of it.
        if window.words.add(Word.INTERIM, 0) == published:
            return found
    return None


class ParameterShard:
    """A slice of the parameters.

    folder: for files that are not shared memory; None: the folder for temporary files.
    """

    def __init__(self, spec: ShardSpec, folder: str | None = None) -> None:
        if spec.shared:
            sweep()
        # Without the initial values, which would stay in memory.
        self.spec = replace(spec, initial=replace(spec.initial, rows=()))
        self.store = Store.create(
            spec.store, spec.initial.rows, spec.version, update=spec.update, shared=spec.shared,
            folder=folder,
        )  # fmt: skip
        self._used = _Used(self.store)
        self._abandon = weakref.finalize(self, self._used.abandon)

    def fill(self, row: int, start: int, values: NDArray[np.floating]) -> None:
        """Write some of the initial values of a row, before the shard is opened."""
        self.store.fill(row, start, values)

    def put_rows(self, ids: NDArray[np.int64], values: NDArray[np.floating]) -> None:
        """Write some of the initial rows of a table, before the shard is opened."""
        self.store.put_rows(ids, values)

    def open(self) -> WindowCard:
        """Create the window of the group; return its card."""
        self.store.begin()
        self._used.windows.append(
            Window.create(self.spec.window, self.store, shared=self.store.file is not None)
        )
        return self.card()

    @property
    def window(self) -> Window:
        """The window of the group."""
        if not self._used.windows:
            raise FencedError("no group is at work on this shard")
        return self._used.windows[0]

    def card(self) -> WindowCard:
        """The card by which replicas map the window."""
        window, store = self.window, self.store
        unshared = store.unshared or window.unshared
        return WindowCard(
            window.spec, window.card, store.card, store.update, host_id(), unshared
        )  # fmt: skip

    def status(self, since: int) -> ShardStatus:
        """Return records from epoch `since` on, and the progress of every rank."""
        return status_of(self.window, since)

    def counts(self) -> NDArray[np.int64]:
        """Return the counters of every rank, see ``shared/activity.pyx``; (n_ranks, WIDTH)."""
        return self.window.activity.copy()

    def stop(self) -> None:
        """Stop the fit for every replica."""
        self.window.stop(ABORTED)

    def version(self) -> int:
        """Return the number of updates."""
        return self.store.version

    def snapshot(self, epochs: int, first: int = 0, steps: int = 0) -> Snapshot:
        """Return a snapshot or a part of it, see `Snapshots.kept`."""
        return self.store.snapshots.kept(epochs, first, steps)

    def rest(self) -> None:
        """Free all memory except snapshots, once no rank works here, see `Store.rest`."""
        self.store.rest()
        for window in self._used.windows:
            window.release(window.slots)
            window.release(window.total)

    def write(self, asked: Sequence[ExportRequest], copied: bool) -> None:
        """Start to export snapshots in a thread, see `Exporter`."""
        writings = self._used.writings
        while writings:
            writings.pop().close()
        writings.append(Exporter(self.store.snapshots, asked, copied))

    def written(self) -> ExportResult | None:
        """Return the result of the export; None while it runs."""
        writings = self._used.writings
        return writings[-1].written if writings else ExportResult(overtaken=True)

    def close(self) -> None:
        """Stop the group and free all memory; later calls are refused."""
        self._abandon()


class _Used:
    """What a shard must release when it is closed or garbage-collected; it outlives the shard."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.windows: list[Window] = []  # at most one
        self.writings: list[Exporter] = []  # at most one
        self.calls: list[Callable[[], None]] = []  # called once the window is stopped

    def stop(self) -> None:
        """Stop the group and release its window."""
        while self.windows:
            self.windows.pop().close()
        while self.calls:
            self.calls.pop()()

    def abandon(self) -> None:
        """Free all memory without waiting."""
        self.stop()
        for writing in self.writings:
            writing.close()
        self.store.close()
