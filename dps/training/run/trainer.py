"""One fit from its data to its result: inspect, plan, launch, watch, collect.

The only place that waits for a fit as a whole. It knows clusters, modes and models by
their interfaces.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from dps.cluster.base import Cluster
from dps.data.collections.partitions import Piece
from dps.data.exchange import count_rows
from dps.data.survey.rows import DataSummary
from dps.errors import ClusterError, ServerLostError, WindowError, WorkerLostError
from dps.monitor.advice import no_shared_memory
from dps.server.group.session import Session
from dps.training.checkpoint.writer import Checkpoints
from dps.training.job import FitResult, Job
from dps.training.plan.holding_out import hold_out
from dps.training.plan.plan import Plan, make_plan, make_split, validating
from dps.training.position import Position
from dps.training.replica.replica import run_replica
from dps.training.run.events import FitEvents
from dps.training.run.joining import Joining
from dps.training.run.launch import Launch, cut_rows
from dps.training.run.mode_choice import Choosing
from dps.training.run.recovery import Recovery
from dps.training.run.supervise import Watcher

_log = logging.getLogger("dps")

#: Epochs of stochastic steps from which it pays to move rows.
_EPOCHS_WORTH = 10


def train(
    job: Job,
    summary: DataSummary,
    cluster: Cluster,
    ending: Callable[[], None] = lambda: None,
) -> FitResult:
    """Train on data that the cluster has loaded.

    ending: called once training has ended, before the result is fetched.
    Raises DPSError: the fit failed before any epoch was closed, or in a way that leaves no result.
    """
    exchanged = job.shuffle == "global" and job.full_batch is None
    streamed = cluster.streamed()
    first = len(summary.rows)
    if streamed:
        _log.info(
            "%d of %d partitions are read while training", len(streamed), len(cluster.holders)
        )
    streamed = {number: whole for number, whole in streamed.items() if number < first}
    if streamed and exchanged:
        raise ValueError(
            f"shuffle='global' exchanges rows in memory, and partition {min(streamed)} is not kept "
            "there: use shuffle=True, which mixes rows of all partitions of a worker, or "
            "exchange them before, as by X.shuffle of a dask dataframe"
        )
    if exchanged:
        summary = _exchange(job, summary, cluster)

    held_out = hold_out(job, summary, cluster)
    first = len(summary.rows)

    def count(piece: Piece) -> int:
        held = held_out.rows(piece.partition, summary.rows[piece.partition])
        return piece.rows if held is None else int((~held[piece.start : piece.stop]).sum())

    def planned(threads: Mapping[str, int], moves: bool = False) -> Plan:
        plan = make_plan(
            job.mode,
            rows=summary.rows,
            count=count,
            elements=summary.elements,
            holders=cluster.holders[:first],
            threads=threads,
            batch_size=job.batch_size,
            n_replicas=job.execution.n_replicas,
            rebalance=False if exchanged else _rebalance(job, bool(streamed), moves),
            # Whoever takes rows of a partition that is read as a whole reads all of it.
            mixed=bool(job.shuffle)
            and not (exchanged or job.full_batch is not None or any(streamed.values())),
        )
        if summary.validation:
            plan = validating(plan, summary.validation, cluster.holders)
        return plan

    fit_events = FitEvents(job, cluster.publish) if cluster.watched else None
    recovery = Recovery(cluster, job.execution.max_losses, job.execution.fruitless_losses)
    choosing = Choosing(job.mode)
    job = choosing.first(job)
    joining = Joining(cluster, planned, job.stopping, summary.row_bytes, job.state_bytes)
    placed: Plan | None = None
    checkpoints: Checkpoints | None = None
    while True:
        watcher: Watcher | None = None
        position: Position | None = None
        try:
            try:
                launch = Launch.of(job, joining.plan(), summary, held_out, cluster)
            except ValueError as error:
                raise recovery.cannot_go_on(error) from error.__cause__
            placed = launch.plan
            for loss in recovery.planned(launch.begun):
                if fit_events is not None:
                    fit_events.lost(loss)
            if job.ended:  # before a checkpoint was taken, or as a worker was lost
                result = _ended(job, placed)
                break
            session = _served(launch, cluster, fit_events)
            if checkpoints is not None:
                checkpoints.renew()
            elif job.execution.checkpoint is not None:
                checkpoints = Checkpoints(job, session.server)
            watcher = _begin(
                job, launch, session, cut_rows(summary), cluster, fit_events, choosing, joining,
                checkpoints,
            )  # fmt: skip
            for loss in recovery.while_loading(watcher.closed + 1):
                if fit_events is not None:
                    fit_events.lost(loss)
            ended = watcher.run(ending)
            if ended is None:
                job, watcher = choosing.changed(replace(job, position=watcher.position())), None
                cluster.renew()
                continue
            result = ended
        except BaseException as error:
            try:
                if (
                    isinstance(error, WindowError)
                    and job.mode.access == "auto"
                    and not job.mode.goes_round
                ):
                    # A host has too little shared memory, as containers often have.
                    position = recovery.position(job, watcher)
                    _log.warning("%s: the fit goes on by streams", error.message)
                    cluster.renew()
                    job = replace(job, position=position, mode=replace(job.mode, access="stream"))
                    continue
                if not isinstance(error, WorkerLostError | ServerLostError):
                    raise
                position = recovery.position(job, watcher)
                if watcher is not None and watcher.asked_to_end:
                    result = _ended(replace(job, position=position), launch.plan)
                    break
                closed = position.epochs if watcher is None else watcher.closed
                job, summary = recovery.after(error, job, summary, position, closed)
                job = choosing.first(job)
            except BaseException as final:
                if placed is not None:  # before the end is reported, which is the last event
                    position = position or recovery.last_known(final, job, watcher)
                    job = replace(job, position=position)
                if fit_events is not None:
                    fit_events.failed(final, None if watcher is None else watcher.failure)
                if placed is None or not job.done:
                    raise
                result = replace(_ended(job, placed), error=final)
                return replace(result, losses=tuple(recovery.losses), chosen=choosing.said)
        else:
            break
    result = replace(result, losses=tuple(recovery.losses), chosen=choosing.said)
    if fit_events is not None:
        fit_events.ended(result)
    return result


def _served(launch: Launch, cluster: Cluster, fit_events: FitEvents | None) -> Session:
    """Make the shards of a generation."""
    session = cluster.serve(launch.shards(), launch.placement, launch.summing())
    unshared = _said_if_unshared(launch.plan, session)
    if fit_events is not None:
        fit_events.started(launch.plan, launch.placement, unshared)
    return session


def _begin(
    job: Job,
    launch: Launch,
    session: Session,
    cut: int,
    cluster: Cluster,
    fit_events: FitEvents | None,
    choosing: Choosing,
    joining: Joining,
    checkpoints: Checkpoints | None,
) -> Watcher:
    """Start the replicas of a generation, and watch them."""
    running = cluster.launch(run_replica, launch.tasks(cut), session)
    choosing.begin(launch, session, cluster)
    return Watcher(
        job, launch.plan, session, running, fit_events, choosing, joining, checkpoints
    )  # fmt: skip


def _ended(job: Job, plan: Plan) -> FitResult:
    """The result of a fit of which no epoch is left."""
    kept = job.position.kept if job.done[-1].kept == len(job.done) else job.position.best
    assert kept is not None
    return FitResult.of(job, kept, job.done, plan)


def _said_if_unshared(plan: Plan, session: Session) -> tuple[str | None, ...]:
    """Of each shard why it has no shared memory, where that was wanted; it is logged."""
    unshared = tuple(shard.card.unshared for shard in session.shards)
    for shard, why in enumerate(unshared):
        if why is not None:
            _log.warning("%s", no_shared_memory(plan.shards[shard], why))
    return unshared


def _exchange(job: Job, summary: DataSummary, cluster: Cluster) -> DataSummary:
    """Have every row go to a partition drawn by chance; the data as it lies then."""
    while True:
        split, homes = make_split(
            job.seed,
            rows=summary.rows,
            elements=summary.elements,
            holders=cluster.holders[: len(summary.rows)],
            threads=cluster.threads(),
            n_replicas=job.execution.n_replicas,
        )
        try:
            cluster.exchange(split, homes)
        except WorkerLostError as error:
            _log.warning("%s; rows are exchanged anew", error)
            cluster.renew(error)
        else:
            break
    rows = tuple(cluster.map(count_rows, range(len(homes))))
    if sum(rows) != summary.total:
        raise ClusterError(f"{summary.total} rows were exchanged, and {sum(rows)} have arrived")
    return replace(summary, rows=rows)


def _rebalance(job: Job, streamed: bool, moves: bool) -> bool | str:
    """Whether rows may move to other workers; `moves`: it has been found to save time.

    "auto" leaves them where passes are few, or as cheap as those of L-BFGS, of which ten to
    thirty cost as much as moving: nobody knows whether there will be more. Rows that move
    lie in memory, which those of a stream did not fit into.
    """
    if job.execution.rebalance != "auto":
        return job.execution.rebalance
    if streamed or (moves and job.mode.goes_round and job.execution.n_shards != "auto"):
        return False
    if moves:
        return True
    many = job.full_batch is None and job.stopping.max_iter >= _EPOCHS_WORTH
    return "auto" if many else False
