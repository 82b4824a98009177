"""Sync: the shards hold the parameters, and an update waits for every rank.

One step applies ``sum_r g_r / sum_r n_r``, summed in rank order, so the result is bit
for bit that of one process which sums the same sub-batches in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dps._kernels.push import Push, SynchronousPush
from dps.errors import NonFiniteError
from dps.modes.base import Channel, ChannelSpec, Mode
from dps.server import operations
from dps.server.links import Link
from dps.server.window import Operation, Window, Word

__all__ = ["Sync", "SynchronousChannel"]


@dataclass(frozen=True)
class Sync(Mode):
    """Every update waits for all replicas (the default).

    Examples
    --------
    >>> Sync().steps([600, 400], batch_size=100)
    (10, 10)
    """

    name: ClassVar[str] = "sync"
    deterministic: ClassVar[bool] = True

    def steps(self, rows: Sequence[int], batch_size: int) -> tuple[int, ...]:
        """All ranks take the same steps; a batch is shared out among them."""
        return (-(-sum(rows) // batch_size),) * len(rows)

    def channel(self, spec: ChannelSpec, links: list[Link]) -> Channel:
        """A rank's end of the barrier."""
        return SynchronousChannel(spec, links)


class SynchronousChannel(Channel):
    """Push, wait for all, read what came of it."""

    def __init__(self, spec: ChannelSpec, links: list[Link]) -> None:
        super().__init__(spec, links)
        self._params = np.empty(spec.size, spec.dtype)
        self._version: int | None = None

    def pull(self) -> NDArray[np.floating]:
        """Copy the parameters out, see :meth:`Channel.pull`."""
        for shard, link in enumerate(self._links):
            params, version = link.run(operations.pull)
            if self._version is None:
                self._version = version
            self._take_in(shard, params)
        return self._params

    def push_pull(
        self, grad: NDArray[np.floating], rows: int, epochs_done: float
    ) -> NDArray[np.floating]:
        """Hand over a gradient, see :meth:`Channel.push_pull`."""
        if self._version is None:
            raise RuntimeError("pull the parameters before the first push")
        self._sequence += 1
        rate = self._spec.schedule(epochs_done)
        step = self._version + self._sequence
        placement = self._spec.placement
        for shard, link in enumerate(self._links):
            piece = placement.take(shard, grad)
            link.start(update, self._sequence, piece, rows, step, rate)
        for shard, link in enumerate(self._links):
            self._take_in(shard, link.finish())
        return self._params

    def _take_in(self, shard: int, params: NDArray[np.floating]) -> None:
        # Those of one shard are read where they lie, in the window or where the gateway has
        # put them: nobody writes them before this rank has arrived at the next barrier.
        if len(self._links) == 1:
            self._params = np.require(params, requirements=["C", "A"])
        else:
            self._spec.placement.put(shard, params, self._params)

    def native(self) -> Push | None:
        """Pushes without the interpreter, see :meth:`Channel.native`."""
        window = self._links[0].window
        if len(self._links) == 1 and window is not None:
            self._params = window.params
        return self._push(SynchronousPush, self._params, self._version or 0)


def update(
    window: Window,
    rank: int,
    sequence: int,
    gradient: NDArray[np.floating],
    rows: int,
    step: int,
    rate: float,
) -> Operation:
    """One synchronous update of a shard; its parameters afterwards.

    Every rank applies the mean to its own slice of the parameters. Element-wise
    optimizers make the slices invisible in the result.
    """

    def use(mean: NDArray[np.floating], start: int, stop: int) -> None:
        assert window.update is not None
        finite = window.update.apply(
            window.params, mean, window.state, start, stop, step=step, lr=rate
        )
        if not finite:
            raise NonFiniteError.of(
                "update",
                rank=rank,
                step=sequence,
            )
        if rank == 0:
            window.words.store(Word.VERSION, step)

    yield from operations.exchange(window, rank, sequence, gradient, rows, use)
    return window.params
