"""A caller's way to one shard of named tensors, as others see it; and one in this process."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dps.server.holding import Holding

__all__ = ["Access", "Keys", "LocalAccess", "Pending", "Values"]

Keys = NDArray[np.int64] | None
Values = NDArray[np.floating] | None


class Pending(Protocol):
    """A request that has been sent."""

    def result(self) -> tuple[int, int]:
        """How it ended (`Ending`), and writes to the part so far; what is read is in place."""
        ...


class Access(Protocol):
    """A caller's way to one shard. Parts have numbers, in the order of the server's tensors."""

    def peek(self, part: int, start: int, keys: Keys, out: NDArray[np.floating]) -> int | None:
        """Read in memory, see `TensorPart.peek`; None where the shard must be asked."""
        ...

    def begin(
        self,
        op: int,
        part: int,
        start: int,
        keys: Keys,
        values: Values,
        rows: float,
        out: Values,
    ) -> Pending:
        """Send a request, see `Caller.ask`."""
        ...

    def call(self, method: str, *args: Any) -> Any:
        """Call a function of the shard's, see `Holding`."""
        ...


class Done:
    """The answer of a shard in this process."""

    def __init__(self, ended: tuple[int, int]) -> None:
        self._ended = ended

    def result(self) -> tuple[int, int]:
        """See `Pending`."""
        return self._ended


class LocalAccess:
    """A shard in this process.

    Parameters
    ----------
    holding : Holding
    """

    def __init__(self, holding: Holding) -> None:
        self._holding = holding

    def peek(self, part: int, start: int, keys: Keys, out: NDArray[np.floating]) -> int | None:
        """Read, see `Access.peek`."""
        return self._holding.parts[part].peek(start, keys, out)

    def begin(
        self,
        op: int,
        part: int,
        start: int,
        keys: Keys,
        values: Values,
        rows: float,
        out: Values,
    ) -> Done:
        """Do what is asked for at once, see `Access.begin`."""
        return Done(self._holding.parts[part].do(op, start, keys, values, rows, out))

    def call(self, method: str, *args: Any) -> Any:
        """Call it, see `Access.call`."""
        return self._holding.call(method, *args)
