"""The files of a checkpoint, and the search for the newest complete one.

``000007-<run>/`` holds the shards' files (``part-...``) and the manifest of
`dps.files.directories`. The manifest is written last: a directory without one is no checkpoint. The
files name no replicas, and of shards only the range of elements, so a fit can resume with any
number of both.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps._checks import count
from dps._warned import warn
from dps.files.directories import (
    StoredFile,
    read_directory,
    read_part,
    write_directory,
    write_part,
)
from dps.files.records import Kind, RecordReader, RecordWriter
from dps.models.layout import TableSpec
from dps.server.group.session import joined
from dps.server.placement import Placement
from dps.server.store.snapshots import Snapshot
from dps.training.checkpoint.paths import CHECKPOINT, CheckpointDir, places
from dps.training.epochs.records import EpochRecord
from dps.training.position import EpochProgress, EpochSnapshot
from dps.training.saved import KINDS

_LARGEST_EXACT = 2.0**53


@dataclass(frozen=True)
class SnapshotFiles:
    """The files of one snapshot."""

    cuts: NDArray[np.int64]  # (n_shards + 1,) first element of each shard, as in a `Placement`
    parts: tuple[tuple[StoredFile, ...], ...]  # the files of each shard, in order
    version: int  # number of updates

    @classmethod
    def of(
        cls, placement: Placement, parts: Sequence[Sequence[StoredFile]], version: int
    ) -> SnapshotFiles:
        """Return the files of a snapshot whose shards have that placement."""
        return cls(np.array(placement.cuts), tuple(map(tuple, parts)), version)


@dataclass(frozen=True)
class _Saved:
    """The contents of a manifest."""

    subject: dict[str, Any]  # description of the fit; `estimators/fit/resume.py` compares it
    history: NDArray[np.float64]  # (epochs, columns)
    table: TableSpec | None
    # The states after the last epoch, and after the best epoch if that was an earlier one.
    last: SnapshotFiles
    best: SnapshotFiles | None
    within: EpochProgress | None  # progress within the next epoch, if a snapshot was taken there
    interim: SnapshotFiles | None  # that snapshot


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A complete checkpoint that has been read."""

    place: CheckpointDir
    subject: dict[str, Any]
    history: tuple[EpochRecord, ...]
    last: Snapshot
    best: Snapshot | None
    interim: EpochSnapshot | None


def _check_stored(stored: SnapshotFiles) -> None:
    cuts = stored.cuts
    if cuts.shape != (len(stored.parts) + 1,):
        raise ValueError("the shards of a snapshot are not those of its files")
    if cuts.dtype != np.int64 or cuts[0] != 0 or (np.diff(cuts) < 0).any():
        raise ValueError("the ranges of shards do not cover each element once")
    if not all(stored.parts):
        raise ValueError("a shard has no files")
    count(stored.version, "version")


def _check_part(part: StoredFile) -> None:
    if not re.fullmatch(r"part-[\w-]+\.safetensors", part.name):
        raise ValueError(f"a file cannot be called {part.name!r}")
    count(part.bytes, "bytes")


def _check_within(within: EpochProgress) -> None:
    if not 0 < within.steps < within.epoch_steps:
        raise ValueError(f"{within.steps} of {within.epoch_steps} steps are no part of an epoch")
    ranks = within.ranks
    for array, dtype in ((ranks, np.float64), (within.pieces, np.int64)):
        if array.dtype != dtype or array.shape[1:] != (4,):
            raise ValueError("what ranks had done is no table of four columns")
    if not (
        np.isfinite(ranks).all() and (ranks[:, 1:] >= 0).all() and (ranks < _LARGEST_EXACT).all()
    ):
        raise ValueError("what ranks had done is no numbers of rows and seconds")


_KINDS = (
    *KINDS,
    Kind.of("part", StoredFile, _check_part),
    Kind.of("stored", SnapshotFiles, _check_stored),
    Kind.of("within", EpochProgress, _check_within),
    Kind.of(CHECKPOINT, _Saved),
)


def part_names(what: str, shard: int) -> str:
    """Return the prefix of the names of a shard's files."""
    return f"part-{what}-{shard:04d}"


def store(
    directory: str, names: str, pieces: Iterable[Snapshot]
) -> tuple[tuple[StoredFile, ...], int]:
    """Write each piece of a snapshot to a file; runs at the shard.

    Returns the version.
    """
    parts, version = [], 0
    for number, piece in enumerate(pieces):
        arrays = {"values": piece.values, "ids": piece.ids}
        parts.append(write_part(directory, f"{names}-{number:06d}.safetensors", arrays))
        version = piece.version
    return tuple(parts), version


def write(
    place: CheckpointDir,
    subject: dict[str, Any],
    history: Sequence[EpochRecord],
    table: TableSpec | None,
    last: SnapshotFiles,
    best: SnapshotFiles | None,
    within: EpochProgress | None,
    interim: SnapshotFiles | None,
) -> None:
    """Write the manifest, after all the files that it names."""
    writer = RecordWriter(_KINDS)
    saved = _Saved(subject, _rows(history), table, last, best, within, interim)
    write_directory(place.directory, writer(saved, CHECKPOINT), writer.arrays)


def _rows(history: Sequence[EpochRecord]) -> NDArray[np.float64]:
    rows = [record.row() for record in history]
    least = len(EpochRecord._fields)
    made = np.zeros((len(rows), max(map(len, rows), default=least)))
    for row, given in zip(made, rows, strict=True):
        row[: len(given)] = given
    return made


