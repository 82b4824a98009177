"""Async: the shards hold the parameters, and a gradient is applied when it comes.

Nobody waits for anybody. Reads are not coordinated with writes, and two replicas that
push at once may each lose element updates of the other; what one replica alone does is
bit for bit sequential training.

Protocol. A rank sets FREE to 0 before it touches a shard and back to 1 when it has
left the last one. The closer of an epoch sets OPEN to 0 on the first shard, waits until
all ranks are FREE, takes the snapshots and sets OPEN to 1. A rank that finds OPEN at 0
*after* it has set FREE to 0 retreats and waits: both words are sequentially consistent,
so either the closer sees the rank busy or the rank sees the closed gate. A rank that
dies in the middle of a push stays not FREE: no snapshot is taken over its half push.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dps._kernels.push import AsynchronousPush, Push
from dps._kernels.reduce import divide
from dps.errors import NonFiniteError, StoppedError
from dps.modes.base import Channel, ChannelSpec, Mode
from dps.server import operations
from dps.server.links import Link
from dps.server.window import Field, Operation, Wait, Window, Word, immediate

__all__ = ["Async", "AsynchronousChannel"]


@dataclass(frozen=True)
class Async(Mode):
    """A shard applies each replica's gradient when it comes.

    Examples
    --------
    >>> Async().steps([600, 400], batch_size=100)
    (6, 4)
    """

    name: ClassVar[str] = "async"
    deterministic: ClassVar[bool] = False

    def steps(self, rows: Sequence[int], batch_size: int) -> tuple[int, ...]:
        """Each rank goes through its own rows at its own pace."""
        return tuple(-(-n // batch_size) for n in rows)

    def channel(self, spec: ChannelSpec, links: list[Link]) -> Channel:
        """A rank's free line to the shards."""
        return AsynchronousChannel(spec, links)


class AsynchronousChannel(Channel):
    """Push, read what is there, go on."""

    def __init__(self, spec: ChannelSpec, links: list[Link]) -> None:
        super().__init__(spec, links)
        self._params = np.empty(spec.size, spec.dtype)
        self._version = 0
        self._settled = False
        self._stale_sum = self._stale_max = 0.0

    def pull(self) -> NDArray[np.floating]:
        """Copy the parameters out, see :meth:`Channel.pull`."""
        # The version of the first shard stands for all in the staleness.
        for shard, link in reversed(list(enumerate(self._links))):
            params, self._version = link.run(operations.pull)
            self._spec.placement.put(shard, params, self._params)
        return self._params

    def push_pull(
        self, grad: NDArray[np.floating], rows: int, epochs_done: float
    ) -> NDArray[np.floating]:
        """Hand over a gradient, see :meth:`Channel.push_pull`."""
        if rows == 0:
            return self._params
        self._sequence += 1
        rate = self._spec.schedule(epochs_done)
        if len(self._links) == 1:
            self._take_in(0, self._ledger.run(update, self._sequence, grad, rows, rate))
            return self._params
        self._ledger.run(enter)
        for shard, link in enumerate(self._links):
            piece = self._spec.placement.take(shard, grad)
            link.start(apply, self._sequence, piece, rows, rate)
        for shard, link in enumerate(self._links):
            self._take_in(shard, link.finish())
        self._ledger.run(leave)
        return self._params

    def _take_in(self, shard: int, answer: tuple[NDArray[np.floating], int, int]) -> None:
        params, before, version = answer
        self._spec.placement.put(shard, params, self._params)
        if shard == 0:
            stale = float(before - self._version)
            self._stale_sum += stale
            self._stale_max = max(self._stale_max, stale)
            self._version = version

    def native(self) -> Push | None:
        """Pushes without the interpreter, see :meth:`Channel.native`."""
        return self._push(AsynchronousPush, self._params, self._version)

    def follow(self, push: Push) -> None:
        """Be where a push has got to, see :meth:`Channel.follow`."""
        super().follow(push)
        self._version = push.version
        stale_sum, stale_max = push.staleness()
        self._stale_sum += stale_sum
        self._stale_max = max(self._stale_max, stale_max)

    def staleness(self) -> tuple[float, float]:
        """Sum and largest staleness, see :meth:`Channel.staleness`."""
        result = self._stale_sum, self._stale_max
        self._stale_sum = self._stale_max = 0.0
        return result

    def settle(self) -> NDArray[np.floating]:
        """Meet the other ranks, see :meth:`Channel.settle`."""
        # All ranks meet; nobody pushes again before the epoch is closed.
        self.reduce([0.0])
        self._settled = True
        return self.pull()

    def _await(self, epoch: int) -> NDArray[np.float64] | None:
        # Nobody runs more than one epoch ahead.
        settled, self._settled = self._settled, False
        return super()._await(epoch if settled else epoch - 1)

    def _snapshot(self, epoch: int) -> None:
        self._ledger.run(close_gate)
        super()._snapshot(epoch)
        self._ledger.run(open_gate)


def update(window: Window, rank: int, *push: Any) -> Operation:
    """One push where there is one shard: enter, apply, leave."""
    yield from enter(window, rank)
    answer = yield from apply(window, rank, *push)
    yield from leave(window, rank)
    return answer


def enter(window: Window, rank: int) -> Operation:
    """Begin a push, once no snapshot wants quiet."""
    words = window.words
    while True:
        if window.stopped:
            raise StoppedError("the fit has ended", rank=rank)
        words.rank_store(rank, Field.FREE, 0)
        if words.load(Word.OPEN):
            return
        words.rank_store(rank, Field.FREE, 1)
        yield Wait(Word.OPEN, 1)


@immediate
def leave(window: Window, rank: int) -> None:
    """End a push."""
    window.words.rank_store(rank, Field.FREE, 1)


@immediate
def apply(
    window: Window,
    rank: int,
    sequence: int,
    gradient: NDArray[np.floating],
    rows: int,
    rate: float,
) -> Any:
    """Apply ``g / n`` to a shard at once.

    Returns
    -------
    params : (n,) array
        What is there afterwards: a view, which others go on writing.
    before : int
        Updates applied to the shard before this one.
    version : int
        Updates that the returned parameters are known to hold.
    """
    words = window.words
    if words.rank_load(rank, Field.ARRIVED) >= sequence:  # a message that came twice
        version = words.load(Word.VERSION)
        return window.params, version, version
    mean = window.slot(rank)
    operations.deliver(window, rank, sequence, gradient, mean)
    divide(mean, float(rows), mean)
    step = words.add(Word.VERSION, 1)
    assert window.update is not None
    finite = window.update.apply(
        window.params, mean, window.state, 0, window.spec.size, step=step, lr=rate
    )
    if not finite:
        raise NonFiniteError.of(
            "update",
            rank=rank,
            step=sequence,
        )
    words.rank_store(rank, Field.ARRIVED, sequence)
    return window.params, step - 1, words.load(Word.VERSION)


def close_gate(window: Window, rank: int) -> Operation:
    """Let no push begin, and wait until none is running."""
    window.words.store(Word.OPEN, 0)
    yield Wait(Field.FREE, 1)


@immediate
def open_gate(window: Window, rank: int) -> None:
    """Let pushes begin again."""
    window.words.store(Word.OPEN, 1)
