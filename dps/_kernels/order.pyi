import numpy as np
from numpy.typing import NDArray

def shuffle(values: NDArray[np.int64], key: int) -> None:
    """Put `values` into the order that belongs to a key of 64 bits."""
