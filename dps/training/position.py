"""The position of a fit, from which the next generation or a later process continues.

A fit continues at the end of an epoch, so that each row of a closed epoch counts once. If its ranks
have the same rows as before, it may continue within an epoch.
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
    """Progress of the ranks in an epoch at the time of a snapshot."""

    steps: int  # steps before the snapshot, and steps of the epoch
    epoch_steps: int
    # (n_ranks, 4) losses, rows, pushes and seconds of each rank so far.
    ranks: NDArray[np.float64]
    pieces: NDArray[np.int64]  # (k, 4) rows of the ranks: rank, partition, start, stop

    @classmethod
    def of(cls, said: NDArray[np.float64], plan: Plan) -> EpochProgress:
        """Read the note of a window, see `Window.interims`."""
        return cls(int(said[0, 1]), plan.ranks[0].steps, said[1:], _pieces(plan))

    def fits(self, plan: Plan) -> bool:
        """True if the ranks of a plan have the same rows."""
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
    """An optimum that was found without training."""

    loss: float  # mean training loss
    # (2,) sum of losses and of weights of held-out rows; 0.0 without any.
    held_out: NDArray[np.float64] | float
    seconds: float  # time that it took


class InitialState(NamedTuple):
    """The start of a fit; its snapshot is made on demand.

    Fresh optimizer state is a broadcast view that takes no memory, unlike a snapshot.
    """

    params: NDArray[np.floating]  # (n,)
    state: NDArray[np.floating]  # (state_rows, n)
    version: int
    ids: NDArray[np.int64] | None  # ids of a table's rows
    solution: Solution | None = None

    @property
    def kept(self) -> Snapshot:
        """The snapshot."""
        ids = np.zeros((2, 0), np.int64) if self.ids is None else self.ids
        return Snapshot(np.concatenate([self.params[None], self.state]), self.version, ids)


@dataclass(frozen=True)
class Position:
    """The state of a fit after its last closed epoch, and within the next one."""

    begun: Snapshot | InitialState
    history: tuple[EpochRecord, ...] = ()  # records of all closed epochs
    # The snapshot of the best epoch, if rows are held out and it was an earlier one.
    best: Snapshot | None = None
    interim: EpochSnapshot | None = None  # a snapshot within the next epoch

    @property
    def kept(self) -> Snapshot:
        """The snapshot after the last closed epoch."""
        return self.begun if isinstance(self.begun, Snapshot) else self.begun.kept

    @property
    def solution(self) -> Solution | None:
        """The optimum, if the fit starts there."""
        return self.begun.solution if isinstance(self.begun, InitialState) else None

    @property
    def version(self) -> int:
        """Updates so far."""
        return self.begun.version

    @property
    def params(self) -> NDArray[np.floating]:
        """The parameters, (n,)."""
        return self.begun.params

    def is_after(self, other: Position) -> bool:
        """True if it is further than another position."""
        return (self.epochs, self.steps) > (other.epochs, other.steps)

    @property
    def steps(self) -> int:
        """Steps of the next epoch before the snapshot within it."""
        return 0 if self.interim is None else self.interim.within.steps

    @property
    def epochs(self) -> int:
        """Number of closed epochs."""
        return len(self.history)

    @property
    def last(self) -> EpochRecord | None:
        """Record of the last closed epoch."""
        return self.history[-1] if self.history else None
