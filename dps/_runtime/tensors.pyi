from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

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
        op: int,
        start: int,
        keys: Keys,
        values: NDArray[np.floating] | None,
        weight: float,
        out: NDArray[np.floating] | None,
    ) -> tuple[int, int]:
        """The same for a caller in the shard's process: `Ending`, and writes so far."""
