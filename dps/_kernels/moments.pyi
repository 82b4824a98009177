from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps._kernels.rows import BlockRows

def column_sums(
    block: BlockRows, order: NDArray[np.int64], centre: Any, out: NDArray[np.float64]
) -> None:
    """Add to `out` the weighted sums of the columns over rows `order`.

    With a `centre`, (n_features,) in double, of their squared distances from it.
    """