def history_of(rows: Any) -> tuple[EpochRecord, ...]:
    """Return the records of epochs from an array with one row per epoch.

    Raises ValueError: the rows are not records of epochs.
    """
    least = len(EpochRecord._fields)
    if not (isinstance(rows, np.ndarray) and rows.dtype == np.float64 and rows.ndim == 2):
        raise ValueError("the history is no table of numbers")
    if rows.shape[1] < least or not (rows[:, least - 1] <= rows.shape[1]).all():
        raise ValueError("the history has too few columns")
    try:
        history = tuple(map(EpochRecord.from_row, rows))
    except OverflowError as error:
        raise ValueError(f"the history has a number that is none ({error})") from error
    for number, record in enumerate(history, 1):
        if record.epoch != number or not 1 <= record.kept <= number:
            raise ValueError(f"epoch {number} of the history is {record}")
    return history


def _saved(place: CheckpointDir) -> _Saved:
    """Read a manifest.

    Raises OSError, ValueError: it cannot be read or is damaged.
    """
    record, arrays = read_directory(place.directory)
    try:
        saved = RecordReader(_KINDS, arrays)(record, CHECKPOINT)
        if not isinstance(saved, _Saved) or not isinstance(saved.subject, dict):
            raise ValueError("it is no checkpoint")
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{place.directory} is damaged: {error}") from error
    return saved


def known_runs(path: str) -> frozenset[str]:
    """Return the runs that have a complete checkpoint at the path."""
    known: set[str] = set()
    for place in places(path):
        if place.run not in known:
            with contextlib.suppress(OSError, ValueError):
                _saved(place)
                known.add(place.run)
    return frozenset(known)


def unfinished(path: str) -> str | None:
    """Return the newest checkpoint of an unfinished fit, or None."""
    for place in places(path):
        with contextlib.suppress(OSError, ValueError):
            ended = any(record.last for record in history_of(_saved(place).history))
            return None if ended else place.directory
    return None


def newest(path: str) -> LoadedCheckpoint | None:
    """Return the newest complete checkpoint, or None.

    A damaged checkpoint causes a warning that names it, and an older one of the same run is used.

    Raises ValueError: all checkpoints are damaged. The message names each.
    """
    damaged: list[str] = []
    run: str | None = None
    for place in places(path):
        if run not in (None, place.run) or not place.is_written():
            continue  # it belongs to another fit, or is incomplete
        try:
            found = _read(place)
        except (ValueError, OSError) as error:
            run = place.run
            damaged.append(_described(place, error))
            continue
        if damaged:
            warn(
                f"{'; '.join(damaged)}. The fit goes on from the checkpoint before, of epoch "
                f"{len(found.history)}",
                UserWarning,
                stacklevel=2,
            )
        return found
    if damaged:
        raise ValueError(
            f"no checkpoint in {path} is whole, so that the fit cannot go on: {'; '.join(damaged)}"
        )
    return None


def _described(place: CheckpointDir, error: Exception) -> str:
    """Return the message of an error; for an error of the file system also its class."""
    if isinstance(error, ValueError | FileNotFoundError):
        return str(error)
    return f"{place.directory} cannot be read ({type(error).__name__}: {error})"


def _read(place: CheckpointDir) -> LoadedCheckpoint:
    saved = _saved(place)
    try:
        history = history_of(saved.history)
        if not isinstance(saved.table, TableSpec | None):
            raise ValueError("its table is none")
        if not isinstance(saved.last, SnapshotFiles) or not isinstance(
            saved.best, SnapshotFiles | None
        ):
            raise ValueError("its snapshots are none")
        if not isinstance(saved.within, EpochProgress | None) or (
            type(saved.interim) is not (type(None) if saved.within is None else SnapshotFiles)
        ):
            raise ValueError("its snapshot within an epoch is none")
        if not history and saved.within is None:
            raise ValueError("it has no epochs")
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{place.directory} is damaged: {error}") from error
    last = _kept(place, saved.last, saved.table)
    best = None if saved.best is None else _kept(place, saved.best, saved.table)
    interim = None
    if saved.within is not None and saved.interim is not None:
        interim = EpochSnapshot(saved.within, _kept(place, saved.interim, saved.table))
    return LoadedCheckpoint(place, saved.subject, history, last, best, interim)


def _kept(place: CheckpointDir, stored: SnapshotFiles, table: TableSpec | None) -> Snapshot:
    """Read a snapshot, whatever shards wrote it."""
    pieces = []
    for parts in stored.parts:
        pieces.append([_piece(place, part, stored.version) for part in parts])
    placement = Placement(tuple(stored.cuts.tolist()), 1 if table is None else table.width)
    try:
        return joined(pieces, placement, table)
    except (ValueError, IndexError) as error:
        raise ValueError(
            f"{place.directory} is damaged: its files do not go together ({error})"
        ) from error


def _piece(place: CheckpointDir, part: StoredFile, version: int) -> Snapshot:
    arrays = read_part(place.directory, part)
    values, ids = arrays.get("values"), arrays.get("ids")
    if (
        values is None or ids is None or values.ndim != 2 or values.dtype.kind != "f"
        or ids.dtype != np.int64 or ids.ndim != 2 or len(ids) != 2
    ):  # fmt: skip
        raise ValueError(f"{place.directory} is damaged: {part.name} holds no snapshot")
    return Snapshot(values, version, ids)
