from collections.abc import Sequence
from typing import Any

from dps._kernels.optimizers import UpdateKernel

class LazyUpdate:
    """Updates at the keys of sparse gradients; all other coordinates follow when needed.

    Steps are counted within an epoch, from 1; ``since`` (n,) int32 says, from step `base` on, up to
    which a coordinate is up to date.

    Parameters
    ----------
    kernel : UpdateKernel
        One whose `lazy` is true.
    l1, l2 : float
    runs : sequence of (int, int, bool)
        Runs of coordinates and whether they are penalised, ascending, without gaps.
    single : bool
        Whether vectors are float32.
    """

    single: bool
    steps: int
    before: int
    def __init__(
        self,
        kernel: UpdateKernel,
        l1: float,
        l2: float,
        runs: Sequence[tuple[int, int, bool]],
        single: bool,
    ) -> None: ...
    def begin(self, rates: Any, before: int) -> None:
        """Begin an epoch behind so many updates, with the learning rate of each step."""
    def gather(
        self, params: Any, state: Any, since: Any, keys: Any, out: Any, *, base: int, now: int
    ) -> None:
        """``out`` = the parameters at ``keys`` (m,) int32 after step `now`; they do not change."""
    def apply(
        self,
        params: Any,
        state: Any,
        since: Any,
        keys: Any,
        grad: Any,
        *,
        base: int,
        now: int,
    ) -> bool:
        """Step `now` of the epoch, with its rate, at distinct keys; True if all are finite."""
    def settle(
        self,
        params: Any,
        state: Any,
        since: Any,
        start: int,
        stop: int,
        *,
        base: int,
        now: int,
    ) -> bool:
        """Bring ``[start, stop)`` up to step `now`, and set ``since`` to 0; True if finite."""
