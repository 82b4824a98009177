from typing import Any

from dps._kernels.losses import LossKernel
from dps._kernels.waiting import WaitingGradient

class FactorizationGradient(WaitingGradient):
    """Of a factorization machine under a loss, shaped as `dps.models.factorization` says."""

    def __init__(self, shape: Any, loss: LossKernel, *, single: bool) -> None: ...
