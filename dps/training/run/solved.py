"""The result of a fit whose optimum is known, without shards or replicas."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np

from dps.cluster.base import Cluster
from dps.data.survey.rows import DataSummary
from dps.server.placement import Placement
from dps.training.epochs.records import EpochReport
from dps.training.job import FitResult, Job
from dps.training.plan.batches import FEWEST
from dps.training.plan.plan import make_plan
from dps.training.run.events import FitEvents
from dps.training.run.launch import located
from dps.training.run.mode_choice import Choosing
from dps.training.run.recovery import Recovery

_log = logging.getLogger("dps")


def solved(job: Job, summary: DataSummary, cluster: Cluster) -> FitResult:
    """Report the optimum as one epoch in which each worker summed over its rows."""
    solution = job.position.solution
    assert solution is not None
    choosing = Choosing(job.mode)
    job = choosing.first(job)
    plan = make_plan(
        job.mode,
        located(job, summary, cluster, cluster.threads()),
        count=lambda piece: piece.rows,
        batch_size=summary.total,
        n_replicas=FEWEST,
        rebalance=False,
    )
    mean, held_out, seconds = solution
    missed, weight = np.broadcast_to(held_out, 2) / len(plan.ranks)
    reports = [
        EpochReport(
            mean * rank.rows, rank.rows, missed, weight, seconds, 0.0, 0.0, 1,
            full_batch=1, converged=1,
        ).row()
        for rank in plan.ranks
    ]  # fmt: skip
    record = job.stopping.decide(0, None, np.array(reports))
    _log.info("%s", record.line())
    kept = job.position.kept
    losses = Recovery(cluster, job.execution.max_losses, 0).while_loading(1)
    result = FitResult.of(job, kept, [record], plan)
    result = replace(result, losses=tuple(losses), chosen=choosing.said)
    events = FitEvents(job, cluster.publish) if cluster.watched else None
    if events is not None:
        # The dashboard would wait for replicas and shards that do not exist.
        events.started(replace(plan, ranks=()), Placement.of(job.model.layout.size, 1), ())
        for loss in losses:
            events.lost(loss)
        events.closed([record])
    try:
        if job.on_epochs is not None:
            job.on_epochs([record], lambda: result.reported)
    except BaseException as error:
        if events is not None:
            events.failed(error)
        raise
    if events is not None:
        events.ended(result)
    return result
