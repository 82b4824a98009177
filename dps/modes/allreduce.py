"""Allreduce: every replica holds the parameters and applies the same mean gradient.

The shards lend windows with gradient slots and no parameters. The mean is the one that
sync applies, computed by the same lines, and so is the update: all ranks hold the same
bits, and they are those of sync.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dps._kernels.keyed_push import AllReduceKeyedPush, KeyedPush
from dps._kernels.lazy import LazyUpdate
from dps._kernels.push import AllReducePush, Push
from dps.errors import NonFiniteError
from dps.modes.base import Channel, ChannelSpec, Mode
from dps.server import keyed, operations
from dps.server.keyed import Keys
from dps.server.links import Link
from dps.server.window import Operation, Window, Word, immediate

__all__ = ["AllReduce", "AllReduceChannel"]


@dataclass(frozen=True)
class AllReduce(Mode):
    """Replicas reduce their gradients and each applies the same update to its copy.

    Examples
    --------
    >>> AllReduce().shards_hold_parameters
    False
    """

    name: ClassVar[str] = "allreduce"
    deterministic: ClassVar[bool] = True
    keyed: ClassVar[bool] = True
    shards_hold_parameters: ClassVar[bool] = False

    def steps(self, rows: Sequence[int], batch_size: int) -> tuple[int, ...]:
        """All ranks take the same steps; a batch is shared out among them."""
        return (-(-sum(rows) // batch_size),) * len(rows)

    def channel(self, spec: ChannelSpec, links: list[Link]) -> Channel:
        """A rank's copy of the parameters and its place in the reduction."""
        return AllReduceChannel(spec, links)


class AllReduceChannel(Channel):
    """Bring gradients together, update the own copy."""

    def __init__(self, spec: ChannelSpec, links: list[Link]) -> None:
        super().__init__(spec, links)
        self._mean = np.empty(spec.size, spec.dtype)
        self._values: NDArray[np.floating] | None = None
        self._version = 0
        self._since = np.zeros(spec.size if spec.update.rates else 0, np.int32)
        self._lazy: tuple[int, LazyUpdate] | None = None

    def pull(self) -> NDArray[np.floating]:
        """Copy the parameters out, see :meth:`Channel.pull`."""
        if self._values is None:
            self._values = np.empty(
                (1 + self._spec.update.optimizer.state_rows, self._spec.size), self._spec.dtype
            )
            for shard, link in enumerate(self._links):
                values, self._version = link.run(initial)
                self._spec.placement.put(shard, values, self._values)
        params: NDArray[np.floating] = self._values[0]
        return params

    def push_pull(
        self, grad: NDArray[np.floating], rows: int, epochs_done: float
    ) -> NDArray[np.floating]:
        """Hand over a gradient, see :meth:`Channel.push_pull`."""
        if self._values is None:
            raise RuntimeError("pull the parameters before the first push")
        self._sequence += 1
        step = self._version + self._sequence
        rate = self._spec.schedule(epochs_done)
        placement = self._spec.placement
        for shard, link in enumerate(self._links):
            link.start(mean, self._sequence, placement.take(shard, grad), rows, step)
        for shard, link in enumerate(self._links):
            placement.put(shard, link.finish(), self._mean)
        params: NDArray[np.floating] = self._values[0]
        state = self._values[1:]
        finite = self._spec.update.apply(
            params, self._mean, state, 0, self._spec.size, step=step, lr=rate
        )
        if not finite:
            raise NonFiniteError.of(
                "update",
                rank=self._spec.rank,
                step=self._sequence,
            )
        return params

    def pull_keys(self, keys: Keys, epoch: int, step: int) -> NDArray[np.floating]:
        """Read what a batch will touch, see :meth:`Channel.pull_keys`."""
        values = self.pull_all()
        out = np.empty(len(keys), self._spec.dtype)
        self._update_in(epoch).gather(
            values[0], values[1:], self._since, keys, out, base=0, now=step
        )
        return out

    def push_keys(
        self, values: NDArray[np.floating], keys: Keys, rows: int, epoch: int, step: int
    ) -> None:
        """Hand over a sparse gradient, see :meth:`Channel.push_keys`."""
        self._sequence += 1
        lazy, held = self._update_in(epoch), self.pull_all()
        told = self._told(keys)
        for link, (at, local) in zip(self._links, told, strict=True):
            link.start(
                mean_keys, self._sequence, values[at], local, rows, self._version + self._sequence
            )
        finite = True
        for shard, link in enumerate(self._links):
            local, mean = link.finish()
            joined = self._spec.placement.join(shard, local)
            finite &= lazy.apply(
                held[0], held[1:], self._since, joined, np.require(mean, requirements=["C", "A"]),
                base=0, now=step,
            )  # fmt: skip
        if step == lazy.steps:
            finite &= lazy.settle(
                held[0], held[1:], self._since, 0, self._spec.size, base=0, now=step
            )
        if not finite:
            raise NonFiniteError.of("update", rank=self._spec.rank, step=self._sequence)

    def _update_in(self, epoch: int) -> LazyUpdate:
        update = self._spec.update
        assert update.rates is not None
        lazy = update.lazily(self._spec.dtype) if self._lazy is None else self._lazy[1]
        if self._lazy is None or self._lazy[0] != epoch:
            lazy.begin(*update.rates.of_epoch(epoch))
            self._lazy = epoch, lazy
        return lazy

    def native(self) -> Push | None:
        """Pushes without the interpreter, see :meth:`Channel.native`."""
        values = self.pull_all()
        if self._spec.update.optimizer.native is None:
            return None
        return self._push(
            AllReducePush, values[0], self._version, held=values,
            how=self._spec.update.for_kernels(),
        )  # fmt: skip

    def native_keyed(self) -> KeyedPush | None:
        """Pushes by keys without the interpreter, see :meth:`Channel.native_keyed`."""
        window = self._links[0].window
        if window is None:
            return None
        return self._keyed_push(
            AllReduceKeyedPush, self._version, values=self.pull_all(), since=self._since,
            total_keys=window.total_keys, total_counts=window.total_counts,
        )  # fmt: skip

    def _snapshot(self, epoch: int) -> None:
        version = self._version + self._sequence
        for shard, link in enumerate(self._links):
            values = self._spec.placement.take(shard, self.pull_all())
            link.run(operations.snapshot_epoch, epoch, values, version)

    def pull_all(self) -> NDArray[np.floating]:
        """Parameters and optimizer state, (1 + state_rows, n)."""
        if self._values is None:
            self.pull()
        assert self._values is not None
        return self._values


