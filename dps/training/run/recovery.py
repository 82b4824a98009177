"""After the loss of a worker: where a fit continues, and on what data.

Ranks and shards belong to a generation. When one of them is lost, the generation ends. The next one
begins after the last closed epoch, with the remaining workers and new memory. Steps after that
epoch are repeated, so each row of a closed epoch counts once. A frozen rank of the old generation
wakes up in a window that was stopped and that no rank reads.

The state is read from the shards; if a shard's process has died, from the memory that it left, as
long as its host lives. Otherwise the copy is used that the client takes every few seconds.
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import replace

from dps.cluster.base import Cluster
from dps.data.survey.rows import DataSummary
from dps.errors import ClusterError, DPSError, ServerLostError, WorkerLostError
from dps.training.job import Job
from dps.training.position import EpochSnapshot, Position
from dps.training.progress import Progress
from dps.training.run.loss import Loss

_log = logging.getLogger("dps")


#: Seconds per call in which the state of a failed fit is read.
_LAST_LOOK_SECONDS = 10.0


class Recovery:
    """The losses of a fit, and what remains after them.

    most: largest number of losses; None: unlimited.
    fruitless: largest number of consecutive losses without progress, which suggest that the fit
        itself kills workers.
    """

    def __init__(self, cluster: Cluster, most: int | None, fruitless: int) -> None:
        self._cluster, self._most, self._most_fruitless = cluster, most, fruitless
        self.losses: list[Loss] = []
        self._fruitless = 0
        self._unsaid = False

    def while_loading(self, epoch: int) -> list[Loss]:
        """Return the losses since the last call, before `epoch` began."""
        known = sum(loss.loading for loss in self.losses)
        new = [Loss(what, epoch, 0, 0, s, True) for what, s in self._cluster.lost[known:]]
        self.losses += new
        if new and self._most is not None and len(self.losses) > self._most:
            raise WorkerLostError(new[-1].what)
        return new

    def position(self, progress: Progress, seconds: float | None = None) -> Position:
        """Return the position of a fit whose generation has ended with an error.

        seconds: per call, if fewer than usual; then no callback runs.
        """
        if progress.session is not None:
            try:
                return progress.read_after_death(self._cluster, seconds, report=seconds is None)
            except (ServerLostError, ClusterError, LookupError) as lost:
                _log.warning("%s: the client's copy is used", lost)
        return progress.copied or progress.job.position

    def last_known(self, error: BaseException, progress: Progress) -> Position:
        """Return the last known position of a fit that cannot continue, without waiting.

        A shard whose process does not answer is not asked again.
        """
        silent = isinstance(error, ClusterError | ServerLostError) or progress.has_shard(
            getattr(error, "worker", None)
        )
        if progress.session is not None and not silent:
            with contextlib.suppress(Exception):  # the first error is raised
                return progress.read_after_death(self._cluster, _LAST_LOOK_SECONDS, report=False)
        return progress.copied or progress.job.position

    def after(
        self, error: DPSError, job: Job, summary: DataSummary, position: Position, closed: int
    ) -> tuple[Job, DataSummary]:
        """Return the job that continues after an error that names lost workers.

        closed: number of closed epochs.
        Returns the position from which the fit continues, and the share of rows that remain.
        Raises DPSError: nothing remains to continue with.
        """
        began = time.monotonic()
        if closed > len(job.done) or position.is_after(job.position):
            self._fruitless = 0
        elif not self._cluster.is_retired(error.worker):
            self._fruitless += 1
        job = replace(job, position=position)
        if self._fruitless > self._most_fruitless:
            error.message += (
                f"; {self._fruitless} losses in a row without progress: does the model, or "
                "the data, end the process?"
            )
            raise error
        if self._most is not None and len(self.losses) >= self._most:
            error.message += f"; dps.max_losses={self._most}"
            raise error
        gone = self._cluster.end_generation(drop=job.execution.drops_lost_data)
        dropped = 0
        if gone:
            first = len(summary.rows)
            rows = tuple(0 if n in gone else rows for n, rows in enumerate(summary.rows))
            behind = tuple(
                0 if first + n in gone else rows for n, rows in enumerate(summary.validation)
            )
            dropped = summary.total - sum(rows)
            if not any(rows):
                error.message += "; it had all remaining rows, and they cannot be computed again"
                raise error
            summary = replace(summary, rows=rows, validation=behind)
        loss = Loss(
            str(error), closed + 1, closed - len(job.done), dropped,
            time.monotonic() - began,
        )  # fmt: skip
        self.losses.append(loss)
        self._unsaid = True
        return job, summary

    def cannot_go_on(self, error: ValueError) -> Exception:
        """Return the error to raise if no plan can be made after losses, else the same error."""
        if not self.losses:
            return error
        return ClusterError(f"{self.losses[-1].what}, and the fit cannot go on: {error}")

    def planned(self, begun: EpochSnapshot | None) -> list[Loss]:
        """Log and return the loss after which a generation was planned."""
        if not self._unsaid:
            return []
        self._unsaid = False
        if begun is not None:
            self.losses[-1] = replace(self.losses[-1], steps=begun.within.steps)
        _log.warning("%s", self.losses[-1].line())
        return self.losses[-1:]
