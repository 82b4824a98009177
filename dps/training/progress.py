"""The progress of a fit over all its generations.

The current generation updates it. Recovery, checkpoints and callbacks read it, also after that
generation has failed: the state is then read from the shards, or else the client's copy is used.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dps._warned import warn
from dps.server.group.session import Check, Local, Session, Stores
from dps.server.shard import ShardStatus
from dps.server.store.snapshots import Snapshot
from dps.training.epochs.records import EpochRecord
from dps.training.job import Job
from dps.training.position import EpochProgress, EpochSnapshot, Position

if TYPE_CHECKING:
    from dps.cluster.base import Cluster
    from dps.errors import ReplicaError
    from dps.training.plan.plan import Plan
    from dps.training.run.events import FitEvents

_log = logging.getLogger("dps")

#: Closed epochs whose records a window keeps; they are fetched several times per second.
HISTORY = 1 << 16


class Progress:
    """The progress of a fit.

    history: records of all closed epochs.
    copied: the client's copy of the state, if it is newer than the generation's start, else None.
    remote: whether shards are in other processes, which may die alone.
    asked_to_end: whether a callback has asked for the end of the fit while the state was read after
        a loss.
    failure: the place where the user's code has failed.
    interrupted: the exception that ends the fit, whatever fails while it ends.
    """

    def __init__(self, job: Job, events: FitEvents | None) -> None:
        self._events = events
        self.begin(job)

    def begin(self, job: Job) -> None:
        """Begin a generation at the position of a job."""
        self.job = job
        self.history: list[EpochRecord] = list(job.done)
        self.asked_to_end = False
        self.failure: ReplicaError | None = None
        self.interrupted: BaseException | None = None
        self.copied: Position | None = None
        self.session: Session | None = None
        #: The session to read from, see `Session.near`.
        self.near: Session | None = None
        self.remote = False
        self._plan: Plan | None = None
        #: The window's note of the last snapshot within an epoch, see `Window.interims`.
        self._interim: NDArray[np.float64] | None = None

    def serve(self, plan: Plan, session: Session) -> None:
        """Follow the shards of the generation."""
        self._plan, self.session, self.near = plan, session, session.near()
        # Computed now, since reading after a death replaces the endpoints.
        self.remote = not any(isinstance(shard.endpoint, Local) for shard in session.shards)

    @property
    def closed(self) -> int:
        """Number of closed epochs."""
        return len(self.history)

    @property
    def stores(self) -> Stores:
        """The shards of the current generation."""
        assert self.session is not None
        return self.session.server

    def has_shard(self, worker: str | None) -> bool:
        """True if a worker in another process has a shard."""
        return self.remote and self._plan is not None and worker in self._plan.shards

    def take_in(self, check: Check | None = None) -> tuple[ShardStatus, list[EpochRecord]]:
        """Fetch the status of the group and the epochs that were closed since the last call."""
        assert self.near is not None
        status = self.near.status(self.closed - len(self.job.done), check)
        self._interim = status.interim
        records = self._in_order([EpochRecord.from_row(row) for row in status.records])
        self.history += records
        if self._events is not None:
            self._events.closed(records)
        for record in records:
            _log.info("%s", record.line())
        return status, records

    def _in_order(self, records: list[EpochRecord]) -> list[EpochRecord]:
        """Return the records without those that stand in the place of older ones."""
        assert self._plan is not None
        first = self.closed + 1
        lost = [at for at, record in enumerate(records) if record.epoch != first + at]
        for at in lost:
            records[at] = EpochRecord.unknown(first + at, len(self._plan.ranks))
        if lost:
            warn(
                f"the records of {len(lost)} epochs (from {first + lost[0]} to {first + lost[-1]}) "
                f"are lost, and NaN in history_: more than {HISTORY} epochs were closed between "
                "two fetches of them. The model is that of the last epoch all the same",
                UserWarning,
                stacklevel=2,
            )
        return records

    @property
    def within(self) -> EpochProgress | None:
        """Progress at the last snapshot within the current epoch, or None."""
        said, closed = self._interim, self.closed - len(self.job.done)
        if said is None or said[0, 0] != closed or self._plan is None:
            return None
        return EpochProgress.of(said, self._plan)

    @property
    def is_further(self) -> bool:
        """True if the fit is further than the client's copy."""
        copied, within = self.copied or self.job.position, self.within
        return self.closed > copied.epochs or (within is not None and within.steps > copied.steps)

    def position(self, check: Check | None = None) -> Position:
        """The position after the last epoch whose record has arrived.

        Raises LookupError: the fit is further already.
        """
        began, done = self.job.position, len(self.job.done)
        interim = began.interim if self.closed == done else None
        if self.near is not None and (within := self.within) is not None:
            # A newer snapshot has replaced it, or none is left.
            with contextlib.suppress(LookupError):
                snapshot = self.near.server.snapshot(self.closed - done, check, within.steps)
                interim = EpochSnapshot(within, snapshot)
        if not self.history:
            return Position(began.kept, interim=interim)
        kept, best = self.snapshot(self.closed, check), self.history[-1].kept
        if self.history[-1].full_batch:  # its snapshot has no optimizer state
            self.job.optimizer.initialize(kept.state)
        before = self.snapshot(best, check) if best < self.closed else None
        return Position(kept, tuple(self.history), before, interim)

    def snapshot(self, epochs: int, check: Check | None = None) -> Snapshot:
        """Return the state after `epochs` epochs."""
        began, done = self.job.position, len(self.job.done)
        if epochs < done:
            assert began.best is not None
            return began.best
        if epochs == done:
            return began.kept
        if self.copied is not None and self.copied.epochs == epochs:
            return self.copied.kept
        assert self.near is not None
        return self.near.server.snapshot(epochs - done, check)

    def reported(self, check: Check | None = None) -> Snapshot | None:
        """The parameters to report after the epochs so far; None if the fit is further."""
        try:
            return self.job.reported(self.snapshot(self.closed, check))
        except LookupError:
            return None

    def read_after_death(
        self, cluster: Cluster, timeout: float | None = None, *, report: bool = True
    ) -> Position:
        """Return the position after an error, for which the remaining replicas stop.

        timeout: seconds per call, if fewer than usual.
        report: whether callbacks get the epochs that were closed since they were last called.
        """
        session = self.session
        assert session is not None
        if timeout is not None:
            server = replace(session.server, timeout=min(timeout, session.server.timeout))
            session = replace(session, server=server)
        session, check = cluster.read_after_death(session)
        self.session, self.near = session, session.near()
        session.stop(check)
        _, records = self.take_in(check)
        self._call_back(records if report else ())
        return self.position(check)

    def _call_back(self, records: Sequence[EpochRecord]) -> None:
        if records and self.job.on_epochs is not None:
            self.asked_to_end = self.job.on_epochs(records, lambda: None)
