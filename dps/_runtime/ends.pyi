from collections.abc import Callable, Sequence
from typing import Any

from dps._runtime.activity import Activity
from dps._runtime.wire import Wire

class End:
    """A rank's end of one shard, which has `size` elements of the whole vector, in `ranges`."""

    size: int
    n_ranks: int
    far: bool

class MappedEnd(End):
    """An end in the memory of the shard's window (`dps.server.window.Window`).

    `shard` is the row of the account that its shard has. ``until(field, word, value)`` goes on
    with a wait that has taken `tick` seconds.
    """

    def __init__(
        self,
        window: Any,
        rank: int,
        shard: int,
        ranges: Sequence[tuple[int, int]],
        until: Callable[[int, int, int], None],
        tick: float,
        activity: Activity,
    ) -> None: ...
    def flush(self, epoch: int) -> bool:
        """Apply what lazy updates have left behind, while nobody pushes; whether all is finite."""
    def rest(self, clock: int) -> None:
        """The rank takes no more steps in this epoch; `clock` are those up to its end."""

class HostEnd(MappedEnd):
    """A rank's end of the window of its host, in which ranks sum before rank 0 of them sends."""

    leads: bool
    def __init__(
        self,
        window: Any,
        rank: int,
        ranges: Sequence[tuple[int, int]],
        until: Callable[[int, int, int], None],
        tick: float,
        activity: Activity,
    ) -> None: ...

class FarEnd(End):
    """An end over a wire; `raised` makes the exception of a pickle.

    The row of `shard` in the account is sent there four times a second.
    """

    pending: bool
    def __init__(
        self,
        dtype: str,
        size: int,
        n_ranks: int,
        ranges: Sequence[tuple[int, int]],
        key_width: int,
        wire: Wire,
        raised: Callable[[Any], BaseException],
        shard: int,
        activity: Activity,
    ) -> None: ...
    def account(self) -> None:
        """Send what the rank has counted."""
    def call(self, message: bytes) -> bytearray:
        """Have a function called at the shard; its pickled answer."""
