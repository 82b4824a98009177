from typing import Any

from dps._kernels.losses import LossKernel
from dps._kernels.rows import Gradient

class LinearGradient(Gradient):
    """Of `X @ coef + intercept` under a loss.

    Parameters are (n_features, n_outputs) coefficients and, if `intercept`, n_outputs
    intercepts behind them, in float32 if `single`, else float64. These are the raw outputs at
    `centre`, (n_features,), or at zero without one.
    """

    def __init__(
        self,
        n_features: int,
        n_outputs: int,
        loss: LossKernel,
        intercept: bool,
        single: bool,
        centre: Any = ...,
    ) -> None: ...
