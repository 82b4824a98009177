"""The job of a fit, and its result."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dps.data.feed.targets import TargetEncoding
from dps.models import Model
from dps.modes import Mode
from dps.optimizers import Optimizer
from dps.optimizers.schedules import Schedule
from dps.server.store.snapshots import Snapshot
from dps.training.epochs.records import EpochRecord
from dps.training.epochs.stopping import StoppingRule

if TYPE_CHECKING:
    from dps.training.checkpoint.options import CheckpointRun
    from dps.training.lbfgs.full_batch import FullBatch
    from dps.training.plan.plan import Plan
    from dps.training.position import Position
    from dps.training.replica.activity import RankActivity

#: The optimizer's name in events, where each epoch is a pass over all rows.
FULL_BATCH = "L-BFGS"
#: Likewise, where sums over all rows give the optimum.
SOLVED = "least squares"


#: Told of closed epochs and how to get parameters; whether the fit is to end.
OnEpochs = Callable[[Sequence[EpochRecord], Callable[[], Snapshot | None]], bool]


@dataclass(frozen=True)
class Execution:
    """The place and resources of a fit."""

    n_replicas: int | str
    n_shards: int | str
    rebalance: bool | str  # whether rows may be copied to other workers
    timeout: float  # seconds without progress that are an error
    # True to go on without rows that were lost with a worker and cannot be computed again.
    drops_lost_data: bool = False
    max_losses: int | None = None  # losses after which it goes on; None: any number
    fruitless_losses: int = 3  # those in a row without progress
    checkpoint: CheckpointRun | None = None  # where checkpoints of it go, if they are taken


@dataclass(frozen=True)
class Job:
    """The specification of a fit: model, optimizer, data and stopping rule."""

    fit: str  # id of the fit
    model: Model
    targets: TargetEncoding
    optimizer: Optimizer
    schedule: Schedule
    l1: float  # strengths of the penalties on the penalised coordinates
    l2: float
    mode: Mode
    stopping: StoppingRule
    position: Position  # where it starts, or goes on
    epochs_before: int  # epochs behind what it started from
    batch_size: int | str
    seed: int
    # A fresh order each epoch; "global": of rows that are exchanged before the first one, but for
    # L-BFGS, which sums over all rows in any order.
    shuffle: bool | str
    # Share of the rows that are kept for validation; 0: none of those that are given to train.
    validation_fraction: float
    execution: Execution
    full_batch: FullBatch | None = None  # train on all rows at once rather than by stochastic steps
    finish: FullBatch | None = None  # do so once these are on a plateau
    # Called in the caller's thread, a few times a second, with the records of the epochs that
    # have been closed since, and a function that returns the parameters after the last of them
    # (None where the fit is further already). True ends the fit.
    on_epochs: OnEpochs | None = None
    name: str = ""  # what is fitted, in the words of its user: the estimator's class

    def reported(self, kept: Snapshot) -> Snapshot:
        """The snapshot that a fit reports: parameters alone, or their mean."""
        params = np.array(self.optimizer.result(kept.params, kept.state))
        return Snapshot(params[None], kept.version, kept.ids)

    @property
    def done(self) -> tuple[EpochRecord, ...]:
        """Epochs of this fit that lie behind its position."""
        return self.position.history

    @property
    def ended(self) -> bool:
        """True if the fit that is resumed has ended already."""
        enough = len(self.done) >= self.stopping.max_iter
        return bool(self.done) and (enough or self.done[-1].converged)

    @property
    def is_solved(self) -> bool:
        """True if no replica is needed: neither to train, nor for a score or a checkpoint."""
        asks_more = self.stopping.score is not None or self.execution.checkpoint is not None
        return self.position.solution is not None and not asks_more

    @property
    def epochs_behind(self) -> int:
        """Epochs behind its position, of this fit and those that it carries on."""
        return self.epochs_before + len(self.done)

    @property
    def epochs_ahead(self) -> int:
        """Epochs that may follow."""
        return self.stopping.max_iter - len(self.done)

    @property
    def state_bytes(self) -> int:
        """Bytes of parameters and optimizer state."""
        rows = 1 + self.optimizer.state_rows
        return int(rows * self.model.layout.size * self.model.dtype.itemsize)

    @property
    def method(self) -> str:
        """Description of the method, in words."""
        if self.is_solved:
            return SOLVED
        if self.full_batch is not None:
            return FULL_BATCH
        return type(getattr(self.optimizer, "base", self.optimizer)).__name__


@dataclass(frozen=True)
class FitResult:
    """The result of a fit: the state at the end of its last closed epoch."""

    reported: Snapshot  # see `Job.reported`
    kept: Snapshot  # parameters to carry on from, optimizer state and version
    history: list[EpochRecord]
    plan: Plan
    # The activity of each replica, in rank order, without those that did not end.
    activity: list[RankActivity]
    error: BaseException | None  # what cut the fit short, to be raised once the rest has been kept
    # The reason why each shard has no shared memory, if it was wanted.
    unshared: tuple[str | None, ...]
    losses: tuple[Any, ...] = ()  # after which it went on
    chosen: str = ""  # why it is in its mode, where that was to be chosen

    @classmethod
    def of(
        cls,
        job: Job,
        kept: Snapshot,
        history: Sequence[EpochRecord],
        plan: Plan,
        *,
        activity: Sequence[RankActivity] = (),
        error: BaseException | None = None,
        unshared: tuple[str | None, ...] | None = None,
    ) -> FitResult:
        """Make the result of a fit from the snapshot that it keeps."""
        if history[-1].full_batch:  # whose snapshot has no state
            job.optimizer.initialize(kept.state)
        return cls(
            reported=job.reported(kept),
            kept=kept,
            history=list(history),
            plan=plan,
            activity=list(activity),
            error=error,
            unshared=(None,) * len(plan.shards) if unshared is None else unshared,
        )


def new_fit_id() -> str:
    """An id that no other fit has."""
    return secrets.token_hex(6)
