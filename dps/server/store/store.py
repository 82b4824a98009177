"""The store: the contents of a shard, which outlive a group.

Parameters, optimizer state, how many updates they have, and snapshots of them. What a group of
ranks needs around it is a window (``group/window.py``). It knows no ranks, modes or epochs but by
number.

Words of a store VERSION updates applied SNAPSHOT a word for each of the places of snapshots, see
``snapshots.py``: when it was taken; 0 while there is none WRITES, READS, CLOSED of a tensor of a
server, see ``_runtime/tensors/part.pyx``
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps._kernels.table import TableRows
from dps._runtime.shared import words
from dps._runtime.shared.words import Header
from dps.errors import TableFullError
from dps.models.layout import TableSpec
from dps.optimizers.update import Update
from dps.server.memory.arrays import Regions, Shapes, laid_out
from dps.server.memory.files import SharedFile
from dps.server.store.snapshots import DiskBuffer, Snapshots

_log = logging.getLogger("dps")


class StoreWord(IntEnum):
    """Words of a store."""

    VERSION = words.S_VERSION
    SNAPSHOT_0 = words.S_SNAPSHOT_0
    SNAPSHOT_1 = words.S_SNAPSHOT_1
    SNAPSHOT_2 = words.S_SNAPSHOT_2
    SNAPSHOT_3 = words.S_SNAPSHOT_3
    WRITES = words.S_WRITES
    READS = words.S_READS
    CLOSED = words.S_CLOSED


@dataclass(frozen=True)
class Arena:
    """A shard's part of a table: its first keys."""

    table: TableSpec
    rows: int
    region: int  # rows that one rank updates
    seed: int
    start: tuple[float, ...]  # optimizer state of a new row, one number per row of state


