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

Where a shard cannot be mapped and there are several ranks, a push is on its way while the rank
computes its next gradient, from parameters that lack it: its answer is collected before the
next push, or before anything else is asked of a shard. One more update of staleness for a
round trip; one rank alone waits, and stays sequential. A crash leaves what it leaves of any
push that is under way, and the error of a push is that of the step that collects it.

Where steps go by keys, a rank is also not FREE while it pulls, and the closer settles all
parameters before the snapshots. Updates are counted since then, and have the learning rate that
the schedule has at their count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dps._kernels.keyed_push import AsynchronousKeyedPush, KeyedPush
from dps._kernels.lazy import LazyUpdate
from dps._kernels.push import AsynchronousPush, Push
from dps._kernels.reduce import divide
from dps.errors import NonFiniteError, StoppedError
from dps.modes.base import Channel, ChannelSpec, Decide, Mode
from dps.optimizers.update import Rates
from dps.server import keyed, operations
from dps.server.keyed import Keys
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
    together: ClassVar[bool] = False
    keyed: ClassVar[bool] = True

    def steps(self, rows: Sequence[int], batch_size: int) -> tuple[int, ...]:
        """Each rank goes through its own rows at its own pace."""
        return tuple(-(-n // batch_size) for n in rows)

    def updates(self, steps: Sequence[int]) -> int:
        """Every rank's steps are updates of their own."""
        return sum(steps)

    def channel(self, spec: ChannelSpec, links: list[Link]) -> Channel:
        """A rank's free line to the shards."""
        return AsynchronousChannel(spec, links)


class AsynchronousChannel(Channel):
    """Push, read what is there, go on."""

    def __init__(self, spec: ChannelSpec, links: list[Link]) -> None:
        super().__init__(spec, links)
        self._params = np.empty(spec.size, spec.dtype)
        self._versions = [0] * len(links)  # of each shard, that the parameters have
        self._settled = False
        self._stale_sum = self._stale_max = 0.0
        self._ahead = spec.n_ranks > 1 and any(link.window is None for link in links)
        self._pending: _Pending | None = None
        self._sent = np.empty(spec.size if self._ahead else 0, spec.dtype)

    def pull(self) -> NDArray[np.floating]:
        """Copy the parameters out, see :meth:`Channel.pull`."""
        self._collect()
        for shard, link in enumerate(self._links):
            params, self._versions[shard] = link.run(operations.pull)
            self._spec.placement.put(shard, params, self._params)
        return self._params

    def push_pull(
        self, grad: NDArray[np.floating], rows: int, epochs_done: float
    ) -> NDArray[np.floating]:
        """Hand over a gradient, see :meth:`Channel.push_pull`."""
        if rows == 0:
            return self._params
        based = tuple(self._versions)
        self._collect()
        self._sequence += 1
        rate = self._spec.schedule(epochs_done)
        if self._ahead:  # the next gradient will be written where this one is
            np.copyto(self._sent, grad)
            grad = self._sent
        if len(self._links) == 1:
            self._ledger.start(update, self._sequence, grad, rows, rate)
        else:
            self._ledger.run(enter)
            for shard, link in enumerate(self._links):
                piece = self._spec.placement.take(shard, grad)
                link.start(apply, self._sequence, piece, rows, rate)
        self._pending = _Pending(based, self._take_in, gated=len(self._links) > 1)
        if not self._ahead:
            self._collect()
        return self._params

    def _collect(self) -> None:
        """Wait for the answers of a push that is under way, if there is one."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        for shard, link in enumerate(self._links):
            before = pending.take_in(shard, link.finish())
            stale = before - pending.based[shard]
            self.activity.pushed_late(shard, stale)
            if shard == 0:  # it stands for all in an epoch's record
                self._stale_sum += stale
                self._stale_max = max(self._stale_max, stale)
        if pending.gated:
            self._ledger.run(leave)

    def _take_in(self, shard: int, answer: tuple[NDArray[np.floating], int, int]) -> int:
        params, before, version = answer
        self._spec.placement.put(shard, params, self._params)
        self._versions[shard] = version
        return before

    def pull_keys(self, keys: Keys, epoch: int, step: int) -> NDArray[np.floating]:
        """Read what a batch will touch, see :meth:`Channel.pull_keys`."""
        self._collect()
        values = np.empty(len(keys), self._spec.dtype)
        told = self._told(keys)
        self._ledger.run(enter)
        for link, (_, local) in zip(self._links, told, strict=True):
            link.start(pull_keys, local, epoch)
        for shard, (link, (at, _)) in enumerate(zip(self._links, told, strict=True)):
            values[at], self._versions[shard] = link.finish()
        self._ledger.run(leave)
        return values

    def push_keys(
        self, values: NDArray[np.floating], keys: Keys, rows: int, epoch: int, step: int
    ) -> None:
        """Hand over a sparse gradient, see :meth:`Channel.push_keys`."""
        if rows == 0:
            return
        self._collect()
        self._sequence += 1
        told = self._told(keys)
        self._ledger.run(enter)
        for link, (at, local) in zip(self._links, told, strict=True):
            link.start(apply_keys, self._sequence, values[at], local, rows, epoch)
        self._pending = _Pending(tuple(self._versions), _only_before, gated=True)
        if not self._ahead:
            self._collect()

    def native(self) -> Push | None:
        """Pushes without the interpreter, see :meth:`Channel.native`."""
        return self._push(
            AsynchronousPush, self._params, self._versions[0], versions=self._versions
        )

    def native_keyed(self) -> KeyedPush | None:
        """Pushes by keys without the interpreter, see :meth:`Channel.native_keyed`."""
        return self._keyed_push(AsynchronousKeyedPush, self._versions[0])

    def follow(self, push: Push) -> None:
        """Be where a push has got to, see :meth:`Channel.follow`."""
        super().follow(push)
        if isinstance(push, AsynchronousPush):
            self._versions = list(push.versions)
        else:  # of steps by keys, which have one shard
            self._versions = [push.version]
        stale_sum, stale_max = push.staleness()
        self._stale_sum += stale_sum
        self._stale_max = max(self._stale_max, stale_max)

    def staleness(self) -> tuple[float, float]:
        """Sum and largest staleness, see :meth:`Channel.staleness`."""
        self._collect()
        result = self._stale_sum, self._stale_max
        self._stale_sum = self._stale_max = 0.0
        return result

    def reduce(self, values: Sequence[float]) -> NDArray[np.float64]:
        """Sum a few doubles over ranks, see :meth:`Channel.reduce`."""
        self._collect()
        return super().reduce(values)

    def beat(self) -> None:
        """Say that this rank is alive, see :meth:`Channel.beat`; a push on its way does."""
        if self._pending is None:
            super().beat()

    def end_epoch(
        self,
        epoch: int,
        report: Sequence[float],
        decide: Decide,
        keep: NDArray[np.floating] | None = None,
    ) -> NDArray[np.float64] | None:
        """Report an epoch, see :meth:`Channel.end_epoch`."""
        self._collect()
        return super().end_epoch(epoch, report, decide, keep)

    def settle(self, epoch: int) -> NDArray[np.floating]:
        """Meet the other ranks, see :meth:`Channel.settle`."""
        # All ranks meet; nobody pushes again before the epoch is closed.
        self.reduce([0.0])
        self._settled = True
        if self._spec.update.rates is not None:
            if self._spec.rank == 0:
                self._settle(epoch)
            self.reduce([0.0])
        return self.pull()

    def _await(self, epoch: int) -> NDArray[np.float64] | None:
        # Nobody runs more than one epoch ahead.
        settled, self._settled = self._settled, False
        return super()._await(epoch if settled else epoch - 1)

    def _snapshot(self, epoch: int) -> None:
        self._ledger.run(close_gate)
        if self._spec.update.rates is not None:
            self._settle(epoch)
        super()._snapshot(epoch)
        self._ledger.run(open_gate)

    def _settle(self, epoch: int) -> None:
        for link in self._links:
            link.run(settle, epoch)


@dataclass(frozen=True)
class _Pending:
    """A push that is under way.

    Parameters
    ----------
    based : tuple of int
        Version of each shard's parameters that its gradient was computed from.
    take_in : callable
        Takes a shard's answer in; updates applied to the shard before the push.
    gated : bool
        Whether the rank must leave the gate behind it.
    """

    based: tuple[int, ...]
    take_in: Callable[[int, Any], int]
    gated: bool


def _only_before(shard: int, before: int) -> int:
    return before


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


@immediate
def pull_keys(window: Window, rank: int, told: Keys | None, epoch: int) -> Any:
    """Parameters as they are now, and the version that they are known to hold."""
    kept = keyed.aside(window, rank)
    keys = kept.keys(told)
    values = np.empty(len(keys), window.spec.dtype)
    lazy = kept.lazy(epoch, Rates.around)
    version = window.words.load(Word.VERSION)
    base, now = _count(window, lazy, epoch, version)
    lazy.gather(window.params, window.state, window.since, keys, values, base=base, now=now)
    return values, version


@immediate
def apply_keys(
    window: Window,
    rank: int,
    sequence: int,
    values: NDArray[np.floating],
    told: Keys | None,
    rows: int,
    epoch: int,
) -> int:
    """Apply a sparse ``g / n`` to a shard at once; updates applied to it before this one."""
    words = window.words
    kept = keyed.aside(window, rank)
    keys = kept.keys(told)
    if words.rank_load(rank, Field.ARRIVED) >= sequence:  # a message that came twice
        return words.load(Word.VERSION)
    mean = keyed.finite(values, rank, sequence) / values.dtype.type(rows)
    operations.count_push(window, rank, values.nbytes + keys.nbytes)
    lazy = kept.lazy(epoch, Rates.around)
    version = words.add(Word.VERSION, 1)
    base, now = _count(window, lazy, epoch, version)
    if not lazy.apply(window.params, window.state, window.since, keys, mean, base=base, now=now):
        raise NonFiniteError.of("update", rank=rank, step=sequence)
    words.rank_store(rank, Field.ARRIVED, sequence)
    return version - 1


@immediate
def settle(window: Window, rank: int, epoch: int) -> None:
    """Bring all parameters up to date at the end of an epoch, while nobody pushes."""
    words = window.words
    version = words.load(Word.VERSION)
    lazy = keyed.aside(window, rank).lazy(epoch, Rates.around)
    base, now = _count(window, lazy, epoch, version)
    held = (window.params, window.state, window.since)
    if not lazy.settle(*held, 0, window.spec.size, base=base, now=now):
        raise NonFiniteError.of("update", rank=rank, step=version)
    words.store(Word.SETTLED_VERSION, version)
    words.store(Word.SETTLED_EPOCHS, epoch + 1)


def _count(window: Window, lazy: LazyUpdate, epoch: int, version: int) -> tuple[int, int]:
    """Where the last settling and a version lie in the rates around an epoch."""
    words = window.words
    length = lazy.steps // 3
    base = (words.load(Word.SETTLED_EPOCHS) - epoch + 1) * length
    return base, min(base + version - words.load(Word.SETTLED_VERSION), lazy.steps)


def close_gate(window: Window, rank: int) -> Operation:
    """Let no push begin, and wait until none is running."""
    window.words.store(Word.OPEN, 0)
    yield Wait(Field.FREE, 1)


@immediate
def open_gate(window: Window, rank: int) -> None:
    """Let pushes begin again."""
    window.words.store(Word.OPEN, 1)
