import numpy as np
from numpy.typing import NDArray

from dps._kernels.pairs import CurvaturePairs

class ProximalStep:
    """Steps to where ``g . d + d . B d / 2 + |weights * (at + d)|_1`` is least.

    `B` is the Hessian's estimate that the pairs make, in compact form. Coordinates that are
    zero, and that the gradient does not move, stay: the others are descended along one by one.

    Parameters
    ----------
    pairs : CurvaturePairs
    weights : (n,) array
        Of the L1 norm; 0 where there is none.
    """

    def __init__(self, pairs: CurvaturePairs, weights: NDArray[np.float64]) -> None: ...
    def norm_of(self, point: NDArray[np.float64]) -> float:
        """The L1 norm of a point, with its weights."""
    def take_in_pair(self) -> None:
        """Take note of a pair; called after each one that is kept."""
    def direction(
        self,
        at: NDArray[np.float64],
        gradient: NDArray[np.float64],
        out: NDArray[np.float64],
    ) -> float:
        """Write the step; by how much it changes the norm and what is linear, which is negative."""
