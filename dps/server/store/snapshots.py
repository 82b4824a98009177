"""Snapshots of a shard's contents, written to slots in its memory or in a file.

This module sees no ranks or modes, and epochs only as numbers.

Protocol. The word of a slot is 0 while a snapshot is written to it, and then holds the epochs, and
steps of the next epoch, of the snapshot. A reader checks the word before and after it copies. A
snapshot is written over the oldest one, except the snapshot of the last closed epoch and a spared
one, which is that of the best epoch if it is kept. So there are two slots, one more for the best
epoch, and one more for snapshots within epochs only. After a crash of the writer its slot holds no
snapshot, and the other slots hold the earlier one and the spared ones.

Of a table only rows in use are written and read. If a table is large, or a model is not mapped by
other processes, snapshots are in a file of the shard's process (:class:`DiskBuffer`). It returns
pages that it has gone through to the system, so that they do not count as memory of the process.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dps._runtime.shared import words
from dps._runtime.shared.words import Header

_WORDS = (words.S_SNAPSHOT_0, words.S_SNAPSHOT_1, words.S_SNAPSHOT_2, words.S_SNAPSHOT_3)
#: Bits for steps in the word of a slot.
_STEPS = 32
#: Bytes of a table's rows that are processed or sent at a time.
_PIECE_BYTES = 16 << 20


class Snapshot(NamedTuple):
    """A snapshot or a part of one: rows of a table or, without a table, elements."""

    # (1 + state_rows, n) array, parameters and state. With a table: of the rows in use, and in the
    # first part also of the elements after the table
    values: NDArray[np.floating]
    version: int  # number of updates
    # (2, rows) int64 array for a table: the id of each row, and its last update if rows expire
    ids: NDArray[np.int64]
    rest: int = 0  # where the next part begins; 0: this is the last one

    @property
    def params(self) -> NDArray[np.floating]:
        """The parameters."""
        return self.values[0]

    @property
    def state(self) -> NDArray[np.floating]:
        """The optimizer's state, (state_rows, n)."""
        return self.values[1:]

    def split(self, width: int) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """Split the values into table rows, of `width` elements each, and the rest."""
        n = self.ids.shape[1] * width
        return self.values[:, :n], self.values[:, n:]

    def pieces(self, width: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.floating]]]:
        """Yield ids and values of its rows in pieces."""
        each = _rows_of_a_piece(self.values, width)
        for first in range(0, self.ids.shape[1], each):
            ids = self.ids[:, first : first + each]
            yield ids, self.values[:, first * width : (first + ids.shape[1]) * width]


