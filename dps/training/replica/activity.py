"""The activity of a replica in a fit: its time by phase, and the staleness of its pushes.

A plain record for reports; how it is counted is in ``_runtime/shared/activity.pyx``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dps._runtime.shared.activity import (
    COMPUTE,
    LOAD,
    PULL,
    PUSH,
    ROWS,
    STALENESS,
    STEPS,
    WAIT,
)

_PHASES = (LOAD, COMPUTE, PULL, PUSH, WAIT)


@dataclass(frozen=True)
class RankActivity:
    """One replica's account of a fit.

    Examples
    --------
    >>> did = RankActivity(0, "this process", 10, 320, 0.0, 0.6, 0.0, 0.1, 0.3, ((),))
    >>> did.seconds, round(did.wait / did.seconds, 2)
    (1.0, 0.3)
    """

    rank: int
    worker: str  # its worker's address, or the name of this process
    steps: int  # gradients handed over, of all epochs
    rows: int  # rows seen, of all epochs
    # Seconds of reading and converting rows; of gradients and validation losses; of copying
    # parameters; of handing gradients over; of waiting for others. All zero where monitoring is
    # off.
    load: float
    compute: float
    pull: float
    push: float
    wait: float
    # For each shard, how many pushes had a staleness of 0, of 1, of 2 to 3, of 4 to 7, and so on
    # (``monitor/events.py``); zeros at the end are left out. Empty but in async.
    staleness: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, rank: int, worker: str, rows: Sequence[NDArray[np.int64]]) -> RankActivity:
        """From a rank's row in the window of each shard."""
        counts = rows[0].tolist()
        load, compute, pull, push, wait = (counts[phase] / 1e9 for phase in _PHASES)
        staleness = tuple(tuple(np.trim_zeros(row[STALENESS:], "b").tolist()) for row in rows)
        steps, seen = counts[STEPS], counts[ROWS]
        return cls(rank, worker, steps, seen, load, compute, pull, push, wait, staleness)

    @property
    def seconds(self) -> float:
        """All of its time."""
        return self.load + self.compute + self.pull + self.push + self.wait
