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
    """Everything a replica is given."""

    fit: str
    fence: int  # the attempt; a replica of another one is refused
    worker: str  # where it runs
    channel: ChannelSpec
    mode: Mode
    model: Model
    targets: TargetEncoding
    pieces: tuple[Piece, ...]  # its rows
    cut_rows: int  # rows of a streamed partition that are read together, at the most
    steps: int  # steps of an epoch
    stopping: StoppingRule
    seed: int
    shuffle: bool
    held_out: HeldOut  # rows that are not trained on
    epochs_before: int  # epochs done by earlier fits that this one carries on from
    # The last epoch of this fit that lies behind the parameters it starts from.
    previous: EpochRecord | None
    full_batch: FullBatch | None  # train on all rows at once rather than by stochastic steps
    finish: FullBatch | None  # do so once these are on a plateau
    pauses_every: float = math.inf  # seconds between snapshots within an epoch; infinity: none
    # Steps of the first epoch that were taken before; see :meth:`Steps.epoch`.
    begun: ResumeAt = FROM_THE_START

    @property
    def rank(self) -> int:
        """The replica's number."""
        return self.channel.rank

    @property
    def done(self) -> int:
        """Epochs of this fit that were closed before the group began, which counts from 0."""
        return 0 if self.previous is None else self.previous.epoch

    @property
    def epochs(self) -> int:
        """Epochs that may follow."""
        return self.stopping.max_iter - self.done

    @property
    def on_plateau(self) -> bool:
        """True if passes over all rows were what came next."""
        return self.previous is not None and self.previous.plateau > 0
