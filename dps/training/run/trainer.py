"""One fit from its data to its result: plan, launch, watch, recover, collect.

Only this module waits for a fit as a whole. It reaches clusters, modes and models through their
interfaces.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from dps.cluster.base import Cluster
from dps.data.collections.partitions import Piece
from dps.data.exchange import count_rows
from dps.data.feed.held_out import HeldOut
from dps.data.survey.rows import DataSummary
from dps.errors import ClusterError, ServerLostError, WindowError, WorkerLostError
from dps.monitor.advice import no_shared_memory
from dps.server.group.session import Session
from dps.training.checkpoint.writer import Checkpoints
from dps.training.job import FitResult, Job
from dps.training.plan.holding_out import hold_out
from dps.training.plan.plan import Plan, make_plan, make_split, validating
from dps.training.position import Position
from dps.training.progress import Progress
from dps.training.replica.replica import run_replica
from dps.training.run.events import FitEvents
from dps.training.run.joining import Joining
from dps.training.run.launch import Launch, cut_rows, located
from dps.training.run.loss import Loss
from dps.training.run.mode_choice import Choosing
from dps.training.run.recovery import Recovery
from dps.training.run.solo import SoloFit, solo_rows
from dps.training.run.solved import solved
from dps.training.run.supervise import ENDING_SECONDS, Watcher

_log = logging.getLogger("dps")

#: Epochs of stochastic steps from which moving rows pays.
_EPOCHS_WORTH = 10


def train(
    job: Job,
    summary: DataSummary,
    cluster: Cluster,
    ending: Callable[[], None] = lambda: None,
) -> FitResult:
    """Train on data that the cluster has loaded.

    ending: called once training has ended, before the result is fetched.
    Raises DPSError: the fit failed before any epoch was closed, or no result is left.
    """
    if job.is_solved:
        result = solved(job, summary, cluster)
        ending()
        return result
    streamed = cluster.streamed()
    if streamed:
        _log.info(
            "%d of %d partitions are read while training", len(streamed), len(cluster.holders)
        )
    streamed = {number: whole for number, whole in streamed.items() if number < len(summary.rows)}
    if _exchanges(job):
        if streamed:
            raise ValueError(
                f"shuffle='global' exchanges rows in memory, and partition {min(streamed)} is not "
                "kept there: use shuffle=True, which mixes rows of all partitions of a worker, or "
                "exchange them before, as by X.shuffle of a dask dataframe"
            )
        summary = _exchange(job, summary, cluster)
    return _Fit(job, summary, cluster, streamed).run(ending)


class _Fit:
    """A fit as a sequence of generations.

    Each generation plans, starts and watches its replicas; the next one starts at the position that
    it leaves.
    """

    def __init__(
        self, job: Job, summary: DataSummary, cluster: Cluster, streamed: Mapping[int, bool]
    ) -> None:
        self._summary, self._cluster, self._streamed = summary, cluster, streamed
        self._held_out = hold_out(job, summary, cluster)
        self._events = FitEvents(job, cluster.publish) if cluster.watched else None
        self._recovery = Recovery(cluster, job.execution.max_losses, job.execution.fruitless_losses)
        self._choosing = Choosing(job.mode)
        self._job = job = self._choosing.first(job)
        self._joining = Joining(cluster, job.stopping, summary.row_bytes, job.state_bytes)
        self._plan: Plan | None = None  # the plan of the last generation that had one
        self._checkpoints: Checkpoints | None = None
        self._progress = Progress(self._job, self._events)
        # The position after an error of the current generation.
        self._position: Position | None = None

    def run(self, ending: Callable[[], None]) -> FitResult:
        """Run one generation after the other until the fit ends."""
        result = None
        while result is None:
            result = self._generation(ending)
        losses = tuple(self._recovery.losses)
        result = replace(result, losses=losses, chosen=self._choosing.said)
        if self._events is not None:
            self._events.ended(result, self._progress.failure)
        return result

    def _generation(self, ending: Callable[[], None]) -> FitResult | None:
        """Run a generation; return the result if the fit ends with it."""
        self._position = None
        self._progress.begin(self._job)
        try:
            return self._train(ending)
        except BaseException as error:
            try:
                return self._after(error)
            except BaseException as final:
                if self._plan is not None:  # before the end is reported, which is the last event
                    position = self._position or self._recovery.last_known(final, self._progress)
                    self._job = replace(self._job, position=position)
                    if self._job.done:
                        return replace(_ended(self._job, self._plan), error=final)
                if self._events is not None:
                    self._events.failed(final, self._progress.failure)
                raise

    def _train(self, ending: Callable[[], None]) -> FitResult | None:
        """Plan, start and watch a generation; None if another one follows."""
        job, cluster, choosing = self._job, self._cluster, self._choosing
        summary, held_out = self._summary, self._held_out
        try:
            planned = partial(_planned, job, summary, held_out, cluster, self._streamed)
            launch = Launch.of(job, self._joining.plan(planned), summary, held_out, cluster)
        except ValueError as error:
            raise self._recovery.cannot_go_on(error) from error.__cause__
        self._plan = launch.plan
        self._report(self._recovery.planned(launch.begun))
        if job.ended:  # it ended before a checkpoint was taken or a worker was lost
            return _ended(job, launch.plan)
        if (partitions := solo_rows(launch, cluster)) is not None:
            return SoloFit(launch, partitions, cut_rows(job, summary)).run(ending)
        session = _served(launch, cluster, self._events)
        if self._checkpoints is not None:
            self._checkpoints.renew()
        elif job.execution.checkpoint is not None:
            self._checkpoints = Checkpoints(job, session.server)
        running = cluster.launch(run_replica, launch.ranks(cut_rows(job, summary)), session)
        self._progress.serve(launch.plan, session)
        assert self._progress.near is not None
        choosing.begin(launch, self._progress.near, cluster)
        watcher = Watcher(
            self._progress, launch.plan, running, choosing, self._joining, self._checkpoints
        )
        self._report(self._recovery.while_loading(self._progress.closed + 1))
        result = watcher.run(ending)
        if result is None:
            position = self._progress.position()
            self._job = choosing.changed(replace(job, position=position))
            self._progress.begin(self._job)
            cluster.end_generation()
        return result

    def _after(self, error: BaseException) -> FitResult | None:
        """Handle an error: return the result, return None for another generation, or raise."""
        job, progress = self._job, self._progress
        if progress.interrupted is not None:  # all other errors follow from it, or come too late
            self._position = self._recovery.position(progress, ENDING_SECONDS)
            raise progress.interrupted
        if isinstance(error, WindowError) and job.mode.access == "auto" and not job.mode.uses_ring:
            # A host has too little shared memory, which is common in containers.
            self._position = self._recovery.position(progress)
            _log.warning("%s: the fit goes on by streams", error.message)
            self._cluster.end_generation()
            mode = replace(job.mode, access="stream")
            self._job = replace(job, position=self._position, mode=mode)
            return None
        if not isinstance(error, WorkerLostError | ServerLostError):
            raise error
        position = self._position = self._recovery.position(progress)
        if progress.asked_to_end:
            assert self._plan is not None
            return _ended(replace(job, position=position), self._plan)
        job, self._summary = self._recovery.after(
            error, job, self._summary, position, progress.closed
        )
        self._job = self._choosing.first(job)
        return None

    def _report(self, losses: Iterable[Loss]) -> None:
        for loss in losses:
            if self._events is not None:
                self._events.lost(loss)


def _planned(
    job: Job,
    summary: DataSummary,
    held_out: HeldOut,
    cluster: Cluster,
    streamed: Mapping[int, bool],
    threads: Mapping[str, int],
    moves: bool = False,
) -> Plan:
    """Plan a generation on workers with these threads; see `Planning`."""

    def count(piece: Piece) -> int:
        """Return the training rows of a piece."""
        return piece.rows - held_out.count(piece.partition, piece.start, piece.stop)

    exchanged = _exchanges(job)
    plan = make_plan(
        job.mode,
        located(job, summary, cluster, threads),
        count=count,
        batch_size=job.batch_size,
        n_replicas=job.execution.n_replicas,
        rebalance=False if exchanged else _rebalance(job, bool(streamed), moves),
        # A partition that is read as a whole has one reader: every replica with a part of it would
        # read all.
        mixed=bool(job.shuffle)
        and not (exchanged or job.full_batch is not None or any(streamed.values())),
    )
    if summary.validation:
        plan = validating(plan, summary.validation, cluster.holders)
    return plan


def _exchanges(job: Job) -> bool:
    """True if rows are exchanged between all partitions before training."""
    return job.shuffle == "global" and job.full_batch is None


def _served(launch: Launch, cluster: Cluster, fit_events: FitEvents | None) -> Session:
    """Create the shards of a generation."""
    session = cluster.serve(launch.shards(), launch.placement, launch.summing())
    unshared = _warn_unshared(launch.plan, session)
    if fit_events is not None:
        fit_events.started(launch.plan, launch.placement, unshared)
    return session


def _ended(job: Job, plan: Plan) -> FitResult:
    """Return the result of a fit without epochs left to train."""
    kept = job.position.kept if job.done[-1].kept == len(job.done) else job.position.best
    assert kept is not None
    return FitResult.of(job, kept, job.done, plan)


def _warn_unshared(plan: Plan, session: Session) -> tuple[str | None, ...]:
    """Warn about shards without shared memory; return the reason for each."""
    unshared = tuple(shard.card.unshared for shard in session.shards)
    for shard, why in enumerate(unshared):
        if why is not None:
            _log.warning("%s", no_shared_memory(plan.shards[shard], why))
    return unshared


def _exchange(job: Job, summary: DataSummary, cluster: Cluster) -> DataSummary:
    """Move every row to a random partition; return where the data is then."""
    while True:
        data = located(job, summary, cluster, cluster.threads())
        split, homes = make_split(job.seed, data, job.execution.n_replicas)
        try:
            cluster.exchange(split, homes)
        except WorkerLostError as error:
            _log.warning("%s; rows are exchanged anew", error)
            cluster.end_generation(error)
        else:
            break
    rows = tuple(cluster.map(count_rows, range(len(homes))))
    if sum(rows) != summary.total:
        raise ClusterError(f"{summary.total} rows were exchanged, and {sum(rows)} have arrived")
    return replace(summary, rows=rows)


def _rebalance(job: Job, streamed: bool, moves: bool) -> bool | str:
    """Return the effective `rebalance` option; `moves`: moving rows was found to save time.

    "auto" leaves rows where they are if passes are few, or as cheap as those of L-BFGS: ten to
    thirty of them cost as much as moving, and their number is unknown. Moved rows are kept in
    memory, into which the rows of a stream did not fit.
    """
    if job.execution.rebalance != "auto":
        return job.execution.rebalance
    if streamed or (moves and job.mode.uses_ring and job.execution.n_shards != "auto"):
        return False
    if moves:
        return True
    many = job.full_batch is None and job.stopping.max_iter >= _EPOCHS_WORTH
    return "auto" if many else False
