from typing import Any

from dps._kernels.losses import LossKernel
from dps._kernels.rows import BlockRows, Gradient

class FactorizationGradient(Gradient):
    """Of a factorization machine under a loss, shaped as `dps.models.factorization` says."""

    def __init__(self, shape: Any, loss: LossKernel, *, single: bool) -> None: ...
    def raw_batch(self, block: BlockRows, order: Any, params: Any, out: Any) -> None:
        """Write the raw outputs of rows `order`, or of all, (m, n_outputs)."""
