from typing import Any

import numpy as np
from numpy.typing import NDArray

def renumber(indices: NDArray[Any], total: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The columns below `total` that occur, ascending, and the indices among these.

    `indices` are contiguous int32 or int64; the result is of the same dtype.

    Raises
    ------
    IndexError
        One is outside [0, total).
    """
