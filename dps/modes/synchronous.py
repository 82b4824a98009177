"""Sync: the shards hold the parameters, and an update waits for every rank.

One step applies ``sum_r g_r / sum_r n_r``, summed in rank order, so the result is bit
for bit that of one process which sums the same sub-batches in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dps._kernels.keyed_push import KeyedPush, SynchronousKeyedPush
from dps._kernels.push import Push, SynchronousPush
from dps.errors import NonFiniteError
from dps.modes.base import Channel, ChannelSpec, Mode
from dps.optimizers.update import Rates
from dps.server import keyed, operations
from dps.server.keyed import Keys
from dps.server.links import Link
from dps.server.window import Operation, Window, Word, immediate

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
    keyed: ClassVar[bool] = True

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

    def pull_keys(self, keys: Keys, epoch: int, step: int) -> NDArray[np.floating]:
        """Read what a batch will touch, see :meth:`Channel.pull_keys`."""
        values = np.empty(len(keys), self._spec.dtype)
        told = self._told(keys)
        for link, (_, local) in zip(self._links, told, strict=True):
            link.start(pull_keys, local, epoch, step)
        for link, (at, _) in zip(self._links, told, strict=True):
            values[at] = link.finish()
        return values

    def push_keys(
        self, values: NDArray[np.floating], keys: Keys, rows: int, epoch: int, step: int
    ) -> None:
        """Hand over a sparse gradient, see :meth:`Channel.push_keys`."""
        self._sequence += 1
        told = self._told(keys)
        for link, (at, local) in zip(self._links, told, strict=True):
            link.start(update_keys, self._sequence, values[at], local, rows, epoch, step)
        for link in self._links:
            link.finish()

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

    def native_keyed(self) -> KeyedPush | None:
        """Pushes by keys without the interpreter, see :meth:`Channel.native_keyed`."""
        return self._keyed_push(SynchronousKeyedPush, self._version or 0)


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


@immediate
def pull_keys(window: Window, rank: int, told: Keys | None, epoch: int, step: int) -> Any:
    """Parameters after a step of an epoch; nobody writes them before this rank's next push."""
    kept = keyed.aside(window, rank)
    keys = kept.keys(told)
    values = np.empty(len(keys), window.spec.dtype)
    kept.lazy(epoch, Rates.of_epoch).gather(
        window.params, window.state, window.since, keys, values, base=0, now=step
    )
    return values


def update_keys(
    window: Window,
    rank: int,
    sequence: int,
    values: NDArray[np.floating],
    told: Keys | None,
    rows: int,
    epoch: int,
    step: int,
) -> Operation:
    """One synchronous update by keys; the last one of an epoch settles all parameters."""
    lazy = keyed.aside(window, rank).lazy(epoch, Rates.of_epoch)
    held = (window.params, window.state, window.since)

    def use(keys: Keys, mean: NDArray[np.floating]) -> None:
        finite = lazy.apply(*held, keys, mean, base=0, now=step)
        if step == lazy.steps:
            finite &= lazy.settle(*held, *window.slice(rank), base=0, now=step)
        if not finite:
            raise NonFiniteError.of("update", rank=rank, step=sequence)
        if rank == 0:
            window.words.store(Word.VERSION, lazy.before + step)

    yield from keyed.exchange(window, rank, sequence, values, told, rows, use)
