"""Means over ranks and broadcasts, on any links or, where windows are mapped, by a kernel.

Both are the same to the other ranks, which may do it the other way. The protocol is in
``dps/server/operations.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dps._kernels.meeting import Meeting
from dps.errors import NonFiniteError, StoppedError
from dps.server import operations
from dps.server.links import Link
from dps.server.placement import Placement
from dps.server.window import Operation

__all__ = ["ByKernel", "ByLinks", "Made", "Meetings", "raise_unless_ran"]

#: How a kernel's loop over meetings ended.
Ending = Literal["ran", "gradient", "update", "stopped"]
#: A vector, which is valid until the next meeting, and the notes that go along.
Made = tuple[NDArray[np.floating], NDArray[np.float64]]


class Meetings(Protocol):
    """How a rank takes part, see :meth:`Channel.mean` and :meth:`Channel.broadcast`."""

    @property
    def kernel(self) -> Meeting | None:
        """What does so without the interpreter."""
        ...

    def mean(
        self, number: int, values: NDArray[np.floating], rows: int, notes: Sequence[float]
    ) -> Made:
        """Bring vectors of all ranks together."""
        ...

    def broadcast(self, number: int, values: NDArray[np.floating], notes: Sequence[float]) -> Made:
        """Have what rank 0 gives."""
        ...


class ByLinks:
    """Operations on each shard, wherever it is.

    Parameters
    ----------
    rank : int
    placement : Placement
    links : list of Link
    total : (n,) array
        Where vectors are put together.
    """

    kernel = None

    def __init__(
        self, rank: int, placement: Placement, links: list[Link], total: NDArray[np.floating]
    ) -> None:
        self._rank = rank
        self._placement = placement
        self._links = links
        self._total = total

    def mean(
        self, number: int, values: NDArray[np.floating], rows: int, notes: Sequence[float]
    ) -> Made:
        """Bring vectors together, see :meth:`Meetings.mean`."""
        given = [(part, rows) for part in self._parts(values)]
        return self._run(operations.mean, number, given, notes)

    def broadcast(self, number: int, values: NDArray[np.floating], notes: Sequence[float]) -> Made:
        """Have what rank 0 gives, see :meth:`Meetings.broadcast`."""
        parts = self._parts(values) if self._rank == 0 else [None] * len(self._links)
        return self._run(operations.broadcast, number, [(part,) for part in parts], notes)

    def _parts(self, values: NDArray[np.floating]) -> list[Any]:
        return [self._placement.take(shard, values) for shard in range(len(self._links))]

    def _run(
        self,
        operation: Callable[..., Operation],
        number: int,
        given: Sequence[tuple[Any, ...]],
        notes: Sequence[float],
    ) -> Made:
        """An operation on all shards; the notes go along with the first."""
        for shard, link in enumerate(self._links):
            link.start(operation, number, *given[shard], [] if shard else list(notes))
        results = [link.finish() for link in self._links]
        for shard, (part, _) in enumerate(results):
            self._placement.put(shard, part, self._total)
        return self._total, results[0][1]


class ByKernel:
    """All in one call without the interpreter.

    Parameters
    ----------
    rank : int
    kernel : Meeting
    total : (n,) array
        Where the kernel puts vectors.
    """

    def __init__(self, rank: int, kernel: Meeting, total: NDArray[np.floating]) -> None:
        self._rank = rank
        self.kernel = kernel
        self._total = total

    def mean(
        self, number: int, values: NDArray[np.floating], rows: int, notes: Sequence[float]
    ) -> Made:
        """Bring vectors together, see :meth:`Meetings.mean`."""
        return self._ended(number, *self.kernel.mean(number, values, rows, notes))

    def broadcast(self, number: int, values: NDArray[np.floating], notes: Sequence[float]) -> Made:
        """Have what rank 0 gives, see :meth:`Meetings.broadcast`."""
        return self._ended(number, *self.kernel.broadcast(number, values, notes))

    def _ended(
        self,
        number: int,
        ending: Ending,
        notes: NDArray[np.float64],
    ) -> Made:
        raise_unless_ran(ending, self._rank, number)
        return self._total, notes


def raise_unless_ran(ending: Ending, rank: int, step: int) -> None:
    """Say how meetings without the interpreter ended, unless well.

    Raises
    ------
    NonFiniteError, StoppedError
    """
    if ending == "stopped":
        raise StoppedError("the fit was stopped")
    if ending != "ran":
        raise NonFiniteError.of(ending, rank=rank, step=step)
