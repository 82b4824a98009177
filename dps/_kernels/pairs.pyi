import numpy as np
from numpy.typing import NDArray

class CurvaturePairs:
    def __init__(self, size: int, memory: int, cosine: float) -> None:
        """`cosine`: of the angle between a step and its change, below which a pair is left out."""
    def __len__(self) -> int: ...
    def add(
        self,
        start: NDArray[np.float64],
        end: NDArray[np.float64],
        before: NDArray[np.float64],
        after: NDArray[np.float64],
    ) -> bool: ...
    def direction(self, gradient: NDArray[np.float64], out: NDArray[np.float64]) -> float:
        """Write the direction to `out`, which `gradient` must not overlap; its slope."""
