from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps._runtime.activity import Activity
from dps._runtime.ends import End, HostEnd, MappedEnd
from dps._runtime.step import Step

class AllReduceEnd(MappedEnd): ...

class AllReduceStep(Step):
    """A rank's steps on `held`, its own copy of parameters and state, (1 + state_rows, size)."""

    def __init__(
        self,
        rank: int,
        ends: Sequence[End],
        held: NDArray[np.floating],
        total: NDArray[np.floating],
        version: int,
        activity: Activity,
        update: Any,
        host: HostEnd | None = None,
    ) -> None: ...
