from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps._runtime.activity import Activity
from dps._runtime.ends import End
from dps._runtime.step import Step
from dps._runtime.synchronous import SynchronousEnd

class BackupsEnd(SynchronousEnd): ...

class BackupsStep(Step):
    """Steps of which others may take some without this rank; `late`: what comes late counts."""

    def __init__(
        self,
        rank: int,
        ends: Sequence[End],
        params: NDArray[np.floating],
        total: NDArray[np.floating],
        version: int,
        activity: Activity,
        rates: Any,
        late: bool,
    ) -> None: ...
