from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dps._kernels.activity import Activity

class Push:
    """A rank's pushes to all shards whose windows it maps, without the interpreter."""

    sequence: int
    version: int
    def __init__(
        self,
        rank: int,
        params: Any,
        shards: Sequence[Mapping[str, Any]],
        places: Mapping[str, int],
        sequence: int,
        version: int,
        tick: float,
        until: Callable[[int, int, int, int], None],
        activity: Activity,
    ) -> None: ...
    def staleness(self) -> tuple[float, float]:
        """Sum and largest staleness since the last call."""

class SynchronousPush(Push): ...

class AllReducePush(Push):
    def __init__(self, *args: Any, held: Any, how: Any) -> None:
        """`held` is (1 + state_rows, n), parameters and state; `how` as a shard's update."""

class AsynchronousPush(Push):
    versions: list[int]
    def __init__(self, *args: Any, versions: Sequence[int]) -> None:
        """`versions` are those that the parameters have, shard by shard."""
