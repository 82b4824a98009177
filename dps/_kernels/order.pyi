import numpy as np
from numpy.typing import NDArray

def derived(key: int, first: int, second: int) -> int:
    """A key of 64 bits for each pair of numbers, which are below 2**64."""

def shuffle(values: NDArray[np.int64], key: int) -> None:
    """Put `values` into the order that belongs to a key of 64 bits."""