def mean(
    window: Window,
    rank: int,
    sequence: int,
    gradient: NDArray[np.floating],
    rows: int,
    step: int,
) -> Operation:
    """The mean gradient over all ranks, summed in rank order.

    It stays in the window until every rank has arrived with its next gradient.
    """

    def use(part: NDArray[np.floating], start: int, stop: int) -> None:
        window.total[start:stop] = part
        if rank == 0:
            window.words.store(Word.VERSION, step)

    yield from operations.exchange(window, rank, sequence, gradient, rows, use)
    return window.total


def mean_keys(
    window: Window,
    rank: int,
    sequence: int,
    values: NDArray[np.floating],
    told: Keys | None,
    rows: int,
    step: int,
) -> Operation:
    """The same by keys: which ones have a gradient, and its mean."""
    start, _ = window.slice(rank)

    def use(keys: Keys, mean: NDArray[np.floating]) -> None:
        stop = start + len(keys)
        window.total_keys[start:stop] = keys
        window.total[start:stop] = mean
        window.total_counts[rank] = len(keys)
        if rank == 0:
            window.words.store(Word.VERSION, step)

    yield from keyed.exchange(window, rank, sequence, values, told, rows, use)
    parts = [
        slice(first := window.slice(other)[0], first + int(window.total_counts[other]))
        for other in range(window.spec.n_ranks)
    ]
    return (
        np.concatenate([window.total_keys[part] for part in parts]),
        np.concatenate([window.total[part] for part in parts]),
    )


@immediate
def initial(window: Window, rank: int) -> Any:
    """The parameters and optimizer state that the fit starts from."""
    return window.snapshots[1].copy(), int(window.snapshot_tags[1, 1])