class DiskBuffer:
    """Memory in an unlinked file, which disappears with the process.

    folder: of the file; None: the folder for temporary files.
    Raises OSError: the disk has no room.
    """

    def __init__(self, nbytes: int, folder: str | None) -> None:
        with tempfile.TemporaryFile(prefix="dps-", dir=folder) as file:
            if hasattr(os, "posix_fallocate"):  # otherwise a full disk would kill the process
                os.posix_fallocate(file.fileno(), 0, nbytes)
            else:
                os.ftruncate(file.fileno(), nbytes)
            self.memory = mmap.mmap(file.fileno(), nbytes)

    def release(self) -> None:
        """Free pages; the file keeps their contents."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.memory.madvise(mmap.MADV_DONTNEED)


class Snapshots:
    """The snapshots of a store.

    values: sequence of (1 + state_rows, n) array, the slots; the last ones are for snapshots within
        epochs only.
    within: number of these, 0 or 1.
    versions: (slots,) int64 array, the version of each snapshot.
    ids: (slots, 2, rows) int64 array for a table, as in a store.
    width: elements of a row of the table.
    spill: the file of `values` and `ids`, unless they are in memory.
    """

    def __init__(
        self,
        header: Header,
        values: Sequence[NDArray[np.floating]],
        within: int,
        versions: NDArray[np.int64],
        ids: NDArray[np.int64],
        width: int = 0,
        spill: DiskBuffer | None = None,
    ) -> None:
        self._header = header
        self.values, self._versions, self._ids = values, versions, ids
        self._of_epochs = len(values) - within
        self._width, self._spill = width, spill

    @property
    def last(self) -> int:
        """Epochs of the last snapshot of a whole epoch."""
        return (max(map(self._header.load, _WORDS)) >> _STEPS) - 1

    def keep(
        self,
        epochs: int,
        params: NDArray[np.floating],
        state: Sequence[NDArray[np.floating]] | NDArray[np.floating],
        ids: NDArray[np.int64],
        version: int,
        spare: int | None = None,
        steps: int = 0,
    ) -> None:
        """Write the snapshot of some epochs and steps, but not over that of `spare` epochs."""
        places = len(self.values) if steps else self._of_epochs
        taken = [self._header.load(word) for word in _WORDS[:places]]
        left = {_word(each) for each in (self.last, spare) if each is not None and each >= 0}
        place = min(
            (at for at in range(len(taken)) if taken[at] not in left), key=taken.__getitem__
        )
        self._header.store(_WORDS[place], 0)
        self._versions[place] = version
        for first, last in self._pieces():
            part = ids[:, first:last]
            self._ids[place, :, first:last] = part
            if (part[0] > 0).any():
                self._copy(place, params, state, first * self._width, last * self._width)
            self._release()
        for start, stop in self._behind_pieces():
            self._copy(place, params, state, start, stop)
            self._release()
        self._header.store(_WORDS[place], _word(epochs, steps))

    def _copy(
        self, place: int, params: NDArray[np.floating],
        state: Sequence[NDArray[np.floating]] | NDArray[np.floating], start: int, stop: int,
    ) -> None:  # fmt: skip
        for row, given in zip(self.values[place], (params, *state), strict=True):
            row[start:stop] = given[start:stop]

    def kept(self, epochs: int, first: int = 0, steps: int = 0) -> Snapshot:
        """Return a part of a snapshot: rows of a table, or elements, from `first` on.

        Raises LookupError: the snapshot does not exist, or not any more.
        """
        place = self._place(epochs, steps)
        kept = self._part(place, first)
        self._check(place, epochs, steps)
        return kept

    def _place(self, epochs: int, steps: int) -> int:
        """Return the slot of a snapshot."""
        for place in range(len(self.values)):
            if self._header.load(_WORDS[place]) == _word(epochs, steps):
                return place
        raise LookupError(f"no snapshot after {epochs} epochs and {steps} steps")

    def _check(self, place: int, epochs: int, steps: int) -> None:
        """Raise if the copied snapshot may have been replaced meanwhile."""
        # Unlike a load, an add cannot be executed before the reads in front of it, on any
        # processor.
        if self._header.add(_WORDS[place], 0) != _word(epochs, steps):
            raise LookupError(f"no snapshot after {epochs} epochs and {steps} steps any more")

    def pieces(self, epochs: int, steps: int = 0) -> Iterator[Snapshot]:
        """Yield all parts of a snapshot, see `kept`.

        Without a table there is one part, which is a view. Whether it was intact is checked when
        the next part is requested.

        Raises LookupError: the snapshot does not exist, or not any more; then no earlier part is
            valid.
        """
        if self._ids.shape[2] == 0:
            place = self._place(epochs, steps)
            ids = np.zeros((2, 0), np.int64)
            yield Snapshot(self.values[place], int(self._versions[place]), ids)
            self._check(place, epochs, steps)
            return
        first = 0
        while True:
            part = self.kept(epochs, first, steps)
            yield part
            first = part.rest
            if not first:
                return

    @property
    def spilled(self) -> bool:
        """True if the snapshots are in a file."""
        return self._spill is not None

    def _part(self, place: int, first: int) -> Snapshot:
        values, n_rows = self.values[place], self._ids.shape[2]
        if n_rows == 0:
            last = min(first + max(1, _PIECE_BYTES // values[:, :1].nbytes), values.shape[1])
            piece = values[:, first:last].copy()
            self._release()
            rest = last if last < values.shape[1] else 0
            return Snapshot(piece, int(self._versions[place]), np.zeros((2, 0), np.int64), rest)
        last = min(first + self._each, n_rows)
        ids = self._ids[place, :, first:last]
        there = np.flatnonzero(ids[0] > 0)
        table = values[:, first * self._width : last * self._width]
        rows = table.reshape(len(values), -1, max(self._width, 1))[:, there]
        n = rows[0].size
        size = n + (values.shape[1] - self._behind if first == 0 else 0)
        copied = np.empty((len(values), size), values.dtype)
        copied[:, :n] = rows.reshape(len(values), -1)
        if first == 0:
            for start, stop in self._behind_pieces():
                at = slice(n + start - self._behind, n + stop - self._behind)
                copied[:, at] = values[:, start:stop]
                self._release()
        made = ids[:, there]
        made[0] -= 1
        rest = last if last < n_rows else 0
        kept = Snapshot(copied, int(self._versions[place]), made, rest)
        self._release()
        return kept

    @property
    def _behind(self) -> int:
        """Start of the values after the table."""
        return self._ids.shape[2] * self._width

    @property
    def _each(self) -> int:
        """Rows of a piece."""
        return _rows_of_a_piece(self.values[0], self._width)

    def _pieces(self) -> Iterator[tuple[int, int]]:
        n_rows = self._ids.shape[2]
        for first in range(0, n_rows, self._each):
            yield first, min(first + self._each, n_rows)

    def _behind_pieces(self) -> Iterator[tuple[int, int]]:
        """The values after the table, at once or in pieces whose pages are freed."""
        first, last = self._behind, self.values[0].shape[1]
        column = self.values[0][:, :1].nbytes
        each = max(1, last if self._spill is None else _PIECE_BYTES // column)
        for start in range(first, last, each):
            yield start, min(start + each, last)

    def _release(self) -> None:
        if self._spill is not None:
            self._spill.release()


def _word(epochs: int, steps: int = 0) -> int:
    """Return the word of a slot for a snapshot; it is larger for later ones."""
    return (epochs + 1 << _STEPS) + steps


def _rows_of_a_piece(values: NDArray[np.floating], width: int) -> int:
    row: int = len(values) * values.dtype.itemsize * width
    return max(1, _PIECE_BYTES // max(row, 1))
