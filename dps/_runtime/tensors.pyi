from collections.abc import Callable
from enum import IntEnum
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dps._runtime.wire import Wire

class Order(IntEnum):
    """What a caller asks of a part."""

    CALL = ...
    READ = ...
    PUSH = ...
    ADD = ...
    ASSIGN = ...

class Ending(IntEnum):
    """How that ended."""

    DONE = ...
    NOT_FINITE = ...
    OUTSIDE = ...
    FULL_TABLE = ...
    GONE = ...
    OVERFLOWN = ...
    FAILED = ...

Keys = NDArray[np.int64] | None

class TensorPart:
    """A tensor's or table's part at a shard: it is read and written through this.

    As a context it is held still. Where `store` is mapped, and another process writes, it is for
    `peek` alone.

    Parameters
    ----------
    store : Store
    rate : float
        Learning rate of pushes.
    patience : float
        Seconds for which somebody may hold it still while others wait.
    """

    def __init__(self, store: Any, rate: float = 0.0, patience: float = 60.0) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...
    def writing(self, begins: bool) -> None:
        """Say that a write begins or has ended; in pairs, while the part is held."""
    def peek(self, start: int, keys: Keys, out: NDArray[np.floating]) -> int | None:
        """Read without the shard; None where it must be asked, else an `Ending`.

        Of elements from `start` on, or, where that is -1, of `keys`.
        """
    def do(
        self,
        order: int,
        start: int,
        keys: Keys,
        values: NDArray[np.floating] | None,
        rows: float,
        out: NDArray[np.floating] | None,
    ) -> tuple[int, int]:
        """The same for a caller in the shard's process: `Ending`, and writes so far."""

class TensorService:
    """The shard's side of one caller.

    Parameters
    ----------
    parts : sequence of TensorPart
    wire : Wire
    """

    def __init__(self, parts: list[TensorPart], wire: Wire) -> None: ...
    def serve_all(
        self, respond: Callable[[bytes], bytes], pickled: Callable[[Exception], bytes]
    ) -> None:
        """Serve until the caller closes the wire: a thread's whole life.

        ``respond(bytes)`` calls what a message means, and does not raise; `pickled` are the bytes
        of an exception.
        """

class Caller:
    """A caller's side of its wire to one shard; one request at a time.

    Attributes
    ----------
    broken : bool
        Whether a request has been sent whose answer has not come: the wire is of no use.
    """

    broken: bool
    def __init__(self, wire: Wire) -> None: ...
    def ask(
        self,
        order: int,
        tensor: int,
        start: int,
        keys: Keys,
        values: NDArray[np.floating] | None,
        rows: float,
        back: NDArray[np.floating] | None,
    ) -> None:
        """Send a request; `hear` has to follow, with `back` where the elements are wanted."""
    def hear(self, out: NDArray[np.floating] | None) -> tuple[int, int, bytes | None]:
        """Wait for the answer: `Ending`, writes so far, and a pickled exception."""
    def call(self, message: bytes) -> tuple[int, bytearray]:
        """Have a message answered in Python: `Ending`, bytes."""
    def close(self) -> None:
        """Leave."""
