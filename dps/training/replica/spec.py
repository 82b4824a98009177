"""The arguments of a replica."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dps.data.collections.partitions import Piece
from dps.data.feed.held_out import HeldOut
from dps.data.feed.targets import TargetEncoding
from dps.models import Model
from dps.modes import Mode
from dps.training.epochs.records import EpochRecord
from dps.training.epochs.stopping import StoppingRule
from dps.training.lbfgs.full_batch import FullBatch
from dps.training.replica.channel import ChannelSpec
from dps.training.replica.steps import FROM_THE_START, ResumeAt


@dataclass(frozen=True)
class ReplicaSpec:
    """Everything that a replica needs."""

    fit: str
    fence: int  # number of the attempt; shards refuse replicas of other attempts
    worker: str  # its worker
    channel: ChannelSpec
    mode: Mode
    model: Model
    targets: TargetEncoding
    pieces: tuple[Piece, ...]  # its rows
    cut_rows: int  # largest number of rows of a streamed partition that are read together
    steps: int  # steps per epoch
    stopping: StoppingRule
    seed: int
    shuffle: bool
    held_out: HeldOut  # held-out rows
    epochs_before: int  # epochs of earlier fits that this one continues
    # The record of the last epoch of this fit before the parameters that it starts from.
    previous: EpochRecord | None
    full_batch: FullBatch | None  # options of passes over all rows, if they replace steps
    finish: FullBatch | None  # options of passes over all rows that follow steps on a plateau
    pauses_every: float = math.inf  # seconds between snapshots within an epoch; infinity: none
    # Steps of the first epoch that were taken earlier; see :meth:`Steps.epoch`.
    begun: ResumeAt = FROM_THE_START

    @property
    def rank(self) -> int:
        """The replica's number."""
        return self.channel.rank

    @property
    def done(self) -> int:
        """Epochs of this fit that were closed before the group began; the group counts from 0."""
        return 0 if self.previous is None else self.previous.epoch

    @property
    def epochs(self) -> int:
        """Largest number of epochs to come."""
        return self.stopping.max_iter - self.done

    @property
    def on_plateau(self) -> bool:
        """True if passes over all rows come next."""
        return self.previous is not None and self.previous.plateau > 0
