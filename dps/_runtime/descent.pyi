from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dps._kernels.coordinates import Coordinates
from dps._runtime.passes import Pass
from dps._runtime.step import Step

class Search:
    """L-BFGS on a penalised mean loss, told sums over all ranks.

    Parameters
    ----------
    start : (n,) float32 or float64 array
        The parameters to begin at; all others have its dtype.
    coordinates : Coordinates
        Where steps are taken.
    penalty : (n,) float64 array
        The objective has half the sum of its products with the squares of the parameters.
    tolerance : float
        The gain in the objective that another pass must promise.
    precision : float
        Relative error of the sums.
    least : float
        A gain in the objective that counts.
    patience : int
        Accepted steps in a row of less than that which are enough.
    relative : float, default=inf
        The gain that another pass must promise as a share of the objective, where that is less.
    l1 : (n,) float64 array, optional
        The objective has the sum of its products with the sizes of the parameters.
    width : float, default=0.0
        Of the parabolas that stand for kinks of the loss at first; 0: it has none.
    near : float, default=0.0
        The share of the objective that these may take in the end, as is proven, see `LossKernel`.

    Attributes
    ----------
    width : float
        Of the parabolas at the point that is looked at next.
    gap : bool
        Whether what they take is to be given to `tell`, in place of the loss.
    """

    width: float
    gap: bool

    def __init__(
        self,
        start: NDArray[np.floating],
        coordinates: Coordinates,
        penalty: NDArray[np.float64],
        tolerance: float,
        precision: float,
        least: float,
        patience: int,
        *,
        relative: float = ...,
        l1: NDArray[np.float64] | None = None,
        width: float = ...,
        near: float = ...,
    ) -> None: ...
    @property
    def enough(self) -> bool:
        """Whether nothing more is to be expected."""
    def resume(self, rows: float, share: float) -> None:
        """Go on from the best point, on one row of each `share`, `rows` in all; also to begin.

        What is told next is of that point: after a first time, of the one that `write` gives.
        """
    def tell(self, total: float, mean: NDArray[np.floating] | None) -> bool:
        """Take the sum of losses and the mean gradient at the point; whether it is now the best.

        `total` is infinite or NaN, and `mean` None, where there is no value.
        """
    def write(self, out: NDArray[np.floating]) -> None:
        """Write the parameters that are looked at next, (n,)."""

class DescentStep:
    """Steps of a rank; `search` is told on rank 0 alone.

    Parameters
    ----------
    rows : Pass
    ranks : Step
        Which says whose rank it is, and is used by nobody else meanwhile.
    search : Search
    point : (n,) array
        Where the rows are looked at, of the search's dtype; afterwards the next one.
    best : (n,) array
        Where the best point is put whenever there is a new one.
    """

    def __init__(
        self,
        rows: Pass,
        ranks: Step,
        search: Search,
        point: NDArray[np.floating],
        best: NDArray[np.floating],
    ) -> None: ...
    @property
    def loss(self) -> float:
        """The sum of losses over the rank's rows at the last step's point."""
    @property
    def accepted(self) -> bool:
        """Whether that is the best point so far; the same on all ranks."""
    @property
    def enough(self) -> bool:
        """Whether rank 0 expects nothing more; the same on all ranks."""
    def run(self) -> Literal["ran", "gradient", "update", "stopped", "start"]:
        """Take a step; how it ended: `start` is that there is no value where the search begins."""
