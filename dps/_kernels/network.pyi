from typing import Any

from dps._kernels.losses import LossKernel
from dps._kernels.waiting import WaitingGradient

class NetworkGradient(WaitingGradient):
    """Of a network under a loss, whose shape is that of :class:`dps.models.network.Shape`."""

    def __init__(self, shape: Any, loss: LossKernel, *, single: bool) -> None: ...
