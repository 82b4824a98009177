"""Watching the replicas of a fit to their end, and what it ended with."""

from __future__ import annotations

import contextlib
import logging
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dps.cluster.base import Cluster, Running, grace
from dps.errors import (
    NonFiniteError,
    ReplicaError,
    ServerLostError,
    StalledError,
    StoppedError,
    WindowError,
    WorkerLostError,
)
from dps.server.group.post_mortem import DeadShard
from dps.server.group.session import Check, Local, Session, Stores
from dps.server.group.window import PROGRESS
from dps.server.memory.host import host_id
from dps.server.shard import ShardStatus
from dps.server.store.snapshots import Snapshot
from dps.training.checkpoint.writer import Checkpoints, FitState
from dps.training.epochs.records import EpochRecord
from dps.training.job import FitResult, Job, Trained
from dps.training.plan.plan import Plan
from dps.training.position import EpochProgress, EpochSnapshot, Position
from dps.training.replica.activity import RankActivity
from dps.training.replica.replica import Outcome
from dps.training.replica.user_errors import with_place
from dps.training.run.events import FitEvents
from dps.training.run.joining import Joining
from dps.training.run.launch import HISTORY
from dps.training.run.mode_choice import Choosing

_log = logging.getLogger("dps")

_TICK = 0.25  # seconds between looks at a running fit
_CHECK_EVERY = 0.5  # seconds between questions to the scheduler
_HEAVY = 16 << 20  # bytes of a model whose training memory is given back before it is fetched
#: Seconds between copies of a fit that the client takes, and the times that one takes in between.
_MIRROR_EVERY, _MIRROR_SHARE = 5.0, 100