@dataclass(frozen=True)
class StoreSpec:
    """The specification of a store."""

    name: str  # the owner: the id of a fit
    shard: int
    size: int  # elements of the flat vector on this shard
    dtype: str  # ``"float32"`` or ``"float64"``
    state_rows: int = 0  # rows of optimizer state
    # True if the shard holds parameters and state; else it only has snapshots of the replicas'
    # copies.
    holds_parameters: bool = True
    digest: str = ""  # digest of the model's layout
    # Elements per key for sparse gradients with lazy updates; else 0.
    key_width: int = 0
    n_snapshots: int = 2  # two, three if the best epoch is kept, or none
    arena: Arena | None = None  # the shard's part of a table
    spilled: bool = False  # whether snapshots are in a file on the worker's disk
    within: int = 0  # slots for snapshots within epochs only, 0 or 1; 0 with a table

    @property
    def growing(self) -> str | None:
        """The array that is allocated on demand: few fits take snapshots within an epoch."""
        return "kept_within" if self.within and not self.spilled else None

    @property
    def behind(self) -> int:
        """Elements after the table."""
        arena = self.arena
        return self.size - (0 if arena is None else arena.rows * arena.table.width)

    def shapes(self) -> Shapes:
        """The arrays of a store, see `Store`."""
        held = self.size if self.holds_parameters else 0
        rows = counted = 0
        if self.arena is not None:
            rows, counted = self.arena.rows, self.arena.rows * (self.arena.table.min_count > 1)
        return {
            "_words": ((Header.nbytes(1, len(StoreWord), 1) // 8,), "int64"),
            "params": ((held,), self.dtype),
            "state": ((self.state_rows, held), self.dtype),
            "since": ((held // self.key_width if self.key_width else 0,), "int64"),
            "snapshot_versions": ((self.n_snapshots + self.within,), "int64"),
            "ids": ((2, rows), "int64"),
            "counts": ((counted,), "int32"),
            **({} if self.spilled else self.snapshots),
        }

    @property
    def snapshots(self) -> Shapes:
        """The arrays of snapshots."""
        rows = 0 if self.arena is None else self.arena.rows
        return {
            "kept": ((self.n_snapshots, 1 + self.state_rows, self.size), self.dtype),
            "kept_ids": ((self.n_snapshots + self.within, 2, rows), "int64"),
            "kept_within": ((self.within, 1 + self.state_rows, self.size), self.dtype),
        }


class Store(Regions):
    """The contents of one shard.

    words: the words named in this module's docstring.
    params: (n,) array.
    state: (state_rows, n) array.
    since: (n / key_width,) int64 array, the update up to which a key's parameters are up to date,
        see ``_kernels/lazy.pyx``.
    ids: (2, rows) int64 array, of a table: one more than the id of each row, see
        ``_kernels/table.pyx``; and the update that was the last to touch it, where rows expire.
    counts: (rows,) int32 array, the same; empty where it is not needed.
    update: how a gradient is applied to `params`.
    """

    spec: StoreSpec
    params: NDArray[np.floating]
    state: NDArray[np.floating]
    since: NDArray[np.int64]
    snapshot_versions: NDArray[np.int64]
    ids: NDArray[np.int64]
    counts: NDArray[np.int32]
    kept: NDArray[np.floating]
    kept_ids: NDArray[np.int64]
    kept_within: NDArray[np.floating]
    _words: NDArray[np.int64]

    update: Update | None = None

    def __init__(self, spec: StoreSpec, memory: Any, file: SharedFile | None = None) -> None:
        super().__init__(spec, memory, file)
        self.words = Header(self._words, 1, len(StoreWord), 1, int(StoreWord.VERSION))
        self.table: TableRows | None = None
        if (arena := spec.arena) is not None:
            table, (ids, seen) = arena.table, self.ids
            if not table.expire:
                seen = seen[:0]
            self.table = TableRows(
                self.params, self.state, ids, self.counts, seen, self.since, width=table.width,
                region=arena.region, zeros=table.zeros, scale=table.scale, normal=table.normal,
                seed=arena.seed,
                min_count=table.min_count, start=arena.start,
            )  # fmt: skip
        if not spec.spilled:
            self._take_snapshots(None)

    def _take_snapshots(self, spill: DiskBuffer | None) -> None:
        places = [*self.kept, *self.kept_within]
        self.snapshots = Snapshots(
            self.words, places, self.spec.within, self.snapshot_versions, self.kept_ids,
            self.row_width, spill,
        )  # fmt: skip
        self._has_room = self.file is None or spill is not None

    @property
    def row_width(self) -> int:
        """Elements of a row of the table; 0 without one."""
        return 0 if self.spec.arena is None else self.spec.arena.table.width

    @property
    def n_keys(self) -> int:
        """Largest number of keys; ids have 62 bits."""
        if self.spec.arena is not None:
            return 1 << 62
        return self.spec.size // max(self.spec.key_width, 1)

    @classmethod
    def create(
        cls,
        spec: StoreSpec,
        values: Sequence[float | NDArray[np.floating]] | NDArray[np.floating],
        version: int = 0,
        *,
        update: Update | None = None,
        shared: bool = False,
        folder: str | None = None,
    ) -> Store:
        """Create a store with initial values.

        values: (1 + state_rows, size) array or sequence of rows: parameters and optimizer state;
            with a table, those after it. A number stands for a constant row.
        version: number of updates so far.
        shared: whether it should be a file that other processes can map.
        folder: of spilled snapshots.
        """
        regions, nbytes = laid_out(spec.snapshots)
        spill = None
        if spec.spilled:
            try:
                spill = DiskBuffer(nbytes, folder)
            except OSError:
                if spec.arena is not None:
                    raise
                spec = replace(spec, spilled=False)  # no room on the disk
        store = cls.make(spec, spec.name, shared=shared)
        store.update = update
        if spill is not None:
            store.bind(regions, spill.memory)
            store._take_snapshots(spill)
        behind = spec.size - spec.behind
        if spec.holds_parameters:
            for row, given in zip((store.params, *store.state), values, strict=True):
                if not isinstance(given, float) or given:  # untouched pages take no memory
                    row[behind:] = given
            if spec.key_width:
                store.since[behind // spec.key_width :] = version
        store.words.store(StoreWord.VERSION, version)
        if spec.n_snapshots and spec.arena is None:
            params, state = store.params, [*store.state]
            if not spec.holds_parameters:
                params, *state = (
                    np.broadcast_to(np.asarray(row, spec.dtype), spec.size) for row in values
                )
            store.keep(0, params, state, version)
        return store

    def begin(self) -> None:
        """Take the first snapshot of a store with a table, after all its rows were written."""
        if self.spec.arena is not None:
            self.keep(0, self.params, self.state, self.version)

    def put_rows(self, ids: NDArray[np.int64], values: NDArray[np.floating]) -> None:
        """Write rows of a table from an earlier group, see `Snapshot`, before a group works.

        ids: (2, rows) int64 array.
        values: (1 + state_rows, rows * width) array.
        Raises TableFullError: there is no room for all of them.
        """
        assert self.table is not None
        at = self.table.make(
            np.require(ids[0], requirements=["C", "A"]), self.version + 1, admit=True
        )
        if (at < 0).any():
            raise TableFullError(
                f"{len(at)} rows of a table do not fit beside those that are on shard "
                f"{self.spec.shard}, which has room for {self.ids.shape[1]}: raise max_embeddings"
            )
        by_row = values.reshape(len(values), len(at), -1)
        n, width = self.ids.shape[1], by_row.shape[2]
        self.params[: n * width].reshape(n, width)[at] = by_row[0]
        for row, given in zip(self.state, by_row[1:], strict=True):
            row[: n * width].reshape(n, width)[at] = given
        self.ids[1, at] = ids[1]

    def fill(self, row: int, start: int, values: NDArray[np.floating]) -> None:
        """Write some of the initial values: parameters (row 0) or state."""
        behind = self.spec.size - self.spec.behind
        at = slice(behind + start, behind + start + len(values))
        if self.spec.arena is None:  # with a table the first snapshot is taken later
            self.snapshots.values[0][row, at] = values
        if self.spec.holds_parameters:
            held = self.state[row - 1] if row else self.params
            held[at] = values

    def rest(self) -> None:
        """Free the memory of parameters and state, once only snapshots are needed."""
        for array in (self.params, self.state):
            self.release(array)

    @property
    def version(self) -> int:
        """Number of updates."""
        return self.words.load(StoreWord.VERSION)

    def has_room_within(self) -> bool:
        """Allocate memory for a snapshot within an epoch; True if there is room."""
        if not self._has_room and self.file is not None:
            regions, _ = laid_out(self.spec.shapes())
            try:
                self.file.commit(regions["kept_within"][0], self.kept_within.nbytes)
            except OSError as error:
                _log.warning("there is no room for a snapshot within an epoch: %s", error)
                return False
            self._has_room = True
        return True

    def keep(
        self,
        epochs: int,
        params: NDArray[np.floating],
        state: Sequence[NDArray[np.floating]] | NDArray[np.floating],
        version: int,
        spare: int | None = None,
        steps: int = 0,
    ) -> None:
        """Write the snapshot of some epochs and steps, see `Snapshots.keep`."""
        self.snapshots.keep(epochs, params, state, self.ids, version, spare, steps)
