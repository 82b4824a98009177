import numpy as np
from numpy.typing import NDArray

def displacement(
    old: NDArray[np.floating], new: NDArray[np.floating], rows: float, out: NDArray[np.floating]
) -> None:
    """``out = rows * (old - new)``, of vectors of one length and dtype."""

def multiple(x: NDArray[np.floating], by: float, out: NDArray[np.floating]) -> None:
    """``out = by * x``."""
