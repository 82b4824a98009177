from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps._runtime.activity import Activity
from dps._runtime.allreduce import AllReduceStep
from dps._runtime.ends import End, HostEnd

class RingStep(AllReduceStep):
    """Steps on `held`, whose whole vectors go round; the rank is member `place`, or none (-1)."""

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
        place: int,
    ) -> None: ...
