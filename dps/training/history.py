"""The record of an epoch: how replicas report it, how a window stores it, what users see.

A window knows records as rows of doubles; the meaning of each double is here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["EpochRecord", "EpochReport"]


@dataclass(frozen=True)
class EpochReport:
    """What one rank says of an epoch.

    Attributes
    ----------
    loss_sum : float
        Weighted sum of training losses, each taken when its batch was seen.
    rows : int
        Training rows seen.
    validation_sum, validation_weight : float
        Weighted sum of validation losses, and of their weights.
    seconds : float
        Wall time.
    stale_sum, stale_max : float
        Of the staleness of its pushes.
    steps : int
        Steps taken with rows.
    full_batch : int
        1: a pass over all rows at one point, which judges its progress itself.
    converged : int
        1: there is nothing left to gain.
    """

    loss_sum: float
    rows: int
    validation_sum: float
    validation_weight: float
    seconds: float
    stale_sum: float
    stale_max: float
    steps: int
    full_batch: int = 0
    converged: int = 0

    def row(self) -> tuple[float, ...]:
        """As doubles."""
        return tuple(float(value) for value in astuple(self))


@dataclass(frozen=True)
class EpochRecord:
    """A closed epoch.

    Attributes
    ----------
    epoch : int
        Its number, from 1.
    loss : float
        Mean training loss seen during the epoch, without penalty.
    validation_loss : float
        NaN without early stopping.
    rows : int
        Training rows seen by all replicas.
    seconds : float
        Wall time of the slowest replica.
    staleness_mean, staleness_max : float
        Updates applied between a replica's pull and its push.
    best : float
        Lowest monitored loss so far.
    bad_epochs : int
        Epochs in a row without an improvement.
    last : bool
        Whether the fit ended here.
    converged : bool
        Whether it did because nothing is gained any more.
    rows_per_replica : tuple of int
        Training rows that each replica has seen, in rank order; they sum to `rows`.
    """

    epoch: int
    loss: float
    validation_loss: float
    rows: int
    seconds: float
    staleness_mean: float
    staleness_max: float
    best: float
    bad_epochs: int
    last: bool
    converged: bool
    rows_per_replica: tuple[int, ...]

    def row(self) -> tuple[float, ...]:
        """As doubles; those of the replicas come last, behind their number."""
        *values, replicas = astuple(self)
        return tuple(float(value) for value in (*values, len(replicas), *replicas))

    @classmethod
    def from_row(cls, row: Sequence[float] | NDArray[np.float64]) -> EpochRecord:
        """From doubles."""
        (
            epoch, loss, validation, rows, seconds, mean, largest, best, bad, last, converged, n,
        ) = row[:12]  # fmt: skip
        return cls(
            int(epoch), float(loss), float(validation), int(rows), float(seconds),
            float(mean), float(largest), float(best), int(bad), bool(last), bool(converged),
            tuple(int(seen) for seen in row[12 : 12 + int(n)]),
        )  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        """What users see in ``history_``."""
        shown = asdict(self)
        for internal in ("best", "bad_epochs", "last", "converged"):
            del shown[internal]
        shown["rows_per_second"] = self.rows / self.seconds if self.seconds > 0 else float("inf")
        return shown
