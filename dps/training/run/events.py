"""The client's events of a fit: its start, closed epochs and its end.

It makes events (``monitor/events.py``) from jobs, plans and records.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from dps.errors import DPSError
from dps.monitor.events import EpochFields, Kind, ReplicaStart, ShardStart, event
from dps.server.placement import Placement
from dps.training.epochs.records import EpochRecord
from dps.training.plan.plan import Plan
from dps.training.replica.user_errors import described

if TYPE_CHECKING:
    from dps.training.job import FitResult, Job
    from dps.training.run.loss import Loss

#: Largest number of epochs in one event.
_MAX_EPOCHS_AN_EVENT = 64


class FitEvents:
    """Events of one fit.

    publish: sends an event without waiting.
    """

    def __init__(
        self,
        job: Job,
        publish: Callable[[Mapping[str, object]], None],
    ) -> None:
        self._job = job
        self._fit = job.fit
        self._publish = publish
        self._began = time.monotonic()
        self._epochs = 0

    def started(self, plan: Plan, placement: Placement, unshared: Sequence[str | None]) -> None:
        """Report a new generation, whose shards exist.

        unshared: for each shard the reason why it has no shared memory although it was wanted, or
            None.
        """
        self._send("started", **_started(self._job, plan, placement, unshared))

    def lost(self, loss: Loss) -> None:
        """Report that a worker was lost and the fit continues."""
        self._epochs -= loss.redone
        self._send("recovered", **vars(loss))

    def closed(self, records: Sequence[EpochRecord]) -> None:
        """Report closed epochs."""
        if not records:
            return
        self._epochs += len(records)
        picks = np.unique(
            np.linspace(0, len(records) - 1, min(_MAX_EPOCHS_AN_EVENT, len(records))).astype(int)
        )
        shown = [_fields(records[pick]) for pick in picks]
        self._send("epochs", epochs=shown, skipped=len(records) - len(shown))

    def ended(self, result: FitResult, where: DPSError | None = None) -> None:
        """Report the result of a fit, which may have been interrupted; `where` as in `failed`."""
        if result.error is not None and not isinstance(result.error, KeyboardInterrupt):
            self.failed(result.error, where)
            return
        last = result.history[-1]
        by_rule = "converged" if last.converged else "max_iter"
        self._send(
            "stopped",
            reason=by_rule if last.last and result.error is None else "interrupted",
            epochs=len(result.history),
            loss=_number(last.loss),
            seconds=self._seconds(),
        )

    def failed(self, error: BaseException, where: DPSError | None = None) -> None:
        """Report that the fit failed; for an error of the user's code `where` names the replica."""
        if isinstance(error, DPSError):
            where = error
        self._send(
            "failed",
            error=type(error).__name__,
            message=error.message if isinstance(error, DPSError) else described(error),
            worker=None if where is None else where.worker,
            rank=None if where is None else where.rank,
            step=None if where is None else where.step,
            epochs=self._epochs,
            seconds=self._seconds(),
        )

    def _seconds(self) -> float:
        return round(time.monotonic() - self._began, 3)

    def _send(self, kind: Kind, **fields: object) -> None:
        self._publish(event(kind, self._fit, **fields))


def _started(
    job: Job, plan: Plan, placement: Placement, unshared: Sequence[str | None]
) -> dict[str, Any]:
    updates = 1
    if job.full_batch is None:
        updates = plan.mode._updates([rank.steps for rank in plan.ranks])
    return {
        "name": job.name,
        "mode": plan.mode.described,
        "together": plan.mode.together,
        "max_delay": plan.mode.bound,
        "optimizer": job.method.replace("-", "").lower(),
        "loss": type(job.targets.loss).__name__,
        "dtype": str(job.model.dtype),
        "parameters": job.model.layout.size,
        "rows": plan.rows,
        "batch_rows": plan.rows if job.full_batch is not None else plan.batch_size,
        "updates": updates,
        "max_epochs": job.stopping.max_iter,
        "epochs_before": job.epochs_before,
        "replicas": [
            ReplicaStart(rank=rank, worker=part.worker, rows=part.rows, steps=part.steps)
            for rank, part in enumerate(plan.ranks)
        ],
        "shards": [
            ShardStart(shard=shard, worker=worker, parameters=placement.size(shard), unshared=why)
            for shard, (worker, why) in enumerate(zip(plan.shards, unshared, strict=True))
        ],
    }


def _fields(record: EpochRecord) -> EpochFields:
    values = {name: getattr(record, name) for name in EpochFields.__annotations__}
    return cast(
        EpochFields, {n: _number(v) if isinstance(v, float) else v for n, v in values.items()}
    )


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
