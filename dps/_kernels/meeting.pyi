from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dps._kernels.push import Push

Ending = Literal["ran", "gradient", "update", "stopped"]

class Meeting(Push):
    def __init__(self, *args: Any, notes: NDArray[np.float64]) -> None:
        """`notes` is that region of the first shard's window."""
    def mean(
        self, number: int, values: NDArray[np.floating], rows: int, notes: Sequence[float]
    ) -> tuple[Ending, NDArray[np.float64]]:
        """See `Channel.mean`; `number` is one more than at the last meeting.

        How it ended, and the sums of the notes. The mean is in `params`.
        """
    def broadcast(
        self, number: int, values: NDArray[np.floating], notes: Sequence[float]
    ) -> tuple[Ending, NDArray[np.float64]]:
        """See `Channel.broadcast`, and `mean`. How it ended, and rank 0's notes."""
