from typing import Any

import numpy as np
from numpy.typing import NDArray

class LBFGS:
    """Limited-memory BFGS (Nocedal and Wright, 2006, algorithm 7.4) with backtracking.

    A step is shortened by quadratic interpolation until the decrease is sufficient, and
    followed by a longer one where the slope has hardly changed. For a convex function
    ``s . y`` is never negative; a pair in which it vanishes is left out. Coordinates should
    be such that the function curves by about one: the first step relies on it.

    With an L1 norm the steps are proximal ones, see `ProximalStep`, and end at exact zeros.

    Parameters
    ----------
    start : (n,) array
    tolerance : float
        The gain that the quadratic model must still promise for another step.
    precision : float
        Relative error of the values told.
    relative : float, default=inf
        The same, as a share of the value, where that is less; a hundredth of it at least.
    weights : (n,) array, optional
        Of an L1 norm, which is minimised with the function.
    """

    def __init__(
        self,
        start: Any,
        tolerance: float,
        precision: float,
        relative: float = ...,
        weights: NDArray[np.float64] | None = None,
    ) -> None: ...
    @property
    def size(self) -> int: ...
    @property
    def point(self) -> NDArray[np.float64]:
        """Where the function is to be evaluated next, (n,); a copy."""
    @property
    def best(self) -> NDArray[np.float64]:
        """The best point so far, (n,); a copy."""
    @property
    def converged(self) -> bool: ...
    @property
    def extending(self) -> bool:
        """Whether the next point lies farther in the same direction."""
    def resume(self, tolerance: float) -> None:
        """Go on from the best point, on another function that curves alike."""
    def tell(self, value: float, gradient: Any) -> bool:
        """Take the function's value and gradient at `point`, and choose the next point.

        Parameters
        ----------
        value : float
            Infinite or NaN where the function has no value.
        gradient : (n,) array or None
            None where there is none.

        Returns
        -------
        bool
            Whether the point has become the best one.
        """
