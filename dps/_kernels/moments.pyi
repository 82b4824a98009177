from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps._kernels.rows import BlockRows

def column_moments(
    block: BlockRows,
    order: NDArray[np.int64],
    centre: Any,
    sums: NDArray[np.float64],
    squares: NDArray[np.float64],
) -> None:
    """Add the weighted sums over rows `order` of ``x - centre`` and of its square.

    `centre`, `sums`, `squares` are (n_features,) in double; a `centre` of None is zero.
    """
