from typing import Any

from dps._kernels.losses import LossKernel
from dps._kernels.rows import Gradient

class LinearGradient(Gradient):
    """Of `X @ coef + intercept` under a loss.

    Parameters are (n_features, n_outputs) coefficients and, if `intercept`, n_outputs
    intercepts behind them, in float32 if `single`, else float64. They belong to
    ``(X - centre) / scale``, both of shape (n_features,), zero and one without.
    """

    def __init__(
        self,
        n_features: int,
        n_outputs: int,
        loss: LossKernel,
        intercept: bool,
        single: bool,
        centre: Any = ...,
        scale: Any = ...,
    ) -> None: ...