class Watcher:
    """Watches replicas to their end."""

    def __init__(
        self,
        job: Job,
        plan: Plan,
        session: Session,
        running: Running,
        fit_events: FitEvents | None,
        choosing: Choosing,
        joining: Joining,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self._job = job
        self._choosing, self._joining = choosing, joining
        self._events = fit_events
        self._checkpoints = checkpoints
        self._plan = plan
        self._session = session
        self._unshared = tuple(shard.card.unshared for shard in session.shards)
        self._running = running
        self._history = list(job.done)
        #: What the window says of the last snapshot within an epoch, see `Window.interims`.
        self._interim: NDArray[np.float64] | None = None
        #: Where the user's code has failed.
        self.failure: ReplicaError | None = None
        #: Whether a callback has asked for the fit's end while the state was read after a loss.
        self.asked_to_end = False
        #: The client's own copy of where the fit was.
        self.mirrored: Position | None = None
        self._mirrors = not any(isinstance(shard.endpoint, Local) for shard in session.shards)
        self._due = time.monotonic() + _MIRROR_EVERY
        self._progress: dict[int, tuple[tuple[int, ...], float]] = {}
        # What ranks count of their own work, and since when; how often each has looked around as
        # it waited, and when it last did.
        self._own: list[list[int]] = []
        self._own_since = time.monotonic()
        self._waits: dict[int, tuple[int, float]] = {}

    @property
    def closed(self) -> int:
        """Epochs of the fit that have been closed."""
        return len(self._history)

    def has_shard(self, worker: str | None) -> bool:
        """Whether a shard is on a worker of another process."""
        return self._mirrors and worker in self._plan.shards

    def read_after_death(
        self, cluster: Cluster, timeout: float | None = None, *, report: bool = True
    ) -> Position:
        """Where the fit has got to, after an error; replicas that are left stop.

        timeout: seconds that a call may take, if fewer than by default.
        report: whether callbacks get the epochs that have been closed since they were called.
        """
        if timeout is not None:
            server = self._session.server
            server = replace(server, timeout=min(timeout, server.timeout))
            self._session = replace(self._session, server=server)
        self._session = cluster.read_after_death(self._session)
        self._session.stop()
        _, records = self._take_in()
        if records and report and self._job.on_epochs is not None:
            self.asked_to_end = self._job.on_epochs(records, lambda: None)
        return self.position()

    def run(self, ending: Callable[[], None]) -> FitResult | None:
        """Wait for the end; the result, also of a fit that was interrupted or overflowed.

        None where the fit is to go on in another mode, or with more workers, from where it is.
        """
        try:
            return self._run(ending)
        except ServerLostError as error:
            self._running.raise_if_unresponsive(error.worker)
            raise
        finally:
            if self._checkpoints is not None:
                self._checkpoints.close()

    def _run(self, ending: Callable[[], None]) -> FitResult | None:
        try:
            if self._watch():
                return None
            ending()
        except (KeyboardInterrupt, NonFiniteError) as error:
            ending()
            self._stop()
            self._fetch()
            if not self._history:
                raise
            return self._result(error)
        self._fetch()
        if self._job.position.params.nbytes > _HEAVY:
            cards = [shard.card for shard in self._session.shards]
            if all(card.host == host_id() and card.store.path for card in cards):
                self.mirrored = None  # files of this host outlive their processes
            self._session.server.rest(self._running.check)
        return self._result(None)

    def _stop(self) -> None:
        self._session.stop(self._running.check)
        self._await_replicas()

    def _watch(self) -> bool:
        """Wait for the end; whether it is that of this generation only."""
        began = checked = time.monotonic()
        for rank in range(len(self._plan.ranks)):
            self._progress[rank] = ((), began)
        while not self._running.wait(_TICK):
            self._raise_first_error()
            now = time.monotonic()
            if now - checked >= _CHECK_EVERY:
                self._running.check()
                checked = now
            elif self._job.on_epochs is None or now - began < _TICK:
                continue
            closed = self.closed
            if self._fetch():
                self._stop()
                return False
            if self._choosing.leaves(self.closed, self._check) or (
                self.closed > closed and self._joining.leaves(self._history)
            ):
                self._stop()
                return not (self._fetch() or (self._history and self._history[-1].last))
        self._raise_first_error()
        return False

    def _fetch(self) -> bool:
        """Take in the epochs that have been closed, and see that every rank gets on.

        Whether the fit is to end.
        """
        status, records = self._take_in(self._check)
        self._check_progress(status)
        if self._mirrors and time.monotonic() >= self._due and self._is_further():
            self._mirror()
        if self._checkpoints is not None:
            self._checkpoints.look(self._reached())
        on_epochs = self._job.on_epochs
        return bool(records) and on_epochs is not None and on_epochs(records, self._reported)

    def _take_in(self, check: Check | None = None) -> tuple[ShardStatus, list[EpochRecord]]:
        since = len(self._history) - len(self._job.done)
        status = self._session.status(since, check)
        self._interim = status.interim
        records = self._in_order([EpochRecord.from_row(row) for row in status.records])
        self._history += records
        if self._events is not None:
            self._events.closed(records)
        for record in records:
            _log.info("%s", record.line())
        return status, records

    def _within(self) -> EpochProgress | None:
        """Of the last snapshot within the epoch at work; None where there is none."""
        said, closed = self._interim, len(self._history) - len(self._job.done)
        return (
            EpochProgress.of(said, self._plan)
            if said is not None and said[0, 0] == closed
            else None
        )

    def _reached(self) -> FitState:
        server, check = self._session.server, self._running.check
        return FitState(self._job, server, self._history, self._within(), check)

    def _is_further(self) -> bool:
        """Whether the fit has got on since the client's copy."""
        copied, within = self.mirrored or self._job.position, self._within()
        return len(self._history) > copied.epochs or (
            within is not None and within.steps > copied.steps
        )

    def _mirror(self) -> None:
        """Copy where the fit is, in a small part of the time."""
        began = time.monotonic()
        with contextlib.suppress(LookupError):  # it is further already
            self.mirrored = self.position(self._check)
        now = time.monotonic()
        self._due = now + max(_MIRROR_EVERY, _MIRROR_SHARE * (now - began))

    def _near(self) -> Stores:
        """The shards, of which those are read in their memory that have it on this host."""
        ends = [
            shard.endpoint
            if isinstance(shard.endpoint, Local) or (here := DeadShard.find(shard.card)) is None
            else Local(here)
            for shard in self._session.shards
        ]
        return replace(self._session.server, shards=tuple(ends))

    def _in_order(self, records: list[EpochRecord]) -> list[EpochRecord]:
        """The records, without those that stand where older ones were wanted."""
        first = len(self._history) + 1
        lost = [at for at, record in enumerate(records) if record.epoch != first + at]
        for at in lost:
            records[at] = EpochRecord.unknown(first + at, len(self._plan.ranks))
        if lost:
            warnings.warn(
                f"the records of {len(lost)} epochs (from {first + lost[0]} to {first + lost[-1]}) "
                f"are lost, and NaN in history_: more than {HISTORY} epochs were closed between "
                "two fetches of them. The model is that of the last epoch all the same",
                UserWarning,
                stacklevel=2,
            )
        return records

    def _check_progress(self, status: ShardStatus) -> None:
        now = time.monotonic()
        ended = self._running.outcomes()
        for rank, progress in enumerate(status.progress):
            if self._progress[rank][0] != progress:
                self._progress[rank] = (progress, now)
        running = [rank for rank in self._progress if rank not in ended]
        if not running:
            return
        if unclaimed := [rank for rank in running if not status.claimed[rank]]:
            for rank in self._running.to_begin(unclaimed):
                self._progress[rank] = ((), now)
        else:
            self._check_that_one_moves(status, running, now)
        # A rank that waits says so; the silent one is the one that others wait for.
        last = min(running, key=lambda rank: (self._progress[rank][1], rank))
        timeout = self._job.execution.timeout
        if now - self._progress[last][1] > timeout:
            silent = [rank for rank in running if now - self._progress[rank][1] > timeout / 2]
            self._running.leave(silent)
            self._running.raise_if_unresponsive(self._plan.ranks[last].worker)
            raise StalledError(
                f"no progress for {timeout:g} s; is the worker frozen or overloaded? "
                "raise dps.timeout of dask.config if a step may take longer",
                worker=self._plan.ranks[last].worker,
                rank=last,
                step=status.steps[last] + 1,
            )

    def _check_that_one_moves(self, status: ShardStatus, running: list[int], now: float) -> None:
        """Raise if all replicas wait, and none has done anything for long: they disagree."""
        names, timeout = (*PROGRESS, "STEPS"), self._job.execution.timeout
        own = [
            [n for name, n in zip(names, each, strict=True) if name not in ("BEAT", "WAITS")]
            for each in status.progress
        ]
        if own != self._own:
            self._own, self._own_since = own, now
            self._waits = {}
        if now - self._own_since < timeout / 2:
            return
        # A replica that works waits nowhere, whatever the others do meanwhile.
        for rank, waits in enumerate(self._session.waits(self._check)):
            if rank not in self._waits:  # the first look says nothing of a change
                self._waits[rank] = waits, -math.inf
            elif waits != self._waits[rank][0]:
                self._waits[rank] = waits, now
        if now - self._own_since > timeout and all(
            now - self._waits[rank][1] < timeout / 2 for rank in running
        ):
            said = "; ".join(
                f"{rank}: " + " ".join(map("{}={}".format, names, status.progress[rank]))
                for rank in running
            )
            raise StalledError(
                f"all replicas wait for each other, and none has made progress for {timeout:g} s: "
                f"is there a mode of your own whose ranks disagree? Their words are {said}",
                step=min(status.steps) + 1,
            )

    def _raise_first_error(self) -> None:
        outcomes: dict[int, Outcome] = self._running.outcomes()
        real = [
            (o.error, o)
            for _, o in sorted(outcomes.items())
            if o.error is not None and not isinstance(o.error, StoppedError)
        ]
        if not real:
            return
        self._running.check()
        for error, _ in real:
            if error.worker is None and error.rank is not None:  # a rank that others waited for
                error.worker = self._plan.ranks[error.rank].worker
        # A worker that is gone explains what its peers say better than they do.
        if lost := [error for error, _ in real if isinstance(error, _LOST)]:
            self._running.raise_if_unresponsive(lost[0].worker)
        error, first = min(real, key=lambda one: (_RANKING.get(type(one[0]), 0), one[1].rank))
        if isinstance(error, StalledError) and error.rank is not None:
            self._running.leave([error.rank])
        if isinstance(error, WindowError) and (why := next(filter(None, self._unshared), None)):
            error.message += f"; it has no file of shared memory: {why}"
        if first.cause is None:
            raise error
        if isinstance(error, ReplicaError):
            self.failure = error
            raise with_place(first.cause, error)
        raise error from first.cause

    def _check(self) -> None:
        """Raise if anybody has been lost; while a shard is asked that may be the one."""
        self._running.check()
        outcomes: dict[int, Outcome] = self._running.outcomes()
        if any(isinstance(o.error, _LOST) for o in outcomes.values()):
            self._raise_first_error()

    def _await_replicas(self) -> None:
        deadline = time.monotonic() + grace()
        while not self._running.wait(0.1) and time.monotonic() < deadline:
            continue

    def _snapshot(
        self, epochs: int, check: Check | None = None, server: Stores | None = None
    ) -> Snapshot:
        """What was kept after so many epochs."""
        job, done = self._job, len(self._job.done)
        if epochs < done:
            assert job.position.best is not None
            return job.position.best
        if epochs == done:
            return job.position.kept
        if self.mirrored is not None and self.mirrored.epochs == epochs:
            return self.mirrored.kept
        return (server or self._session.server).snapshot(epochs - done, check)

    def position(self, check: Check | None = None) -> Position:
        """Where the fit has got to: after the last epoch whose record has come.

        Raises LookupError: it is further already.
        """
        history, done, server = self._history, len(self._job.done), self._near()
        interim = self._job.position.interim if len(history) == done else None
        if (within := self._within()) is not None:
            with contextlib.suppress(LookupError):  # there are newer ones, or nothing is left
                interim = EpochSnapshot(
                    within, server.snapshot(len(history) - done, check, within.steps)
                )
        if not history:
            return Position(self._job.position.kept, interim=interim)
        kept, best = self._snapshot(len(history), check, server), history[-1].kept
        if history[-1].full_batch:  # whose snapshot has no state
            self._job.optimizer.initialize(kept.values[1:])
        before = self._snapshot(best, check, server) if best < len(history) else None
        return Position(kept, tuple(history), before, interim)

    def _reported(self) -> Trained | None:
        """What is to be reported after the epochs so far, where it is still there."""
        try:
            kept = self._snapshot(len(self._history), self._running.check)
        except LookupError:
            return None
        return Trained.of(self._job, kept)

    def _result(self, error: BaseException | None) -> FitResult:
        job, history, check = self._job, self._history, self._running.check
        if self._checkpoints is not None:
            self._checkpoints.end(self._reached())
        return FitResult.of(
            job, self._snapshot(history[-1].kept, check), history, self._plan,
            activity=self._activity(), error=error, unshared=self._unshared,
        )  # fmt: skip

    def _activity(self) -> list[RankActivity]:
        outcomes: dict[int, Outcome] = self._running.outcomes()
        return [o.activity for _, o in sorted(outcomes.items()) if o.activity is not None]


#: Of several errors, the one that says most comes first: causes before consequences.
_RANKING: dict[type, int] = {ServerLostError: 1, WorkerLostError: 1, StalledError: 2}
#: What may come of a worker that is gone.
_LOST = tuple(_RANKING)
