from collections.abc import Sequence
from typing import Any

from dps._kernels.optimizers import UpdateKernel

class LazyUpdate:
    """Updates at the keys of sparse gradients; all other coordinates follow when needed.

    Updates are counted over the life of the parameters; ``since`` (n,) int64 says up to which a
    coordinate is up to date.

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
        runs: Sequence[tuple[int, int, int]],
        single: bool,
    ) -> None: ...
    def begin(self, rates: Any, before: int) -> None:
        """Take in the learning rates of the updates behind so many."""
    def gather(self, params: Any, state: Any, since: Any, keys: Any, out: Any, *, now: int) -> None:
        """``out`` = the parameters at ``keys`` (m,) int64 after update `now`; they stay."""
    def apply(
        self,
        params: Any,
        state: Any,
        since: Any,
        keys: Any,
        grad: Any,
        *,
        now: int,
    ) -> bool:
        """Update `now`, with its rate, at distinct keys; True if all are finite."""
    def flush(
        self,
        params: Any,
        state: Any,
        since: Any,
        start: int,
        stop: int,
        *,
        now: int,
    ) -> bool:
        """Bring ``[start, stop)`` up to update `now`; True if finite."""
