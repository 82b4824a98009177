import numpy as np
from numpy.typing import NDArray

class Coordinates:
    """The parameters themselves as coordinates of a search, `size` of them."""

    def __init__(self, size: int) -> None: ...
    @property
    def size(self) -> int: ...
    def params(self, point: NDArray[np.float64]) -> NDArray[np.float64]:
        """The flat parameters at a point."""
    def point(self, params: NDArray[np.float64]) -> NDArray[np.float64]:
        """The point of flat parameters."""
    def gradient(self, gradient: NDArray[np.float64]) -> NDArray[np.float64]:
        """The gradient with respect to the point, from that of the parameters."""

class Standardised(Coordinates):
    """The point u with ``coef = u / scale`` and ``intercept = u_0 / scale_0 - mean . coef``.

    These are the coefficients of the features ``(x - mean) / scale``; no row is touched.

    Parameters
    ----------
    mean : (n_features,) float64 array
        Zeros without an intercept.
    scale : (n_features,) float64 array
        Not zero.
    scale_0 : float
        Not zero.
    n_outputs : int
    intercept : bool
        Whether there is one: the last `n_outputs` parameters.
    """

    def __init__(
        self,
        mean: NDArray[np.float64],
        scale: NDArray[np.float64],
        scale_0: float,
        n_outputs: int,
        intercept: bool,
    ) -> None: ...
    @property
    def mean(self) -> NDArray[np.float64]: ...
    @property
    def scale(self) -> NDArray[np.float64]: ...
