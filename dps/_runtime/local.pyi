from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps._runtime.activity import Activity
from dps._runtime.allreduce import AllReduceStep
from dps._runtime.ends import End, HostEnd

class LocalStep(AllReduceStep):
    """Steps on `held`, which `meeting` brings together with other ranks' every `period` steps.

    `outer` is the optimizer that takes the mean way of all copies for a gradient, at `rate`.
    """

    def __init__(
        self,
        rank: int,
        ends: Sequence[End],
        held: NDArray[np.floating],
        total: NDArray[np.floating],
        version: int,
        activity: Activity,
        update: Any,
        host: HostEnd | None,
        meeting: AllReduceStep,
        period: int,
        outer: Any,
        rate: float,
    ) -> None: ...
