"""Supervision of a fit's replicas until they end, and the error that ended them."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace

from dps.cluster.base import Running, grace
from dps.errors import (
    NonFiniteError,
    ReplicaError,
    ServerLostError,
    StalledError,
    StoppedError,
    WindowError,
    WorkerLostError,
)
from dps.server.group.window import PROGRESS
from dps.server.memory.host import host_id
from dps.server.shard import ShardStatus
from dps.server.store.snapshots import Snapshot
from dps.training.checkpoint.writer import Checkpoints
from dps.training.job import FitResult
from dps.training.plan.plan import Plan
from dps.training.progress import Progress
from dps.training.replica.activity import RankActivity
from dps.training.replica.replica import Outcome
from dps.training.replica.user_errors import with_place
from dps.training.run.joining import Joining
from dps.training.run.mode_choice import Choosing

_log = logging.getLogger("dps")

_TICK = 0.25  # seconds between looks at a running fit
_CHECK_EVERY = 0.5  # seconds between questions to the scheduler
#: Seconds in which workers must answer after an interrupt.
ENDING_SECONDS = 5.0
_HEAVY = 16 << 20  # bytes of a model whose training memory is freed before it is fetched
#: Seconds between the client's copies of a fit, and the least ratio of that time to a copy's own
#: time.
_COPY_EVERY, _COPY_SHARE = 5.0, 100


class Watcher:
    """Supervises replicas until they end."""

    def __init__(
        self,
        progress: Progress,
        plan: Plan,
        running: Running,
        choosing: Choosing,
        joining: Joining,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        assert progress.session is not None
        assert progress.near is not None
        self.progress, self._near = progress, progress.near
        self._job, self._plan, self._session = progress.job, plan, progress.session
        self._choosing, self._joining = choosing, joining
        self._checkpoints = checkpoints
        self._unshared = tuple(shard.card.unshared for shard in self._session.shards)
        self._running = running
        self._copies = progress.remote
        self._due = time.monotonic() + _COPY_EVERY
        self._progress: dict[int, tuple[tuple[int, ...], float]] = {}
        # Counters of the ranks' work and when they last changed; counters of their looks while
        # waiting, and when those last changed.
        self._own: list[list[int]] = []
        self._own_since = time.monotonic()
        self._waits: dict[int, tuple[int, float]] = {}

    def run(self, ending: Callable[[], None]) -> FitResult | None:
        """Wait for the end and return the result, also of an interrupted fit.

        None if the fit continues in another mode or with more workers.
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
            self._hurry(error)
            self._stop()
            self._fetch()
            if not self.progress.history:
                raise
            return self._result(error)
        self._fetch()
        if self._job.position.params.nbytes > _HEAVY:
            cards = [shard.card for shard in self._session.shards]
            if all(card.host == host_id() and card.store.path for card in cards):
                self.progress.copied = None  # files of this host outlive the processes
            self._session.server.rest(self._running.check)
        return self._result(None)

    def _hurry(self, error: BaseException) -> None:
        """Make an error end the fit whatever else fails; workers have little time to answer."""
        self.progress.interrupted = error
        server = self._session.server
        server = replace(server, timeout=min(server.timeout, ENDING_SECONDS))
        self._session = self.progress.session = replace(self._session, server=server)

    def _stop(self) -> None:
        self._session.stop(self._running.check)
        self._await_replicas()

    def _watch(self) -> bool:
        """Wait for the end; True if only this generation ends."""
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
            closed = self.progress.closed
            if self._fetch():
                self._stop()
                return False
            now_closed, history = self.progress.closed, self.progress.history
            if self._choosing.should_end(now_closed, self._check) or (
                now_closed > closed and self._joining.should_end(history)
            ):
                self._stop()
                return not (self._fetch() or (history and history[-1].last))
        self._raise_first_error()
        return False

    def _fetch(self) -> bool:
        """Fetch newly closed epochs, and check that every rank makes progress.

        Returns whether the fit should end.
        """
        progress = self.progress
        status, records = progress.take_in(self._check)
        self._check_progress(status)
        if self._copies and time.monotonic() >= self._due and progress.is_further:
            self._copy()
        if self._checkpoints is not None:
            self._checkpoints.look(progress, self._running.check)
        on_epochs = self._job.on_epochs
        return bool(records) and on_epochs is not None and on_epochs(records, self._reported)

    def _reported(self) -> Snapshot | None:
        return self.progress.reported(self._running.check)

    def _copy(self) -> None:
        """Copy the state of the fit, taking a small share of the time."""
        began = time.monotonic()
        with contextlib.suppress(LookupError):  # the fit is further already
            self.progress.copied = self.progress.position(self._check)
        now = time.monotonic()
        self._due = now + max(_COPY_EVERY, _COPY_SHARE * (now - began))

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
        # A waiting rank says so. The silent rank is the one that others wait for.
        last = min(running, key=lambda rank: (self._progress[rank][1], rank))
        timeout = self._job.execution.timeout
        if now - self._progress[last][1] > timeout:
            silent = [rank for rank in running if now - self._progress[rank][1] > timeout / 2]
            self._running.abandon(silent)
            self._running.raise_if_unresponsive(self._plan.ranks[last].worker)
            raise StalledError(
                f"no progress for {timeout:g} s; is the worker frozen or overloaded? "
                "raise dps.timeout of dask.config if a step may take longer",
                worker=self._plan.ranks[last].worker,
                rank=last,
                step=status.steps[last] + 1,
            )

    def _check_that_one_moves(self, status: ShardStatus, running: list[int], now: float) -> None:
        """Raise if all replicas wait for too long, which means that they disagree."""
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
        # A rank that works does not wait, whatever the others do meanwhile.
        for rank, waits in enumerate(self._near.waits(self._check)):
            if rank not in self._waits:  # the first look cannot show a change
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
                f"is there a mode of your own whose ranks disagree? Progress by rank: {said}",
                step=min(status.steps) + 1,
            )

    def _raise_first_error(self) -> None:
        real = [(o.error, o) for o in self._failed() if not isinstance(o.error, StoppedError)]
        if not real:
            return
        self._running.check()
        for error, _ in real:
            if error.worker is None and error.rank is not None:  # a rank that others waited for
                error.worker = self._plan.ranks[error.rank].worker
        # A lost worker explains more than the errors of its peers.
        if lost := [error for error, _ in real if isinstance(error, _LOST)]:
            self._running.raise_if_unresponsive(lost[0].worker)
        error, first = min(real, key=lambda one: (_RANKING.get(type(one[0]), 0), one[1].rank))
        if isinstance(error, StalledError) and error.rank is not None:
            self._running.abandon([error.rank])
        if isinstance(error, WindowError) and (why := next(filter(None, self._unshared), None)):
            error.message += f"; it has no file of shared memory: {why}"
        if first.cause is None:
            raise error
        if isinstance(error, ReplicaError):
            self.progress.failure = error
            raise with_place(first.cause, error)
        raise error from first.cause

    def _check(self) -> None:
        """Raise if a worker has been lost; a shard that is being asked may be on it."""
        self._running.check()
        if any(isinstance(outcome.error, _LOST) for outcome in self._failed()):
            self._raise_first_error()

    def _failed(self) -> list[Outcome]:
        """Return the outcomes of replicas that ended with an error, in rank order."""
        outcomes: dict[int, Outcome | None] = self._running.outcomes()
        return [each for _, each in sorted(outcomes.items()) if each is not None]

    def _await_replicas(self) -> None:
        most = math.inf if self.progress.interrupted is None else ENDING_SECONDS
        deadline = time.monotonic() + min(grace(), most)
        while not self._running.wait(0.1) and time.monotonic() < deadline:
            continue

    def _result(self, error: BaseException | None) -> FitResult:
        progress, check = self.progress, self._running.check
        if self._checkpoints is not None:
            self._checkpoints.end(progress, check)
        history = progress.history
        return FitResult.of(
            self._job, progress.snapshot(history[-1].kept, check), history, self._plan,
            activity=self._activity(), error=error, unshared=self._unshared,
        )  # fmt: skip

    def _activity(self) -> list[RankActivity]:
        """Return the activity of each replica that has begun."""
        counts = self._near.counts(self._running.check)
        return [
            RankActivity.of(rank, part.worker, [of_shard[rank] for of_shard in counts])
            for rank, part in enumerate(self._plan.ranks)
            if counts[0][rank].any()
        ]


#: Priority of simultaneous errors: causes before consequences.
_RANKING: dict[type, int] = {ServerLostError: 1, WorkerLostError: 1, StalledError: 2}
#: Errors that may be consequences of a lost worker.
_LOST = tuple(_RANKING)
