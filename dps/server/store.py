"""The store: what a shard holds, for as long as its owner wants it.

Parameters, optimizer state, how many updates they have, and snapshots of them. What a group of
ranks needs around it, which goes with the group, is a window (``window.py``); any number of groups
may come and go, one after another. It knows no ranks, modes or epochs but by number.

Words of a store
    VERSION   updates applied
    SNAPSHOT  a word for each of the places of snapshots: one more than the epochs that were closed
              then; 0 while there is none
    WRITES, READS, CLOSED   of a tensor of a server, see ``_runtime/tensors.pyx``

Protocol of a snapshot. Its word is 0 while it is written, and then says after how many epochs it
was taken. A reader looks at the word before and after it has copied. It is written where the oldest
one was, but for one that is spared: that of the best epoch so far, where the best is kept, for
which there is a third place. A crash of the writer leaves none in that place, and in the others the
one before it and the one that was spared.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dps._kernels.table import LEFT, TableRows
from dps._runtime import words
from dps._runtime.words import Header
from dps.models.layout import Table
from dps.optimizers.update import Update
from dps.server.memory import SharedFile
from dps.server.regions import Regions, Shapes

__all__ = ["Arena", "Kept", "Store", "StoreSpec", "StoreWord"]


class StoreWord(IntEnum):
    """Words of a store."""

    VERSION = words.S_VERSION
    SNAPSHOT_0 = words.S_SNAPSHOT_0
    SNAPSHOT_1 = words.S_SNAPSHOT_1
    SNAPSHOT_2 = words.S_SNAPSHOT_2
    WRITES = words.S_WRITES
    READS = words.S_READS
    CLOSED = words.S_CLOSED


#: The place of the snapshot after no epochs, which is the first to be written.
_INITIAL = 0
_SNAPSHOT = (StoreWord.SNAPSHOT_0, StoreWord.SNAPSHOT_1, StoreWord.SNAPSHOT_2)


@dataclass(frozen=True)
class Arena:
    """A shard's part of a table: its first keys.

    Parameters
    ----------
    table : Table
    rows : int
    region : int
        Rows of which one rank has charge.
    seed : int
    start : tuple of float
        Optimizer state of a new row, a number a row of state.
    """

    table: Table
    rows: int
    region: int
    seed: int
    start: tuple[float, ...]


class Kept(NamedTuple):
    """A snapshot.

    Attributes
    ----------
    values : (1 + state_rows, n) array
        Parameters and state.
    version : int
        Updates behind them.
    ids : (2, rows) int64 array
        Of each row of a table one more than its id, or 0 or less where no row is; and the update
        that was the last to touch it, where rows expire.
    """

    values: NDArray[np.floating]
    version: int
    ids: NDArray[np.int64]


@dataclass(frozen=True)
class StoreSpec:
    """What a store is made for.

    Parameters
    ----------
    name : str
        Of whom it belongs to: the id of a fit.
    shard : int
    size : int
        Elements of the flat vector on this shard.
    dtype : str
        ``"float32"`` or ``"float64"``.
    state_rows : int
        Rows of optimizer state.
    holds_parameters : bool
        Whether parameters and state are here; otherwise only snapshots of what replicas hold.
    digest : str
        Digest of the model's layout.
    key_width : int
        Elements that go by one key, where gradients are sparse, so that updates are lazy; else 0.
    n_snapshots : int
        Two, three where the best is kept, or none where nothing is.
    arena : Arena or None
        The shard's part of a table.
    """

    name: str
    shard: int
    size: int
    dtype: str
    state_rows: int = 0
    holds_parameters: bool = True
    digest: str = ""
    key_width: int = 0
    n_snapshots: int = 2
    arena: Arena | None = None

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
            "snapshots": ((self.n_snapshots, 1 + self.state_rows, self.size), self.dtype),
            "snapshot_versions": ((self.n_snapshots,), "int64"),
            "ids": ((2, rows), "int64"),
            "counts": ((counted,), "int32"),
            "snapshot_ids": ((self.n_snapshots, 2, rows), "int64"),
        }


class Store(Regions):
    """What one shard holds.

    Attributes
    ----------
    spec : StoreSpec
    words : Header
        The words named in this module's docstring.
    params : (n,) array
    state : (state_rows, n) array
    since : (n / key_width,) int64 array
        The update up to which a key's parameters are up to date, see ``_kernels/lazy.pyx``.
    snapshots : (n_snapshots, 1 + state_rows, n) array
    snapshot_versions : (n_snapshots,) int64 array
        The version of each snapshot.
    ids : (2, rows) int64 array
        Of a table, see `Kept` and ``_kernels/table.pyx``.
    counts : (rows,) int32 array
        The same; empty where it is not needed.
    snapshot_ids : (n_snapshots, 2, rows) int64 array
        `ids` of each snapshot.
    table : TableRows or None
    update : Update or None
        How a gradient is applied to `params`.
    """

    spec: StoreSpec
    params: NDArray[np.floating]
    state: NDArray[np.floating]
    since: NDArray[np.int64]
    snapshots: NDArray[np.floating]
    snapshot_versions: NDArray[np.int64]
    ids: NDArray[np.int64]
    counts: NDArray[np.int32]
    snapshot_ids: NDArray[np.int64]
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

    @property
    def n_keys(self) -> int:
        """Keys that there can be; ids have 62 bits."""
        if self.spec.arena is not None:
            return 1 << 62
        return self.spec.size // max(self.spec.key_width, 1)

    @classmethod
    def create(
        cls,
        spec: StoreSpec,
        values: NDArray[np.floating],
        version: int = 0,
        ids: NDArray[np.int64] | None = None,
        *,
        update: Update | None = None,
        shared: bool = False,
    ) -> Store:
        """A store that begins with given values.

        Parameters
        ----------
        spec : StoreSpec
        values : (1 + state_rows, size) array
            Parameters, and rows of optimizer state. They are the snapshot after no epochs, too.
        version : int
            Updates behind them.
        ids : (2, rows) int64 array, optional
            Of the rows of a table that are there already, see `Kept`.
        update : Update, optional
        shared : bool
            Whether it should be a file that other processes can map.
        """
        store = cls.make(spec, spec.name, shared=shared)
        store.update = update
        if spec.holds_parameters:
            store.params[:] = values[0]
            store.state[:] = values[1:]
            store.since[:] = version
        if ids is not None:  # a row that was being made is none
            store.ids[:] = ids
            store.ids[0, ids[0] < LEFT] = LEFT
        store.words.store(StoreWord.VERSION, version)
        if spec.n_snapshots:
            store.keep(0, values[0], values[1:], version)
        return store

    def fill(self, row: int, start: int, values: NDArray[np.floating]) -> None:
        """Write some of the values that it begins with: parameters (row 0) or state."""
        at = slice(start, start + len(values))
        self.snapshots[_INITIAL, row, at] = values
        if self.spec.holds_parameters:
            held = self.state[row - 1] if row else self.params
            held[at] = values

    def successor(self) -> Store:
        """A store that begins at the last snapshot of this one, in memory of its own.

        What an epoch that was not closed has left is not in it, and nobody who is still at work in
        this one can write there.
        """
        taken = max(self.words.load(word) for word in _SNAPSHOT) - 1
        shared = self.file is not None
        kept = self.kept(taken)
        return Store.create(
            self.spec, kept.values, kept.version, kept.ids, update=self.update, shared=shared
        )

    @property
    def version(self) -> int:
        """Updates applied."""
        return self.words.load(StoreWord.VERSION)

    def keep(
        self,
        epochs: int,
        params: NDArray[np.floating],
        state: NDArray[np.floating],
        version: int,
        spare: int | None = None,
    ) -> None:
        """Write the snapshot after some epochs; a crash meanwhile leaves none in its place.

        That after `spare` epochs is left as it is.
        """
        taken = [self.words.load(word) for word in _SNAPSHOT[: self.spec.n_snapshots]]
        free = [at for at, word in enumerate(taken) if spare is None or word != spare + 1]
        place = min(free, key=taken.__getitem__)
        self.words.store(_SNAPSHOT[place], 0)
        self.snapshots[place, 0] = params
        self.snapshots[place, 1:] = state
        self.snapshot_versions[place] = version
        self.snapshot_ids[place] = self.ids
        self.words.store(_SNAPSHOT[place], epochs + 1)

    def kept(self, epochs: int) -> Kept:
        """What was kept after some epochs.

        Raises
        ------
        LookupError
            That snapshot is not, or no longer, there.
        """
        words = _SNAPSHOT[: self.spec.n_snapshots]
        found = [at for at, word in enumerate(words) if self.words.load(word) == epochs + 1]
        if not found:
            raise LookupError(f"no snapshot after {epochs} epochs")
        place, word = found[0], _SNAPSHOT[found[0]]
        kept = Kept(
            self.snapshots[place].copy(),
            int(self.snapshot_versions[place]),
            self.snapshot_ids[place].copy(),
        )
        # Adding, unlike loading, is not done before what comes in front of it, on any processor.
        if self.words.add(word, 0) != epochs + 1:
            raise LookupError(f"no snapshot after {epochs} epochs any more")
        return kept
