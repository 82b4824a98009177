from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

PUSHES: int
BYTES: int
APPLY: int
EPOCH: int
STEPS: int
ROWS: int
EPOCH_ROWS: int
LOSS: int
LOAD: int
COMPUTE: int
PULL: int
PUSH: int
WAIT: int
STALE_SUM: int
STALE_MAX: int
LEAD_MAX: int
STALENESS: int
BUCKETS: int
WIDTH: int

class Activity:
    """A rank's account: its row in the window of each shard, and a stop watch.

    `rows` are (WIDTH,) int64, one a shard; the first has what is said once. `timed` is false
    where only events are counted and no clock is read.
    """

    rows: list[NDArray[np.int64]]
    timed: bool
    def __init__(self, rows: Sequence[NDArray[np.int64]], timed: bool = True) -> None: ...
    def lap(self, phase: int) -> None:
        """Give the time since the last lap to LOAD, COMPUTE, PULL, PUSH or WAIT."""
    def waited(self, nanoseconds: int) -> None:
        """Time since the last lap was spent waiting, and is no part of the phase."""
    def worked(self, shard: int, nanoseconds: int) -> None:
        """Time was spent on a shard's memory."""
    def begin_epoch(self, epoch: int) -> None:
        """Begin an epoch, counted from 1."""
    def stepped(self, rows: int, epoch_rows: int, loss: float) -> None:
        """A gradient of so many rows was handed over; rows and loss of the epoch so far."""
    def pushed_late(self, shard: int, staleness: int) -> None:
        """A push to a shard was based on parameters that lacked so many updates."""
