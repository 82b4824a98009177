import numpy as np
from numpy.typing import NDArray

def compensate_delay(
    grad: NDArray[np.floating],
    now: NDArray[np.floating],
    pulled: NDArray[np.floating],
    strength: float,
) -> None:
    """``grad += strength * grad**2 * (now - pulled)``, in place; (n,) of one dtype each."""
