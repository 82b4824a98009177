"""The checkpoints of one fit: when one begins, how it proceeds, and how it is completed.

Shards write their own files in threads of their processes. The trainer asks them for progress now
and then. Once all have written, a thread here writes the manifest and removes older checkpoints. A
failure causes one warning and never fails the fit.

Order: each file of a shard is written under a temporary name, flushed and renamed; then the
manifest likewise; then older checkpoints are removed. A crash at any point leaves the earlier
checkpoints complete.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dps._warned import warn
from dps.cluster.base import grace
from dps.errors import DPSError
from dps.files.directories import StoredFile, file_system
from dps.server.group.session import Check, Stores
from dps.server.placement import Placement
from dps.server.store.export import ExportRequest
from dps.server.store.snapshots import Snapshot
from dps.training.checkpoint import files
from dps.training.checkpoint.files import SnapshotFiles
from dps.training.checkpoint.paths import (
    BEST,
    LAST,
    WITHIN,
    CheckpointDir,
    clear,
    number_of_next,
    remove,
)
from dps.training.checkpoint.probing import probe
from dps.training.epochs.records import EpochRecord
from dps.training.job import Job
from dps.training.position import EpochProgress
from dps.training.progress import Progress

_log = logging.getLogger("dps")

#: Seconds before the first question to the shards; later ones are up to 40 times as far apart,
#: since each asks every shard.
_TICK = 0.005
#: Lowest acceptable rate in bytes per second; the end of a fit does not wait for a slower shard.
_SLOW = 10_000_000


@dataclass
class _Pending:
    """A checkpoint in the making."""

    place: CheckpointDir
    history: tuple[EpochRecord, ...]
    within: EpochProgress | None
    placement: Placement
    #: The answers of the shards by the name of the snapshot. This process writes what the client
    #: holds.
    asked: tuple[str, ...]
    own: dict[str, Snapshot]
    written: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    sealed: Future[None] | None = None

    def of_shards(self) -> dict[str, tuple[list[tuple[StoredFile, ...]], list[int]]]:
        """Files of all shards and their versions, by the name of the snapshot."""
        made: dict[str, tuple[list[tuple[StoredFile, ...]], list[int]]] = {}
        for at, name in enumerate(self.asked):
            of_name = [self.written[shard][at] for shard in sorted(self.written)]
            made[name] = [parts for parts, _ in of_name], [version for _, version in of_name]
        return made


class _Overtaken(Exception):
    """A shard has replaced the snapshot by a newer one before it was written."""


class Checkpoints:
    """Takes the checkpoints of a fit.

    job: the fit's first job, with `checkpoint`.
    stores: the shards that write.
    check: called while they are asked; raises to give up.
    Raises OSError: a shard cannot read what others write to the path.
    """

    def __init__(self, job: Job, stores: Stores, check: Check | None = None) -> None:
        assert job.execution.checkpoint is not None
        layout, given = job.model.layout, job.execution.checkpoint
        self._given, self._table, self._size = given, layout.table, layout.size
        nbytes = 2 * layout.size * job.model.dtype.itemsize * (1 + job.optimizer.state_rows)
        self._patience = job.execution.timeout + nbytes / _SLOW
        probe(given.path, stores, job.execution.timeout, check)
        self._next = CheckpointDir(
            given.path, number_of_next(given.path, given.lock.runs), given.run
        )
        self._every, self._keep = given.where.seconds, given.where.keep
        self._since = time.monotonic()
        self._last = len(job.done), 0  # epochs and steps that the last checkpoint covers
        self._pending: _Pending | None = None
        #: True if epochs are so short that a snapshot is replaced while a file of it is written.
        self._copied = False
        self._warned = False
        self._threads: list[threading.Thread] = []

    def look(self, progress: Progress, check: Check) -> None:
        """Begin a checkpoint if one is due, and proceed with the current one.

        check: called while shards are asked; raises to give up.
        """
        due = time.monotonic() - self._since >= self._every and self._is_new(progress)
        self._try(partial(self._step, due, progress, check))

    def renew(self) -> None:
        """Abandon the files that shards of an earlier generation were writing."""
        if self._pending is not None and self._pending.sealed is not None:
            self._pending = None
        else:
            self._give_up()

    def end(self, progress: Progress, check: Check) -> None:
        """Complete the current checkpoint, and take one of the fit's final state."""
        for due in (False, True):
            deadline = time.monotonic() + self._patience
            due = due and self._is_new(progress)
            self._try(partial(self._step, due, progress, check))
            pause = _TICK
            while self._pending is not None and time.monotonic() < deadline:
                time.sleep(pause)
                pause = min(1.5 * pause, 40 * _TICK)
                self._try(partial(self._step, False, progress, check))
            if self._pending is not None:
                self._pending = None
                self._failed(TimeoutError(f"it has taken {self._patience:.0f} s"))

    def _is_new(self, progress: Progress) -> bool:
        within = progress.within
        return (progress.closed, 0 if within is None else within.steps) > self._last

    def close(self) -> None:
        """Wait a moment for a manifest that is being written."""
        for thread in self._threads:
            thread.join(grace())

    def _start(self, function: Callable[..., None], *args: Any) -> Future[None]:
        """Call a function in a daemon thread, which cannot keep the process alive if it hangs."""
        future: Future[None] = Future()

        def run() -> None:
            try:
                function(*args)
                future.set_result(None)
            except OSError as error:
                future.set_exception(error)
            except Exception as error:  # file systems raise exceptions of their own
                future.set_exception(OSError(f"{type(error).__name__}: {error}"))

        thread = threading.Thread(target=run, name="dps-checkpoint", daemon=True)
        self._threads = [*(each for each in self._threads if each.is_alive()), thread]
        thread.start()
        return future

    def _try(self, step: Callable[[], None]) -> None:
        try:
            step()
        except _Overtaken:  # a checkpoint of a newer snapshot is due at once
            self._give_up()
            self._since, self._copied = -math.inf, True
        except DPSError as error:  # the trainer hears of it, too
            _log.info("a checkpoint was given up: %s", error)
            self._give_up()
        except Exception as error:  # includes MemoryError at a shard
            self._give_up()
            self._failed(error)

    def _step(self, due: bool, progress: Progress, check: Check) -> None:
        if self._pending is None and due:
            self._begin(progress, check)
        if self._pending is not None:
            self._advance(self._pending, progress.stores, check)

    def _begin(self, progress: Progress, check: Check) -> None:
        """Ask every shard to write its snapshots: the last, the best and one within the epoch."""
        job, stores = progress.job, progress.stores
        history, within = progress.history, progress.within
        done = len(job.done)
        epochs = {LAST: len(history)}
        if history and history[-1].kept < len(history):
            epochs[BEST] = history[-1].kept
        own = {
            name: job.position.kept if after == done else job.position.best
            for name, after in epochs.items()
            if after <= done
        }
        asked = [(name, (after - done, 0)) for name, after in epochs.items() if name not in own]
        if within is not None:
            asked.append((WITHIN, (len(history) - done, within.steps)))
        place = self._next
        self._next = place.after()
        self._since = time.monotonic()
        self._pending = _Pending(
            place, tuple(history), within, stores.placement, tuple(name for name, _ in asked),
            {name: kept for name, kept in own.items() if kept is not None},
        )  # fmt: skip
        for shard in range(len(stores.shards)):
            requests: list[ExportRequest] = [
                (when, partial(files.store, place.directory, files.part_names(name, shard)))
                for name, when in asked
            ]  # fmt: skip
            try:
                stores.write(shard, requests, self._copied, check)
            except LookupError as error:
                raise _Overtaken from error

    def _advance(self, pending: _Pending, stores: Stores, check: Check) -> None:
        for shard in range(len(stores.shards)):
            if shard not in pending.written:
                written = stores.written(shard, check)
                if written is None:
                    continue
                if written.overtaken:
                    raise _Overtaken
                if written.error is not None:
                    raise written.error
                pending.written[shard] = written.results
        if pending.sealed is None and len(pending.written) == len(stores.shards):
            pending.sealed = self._start(self._seal, pending)
        if pending.sealed is not None and pending.sealed.done():
            pending.sealed.result()
            steps = 0 if pending.within is None else pending.within.steps
            self._last, self._pending = (len(pending.history), steps), None
            _log.info("checkpoint of epoch %d: %s", self._last[0], pending.place.directory)

    def _seal(self, pending: _Pending) -> None:
        """Write the client's part and the manifest, then remove older checkpoints."""
        stored = {
            name: SnapshotFiles.of(pending.placement, parts, versions[0])
            for name, (parts, versions) in pending.of_shards().items()
        }
        for name, kept in pending.own.items():
            names = files.part_names(name, 0)
            parts, version = files.store(pending.place.directory, names, [kept])
            stored[name] = SnapshotFiles.of(Placement.of(self._size, 1), [parts], version)
        self._check_files(pending.place, stored.values())
        if self._given.lock.is_taken():
            raise OSError("another fit has taken over the path")
        files.write(
            pending.place, self._given.subject, pending.history, self._table, stored[LAST],
            stored.get(BEST), pending.within, stored.get(WITHIN),
        )  # fmt: skip
        clear(pending.place, self._keep, self._given.lock.runs)

    def _check_files(self, place: CheckpointDir, written: Iterable[SnapshotFiles]) -> None:
        """Check that this process sees the shards' files: their file system may be another one."""
        _, fs, root = file_system(place.directory)
        for part in (part for stored in written for parts in stored.parts for part in parts):
            try:
                found = fs.size(f"{root}/{part.name}")
            except FileNotFoundError:
                found = None
            if found not in (part.bytes, None):
                raise OSError(f"{part.name} has {found} bytes, and {part.bytes} were written")
            if found is None:
                raise OSError(
                    f"{part.name}, which a shard has written, is not seen here: give a path that "
                    "all workers share, on a network drive or in an object store"
                )

    def _give_up(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            self._start(remove, pending.place)

    def _failed(self, error: Exception) -> None:
        """Warn once; training continues."""
        told = f"a checkpoint could not be written to {self._given.path}: {error!r}"
        if self._warned:
            _log.info("%s", told)
            return
        self._warned = True
        warn(
            f"{told}. Training goes on, and will try again every {self._every:g} s",
            UserWarning,
            stacklevel=2,
        )
