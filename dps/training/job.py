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

#: Name of the optimizer in events if each epoch is a pass over all rows.
FULL_BATCH = "L-BFGS"
#: Name of the optimizer in events if sums over all rows give the optimum.
SOLVED = "least squares"


#: Called with closed epochs and a function that returns the parameters; True ends the fit.
OnEpochs = Callable[[Sequence[EpochRecord], Callable[[], Snapshot | None]], bool]


@dataclass(frozen=True)
class Execution:
    """Where a fit runs, and with which resources."""

    n_replicas: int | str
    n_shards: int | str
    rebalance: bool | str  # whether rows may be copied to other workers
    timeout: float  # seconds without progress that raise an error
    # True to continue without rows that were lost with a worker and cannot be computed again.
    drops_lost_data: bool = False
    max_losses: int | None = None  # largest number of losses; None: unlimited
    fruitless_losses: int = 3  # largest number of consecutive losses without progress
    checkpoint: CheckpointRun | None = None  # where checkpoints go, if any


@dataclass(frozen=True)
class Job:
    """What a fit is to do: model, optimizer, data and stopping rule."""

    fit: str  # id of the fit
    model: Model
    targets: TargetEncoding
    optimizer: Optimizer
    schedule: Schedule
    l1: float  # strengths of the penalties on penalised coordinates
    l2: float
    mode: Mode
    stopping: StoppingRule
    position: Position  # where the fit starts or resumes
    epochs_before: int  # epochs of earlier fits that the start includes
    batch_size: int | str
    seed: int
    # True for a new order in each epoch. "global" also exchanges rows between workers before the
    # first epoch, except for L-BFGS, for which order does not matter.
    shuffle: bool | str
    # Share of the training rows that is held out for validation; 0: none.
    validation_fraction: float
    execution: Execution
    # Options of passes over all rows, if they replace stochastic steps.
    full_batch: FullBatch | None = None
    # Options of passes over all rows that follow once steps are on a plateau.
    finish: FullBatch | None = None
    # Called in the caller's thread a few times per second, with the records of newly closed epochs
    # and a function that returns the parameters after the last of them (None if the fit is further
    # already). True ends the fit.
    on_epochs: OnEpochs | None = None
    name: str = ""  # name of the estimator's class

    def reported(self, kept: Snapshot) -> Snapshot:
        """Return the snapshot with the parameters that a fit reports, which may be a mean."""
        params = np.array(self.optimizer.result(kept.params, kept.state))
        return Snapshot(params[None], kept.version, kept.ids)

    @property
    def done(self) -> tuple[EpochRecord, ...]:
        """Epochs of this fit before its position."""
        return self.position.history

    @property
    def ended(self) -> bool:
        """True if the fit that is resumed has ended already."""
        enough = len(self.done) >= self.stopping.max_iter
        return bool(self.done) and (enough or self.done[-1].converged)

    @property
    def is_solved(self) -> bool:
        """True if the fit needs no replica, neither to train nor for a score or a checkpoint."""
        asks_more = self.stopping.score is not None or self.execution.checkpoint is not None
        return self.position.solution is not None and not asks_more

    @property
    def epochs_behind(self) -> int:
        """Epochs before its position, of this fit and the fits that it continues."""
        return self.epochs_before + len(self.done)

    @property
    def epochs_ahead(self) -> int:
        """Largest number of epochs to come."""
        return self.stopping.max_iter - len(self.done)

    @property
    def state_bytes(self) -> int:
        """Bytes of parameters and optimizer state."""
        rows = 1 + self.optimizer.state_rows
        return int(rows * self.model.layout.size * self.model.dtype.itemsize)

    @property
    def method(self) -> str:
        """The name of the training method."""
        if self.is_solved:
            return SOLVED
        if self.full_batch is not None:
            return FULL_BATCH
        return type(getattr(self.optimizer, "base", self.optimizer)).__name__


@dataclass(frozen=True)
class FitResult:
    """The result of a fit: the state after its last closed epoch."""

    reported: Snapshot  # the parameters for predictions, see `Job.reported`
    kept: Snapshot  # parameters, optimizer state and version to continue from
    history: list[EpochRecord]
    plan: Plan
    # Activity of each replica in rank order, without replicas that did not end.
    activity: list[RankActivity]
    # The error that cut the fit short, raised once the results are stored.
    error: BaseException | None
    # For each shard the reason why it has no shared memory although it was wanted, or None.
    unshared: tuple[str | None, ...]
    losses: tuple[Any, ...] = ()  # losses that the fit survived
    chosen: str = ""  # why the fit chose its mode, for ``mode="auto"``

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
        """Make the result from the snapshot that the fit keeps."""
        if history[-1].full_batch:  # its snapshot has no optimizer state
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
    """Return a unique id."""
    return secrets.token_hex(6)
