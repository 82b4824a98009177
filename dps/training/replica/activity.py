"""The activity of a replica: its time by phase, and the staleness of its pushes.

A record for reports; ``_runtime/shared/activity.pyx`` counts.
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
    """The activity of one replica during a fit.

    Examples
    --------
    >>> did = RankActivity(0, "this process", 10, 320, 0.0, 0.6, 0.0, 0.1, 0.3, ((),))
    >>> did.seconds, round(did.wait / did.seconds, 2)
    (1.0, 0.3)
    """

    rank: int
    worker: str  # address of its worker, or the name of this process
    steps: int  # gradients pushed, in all epochs
    rows: int  # rows used, in all epochs
    # Seconds of reading and converting rows, of computing gradients and validation losses, of
    # pulling parameters, of pushing gradients, and of waiting for other replicas. All are zero if
    # monitoring is off.
    load: float
    compute: float
    pull: float
    push: float
    wait: float
    # For each shard the number of pushes with a staleness of 0, 1, 2 to 3, 4 to 7, and so on
    # (``monitor/events.py``), without trailing zeros. Empty except in async.
    staleness: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, rank: int, worker: str, rows: Sequence[NDArray[np.int64]]) -> RankActivity:
        """Make it from a rank's row in the window of each shard."""
        counts = rows[0].tolist()
        load, compute, pull, push, wait = (counts[phase] / 1e9 for phase in _PHASES)
        staleness = tuple(tuple(np.trim_zeros(row[STALENESS:], "b").tolist()) for row in rows)
        steps, seen = counts[STEPS], counts[ROWS]
        return cls(rank, worker, steps, seen, load, compute, pull, push, wait, staleness)

    @property
    def seconds(self) -> float:
        """Its total time."""
        return self.load + self.compute + self.pull + self.push + self.wait
