from typing import Any

from dps._kernels.lazy import LazyUpdate
from dps._kernels.push import Push
from dps.optimizers.update import Rates

class KeyedPush(Push):
    """A rank's pulls and pushes by keys on one mapped shard, without the interpreter."""

    def __init__(
        self,
        *args: Any,
        lazy: LazyUpdate,
        width: int,
        since: Any,
        keys: Any,
        key_counts: Any,
        **more: Any,
    ) -> None:
        """`width` is that of a slice; arrays are the window's, but for `since` in allreduce."""
    def begin(self, rates: Rates, epoch: int) -> None:
        """Begin an epoch of the fit."""

class SynchronousKeyedPush(KeyedPush): ...

class AllReduceKeyedPush(KeyedPush):
    """Takes also `values`, (1 + state_rows, n), and the window's `total_keys`, `total_counts`."""

class AsynchronousKeyedPush(KeyedPush): ...
