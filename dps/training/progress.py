"""Progress of a fit: one record that outlives generations.

The generation at work feeds it. Recovery, checkpoints and callbacks read it, also when that
generation has ended with an error: then the state is read where the shards are, or the client's
copy counts. It knows neither deadlines nor replicas.
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

#: Closed epochs whose records a window keeps; they are fetched a few times a second.
HISTORY = 1 << 16


class Progress:
    """Progress of a fit.

    history: records of all closed epochs.
    copied: the client's copy of the state, newer than where the generation began; None: there is
        none.
    remote: whether there are shards in other processes, which may die alone.
    asked_to_end: whether a callback has asked for the fit's end while the state was read after a
        loss.
    failure: where the user's code has failed.
    interrupted: what ends the fit, whatever fails while it is brought to its end.
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
        # Asked for now: reading after a death replaces the endpoints.
        self.remote = not any(isinstance(shard.endpoint, Local) for shard in session.shards)

    @property
    def closed(self) -> int:
        """Epochs of the fit that have been closed."""
        return len(self.history)

    @property
    def stores(self) -> Stores:
        """The shards of the generation at work."""
        assert self.session is not None
        return self.session.server

    def has_shard(self, worker: str | None) -> bool:
        """True if a shard is on a worker of another process."""
        return self.remote and self._plan is not None and worker in self._plan.shards

    def take_in(self, check: Check | None = None) -> tuple[ShardStatus, list[EpochRecord]]:
        """The status of the group, and the epochs that have been closed since the last call."""
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
        """The records, without those that stand where older ones were wanted."""
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
        """Progress of the last snapshot within the current epoch; None if there is none."""
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
        """The position after the last epoch whose record has come.

        Raises LookupError: it is further already.
        """
        began, done = self.job.position, len(self.job.done)
        interim = began.interim if self.closed == done else None
        if self.near is not None and (within := self.within) is not None:
            with contextlib.suppress(LookupError):  # there are newer ones, or nothing is left
                snapshot = self.near.server.snapshot(self.closed - done, check, within.steps)
                interim = EpochSnapshot(within, snapshot)
        if not self.history:
            return Position(began.kept, interim=interim)
        kept, best = self.snapshot(self.closed, check), self.history[-1].kept
        if self.history[-1].full_batch:  # whose snapshot has no state
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
        """The parameters to report after the epochs so far; None where the fit is further."""
        try:
            return self.job.reported(self.snapshot(self.closed, check))
        except LookupError:
            return None

    def read_after_death(
        self, cluster: Cluster, timeout: float | None = None, *, report: bool = True
    ) -> Position:
        """The position after an error; the remaining replicas stop.

        timeout: seconds that a call may take, if fewer than by default.
        report: whether callbacks get the epochs that have been closed since they were called.
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
