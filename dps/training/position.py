"""The position of a fit, from which its next generation or a later process continues.

A fit goes on at the end of an epoch, so that each row of a closed epoch counts once; or within the
next one, where its ranks have the same rows as before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dps.server.store.snapshots import Snapshot
from dps.training.epochs.records import EpochRecord

if TYPE_CHECKING:
    from dps.training.plan.plan import Plan


@dataclass(frozen=True)
class EpochProgress:
    """Progress of ranks in an epoch when a snapshot was taken."""

    steps: int  # that were behind, and of the epoch
    epoch_steps: int
    # (n_ranks, 4) of each rank: loss, rows and pushes so far, and seconds.
    ranks: NDArray[np.float64]
    pieces: NDArray[np.int64]  # (k, 4) the rows of ranks: rank, partition, start, stop

    @classmethod
    def of(cls, said: NDArray[np.float64], plan: Plan) -> EpochProgress:
        """From what a window says of it, see `Window.interims`."""
        return cls(int(said[0, 1]), plan.ranks[0].steps, said[1:], _pieces(plan))

    def fits(self, plan: Plan) -> bool:
        """True if the ranks of a plan have the rows that they had."""
        same = [self.epoch_steps] * len(self.ranks) == [rank.steps for rank in plan.ranks]
        return same and np.array_equal(self.pieces, _pieces(plan))


class EpochSnapshot(NamedTuple):
    """A snapshot within an epoch."""

    within: EpochProgress
    kept: Snapshot


def _pieces(plan: Plan) -> NDArray[np.int64]:
    rows = [
        (number, piece.partition, piece.start, piece.stop)
        for number, rank in enumerate(plan.ranks)
        for piece in rank.pieces
    ]
    return np.array(rows, np.int64).reshape(-1, 4)


class Solution(NamedTuple):
    """Facts about a start at the optimum, which was found without training."""

    loss: float  # mean training loss
    held_out: NDArray[np.float64] | float  # (2,) sums of losses and weights of held-out rows; 0.0
    seconds: float  # that it took


class InitialState(NamedTuple):
    """The start of a fit: a snapshot that is made when it is asked for.

    Fresh optimizer state takes no memory, being the same everywhere; in a snapshot it does.
    """

    params: NDArray[np.floating]  # (n,)
    state: NDArray[np.floating]  # (state_rows, n)
    version: int
    ids: NDArray[np.int64] | None  # of rows of a table
    solution: Solution | None = None

    @property
    def kept(self) -> Snapshot:
        """The snapshot."""
        ids = np.zeros((2, 0), np.int64) if self.ids is None else self.ids
        return Snapshot(np.concatenate([self.params[None], self.state]), self.version, ids)


@dataclass(frozen=True)
class Position:
    """The state of a fit after its last closed epoch, and within the next."""

    begun: Snapshot | InitialState
    history: tuple[EpochRecord, ...] = ()  # of all epochs that have been closed
    # The same after the best epoch, where rows are held out and it was an earlier one.
    best: Snapshot | None = None
    interim: EpochSnapshot | None = None  # A snapshot within the next epoch

    @property
    def kept(self) -> Snapshot:
        """Parameters, optimizer state and their version then."""
        return self.begun if isinstance(self.begun, Snapshot) else self.begun.kept

    @property
    def solution(self) -> Solution | None:
        """Facts about the optimum, if the fit starts there."""
        return self.begun.solution if isinstance(self.begun, InitialState) else None

    @property
    def version(self) -> int:
        """The version."""
        return self.begun.version

    @property
    def params(self) -> NDArray[np.floating]:
        """The parameters, (n,)."""
        return self.begun.params

    def is_after(self, other: Position) -> bool:
        """True if it is further than another one, at the end of an epoch or within it."""
        return (self.epochs, self.steps) > (other.epochs, other.steps)

    @property
    def steps(self) -> int:
        """Steps of the next epoch before the snapshot within it."""
        return 0 if self.interim is None else self.interim.within.steps

    @property
    def epochs(self) -> int:
        """Epochs closed."""
        return len(self.history)

    @property
    def last(self) -> EpochRecord | None:
        """The record of the last one."""
        return self.history[-1] if self.history else None
