"""The Actor: owns a window, and is the gateway for replicas that cannot map it.

It runs the same operations as a replica that maps the window would (one algorithm,
two ways in); it knows no mode. Waiting happens in the worker's event loop, because a
method that waited in a thread would hold the only thread that all Actors of a worker
share; kernels on large shards run in a thread of the shard's own, because the event
loop must stay free.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dps._kernels.activity import APPLY
from dps.errors import StoppedError
from dps.optimizers.update import Update
from dps.server.host import host_id
from dps.server.memory import sweep
from dps.server.operations import check_fence
from dps.server.window import (
    ABORTED,
    Field,
    Operation,
    Wait,
    Watch,
    Window,
    WindowSpec,
    Word,
    announce,
)

if TYPE_CHECKING:
    from dps.server.gateway import Gateway

__all__ = ["ParameterShard", "ShardSpec", "ShardStatus", "Watched", "WindowCard"]

#: Elements from which a kernel takes about a millisecond.
_LARGE = 1 << 20
_SHORTEST_NAP, _LONGEST_NAP = 1e-4, 2e-3


@dataclass(frozen=True)
class Watched:
    """What somebody who watches a fit should know and a window does not say.

    Parameters
    ----------
    workers : tuple of str
        The worker of each rank.
    together : bool
        Whether ranks wait for each other at every step.
    """

    workers: tuple[str, ...]
    together: bool


@dataclass(frozen=True)
class ShardSpec:
    """Everything a shard is made from.

    Parameters
    ----------
    window : WindowSpec
    update : Update or None
        How gradients are applied; None where replicas hold the parameters.
    params : (n,) array
        Initial parameters of this shard.
    state : (state_rows, n) array
        Initial optimizer state.
    version : int
        Updates that lie behind `params` and `state`.
    shared : bool
        Whether the window should be a file that other processes can map.
    timeout : float
        Seconds without progress that a waiting rank tolerates.
    watched : Watched or None
        None where nothing is to be said of the fit.
    """

    window: WindowSpec
    update: Update | None
    params: NDArray[np.floating]
    state: NDArray[np.floating]
    version: int
    shared: bool
    timeout: float
    watched: Watched | None = None


@dataclass(frozen=True)
class WindowCard:
    """How a replica finds out whether it can map a window: by trying."""

    spec: WindowSpec
    update: Update | None
    token: bytes
    path: str | None
    host: str
    unshared: str | None


@dataclass(frozen=True)
class ShardStatus:
    """What a shard says of a running fit.

    Attributes
    ----------
    closed : int
        Epochs closed.
    stop : int
        0 while running.
    records : (k, RECORD_WIDTH + n_ranks) float64 array
        Records of closed epochs from the one asked for.
    progress : tuple of tuple of int
        Counters of each rank, which change while it gets on or waits for others.
    steps : tuple of int
        Sequence number of each rank's last gradient.
    """

    closed: int
    stop: int
    records: NDArray[np.float64]
    progress: tuple[tuple[int, ...], ...]
    steps: tuple[int, ...]


class ParameterShard:
    """A slice of the parameters on a Dask Actor.

    Parameters
    ----------
    spec : ShardSpec
    """

    def __init__(self, spec: ShardSpec) -> None:
        sweep()
        window = self.window = Window.create(spec.window, update=spec.update, shared=spec.shared)
        announce(window)
        initial = np.concatenate([spec.params[np.newaxis], spec.state])
        if spec.window.holds_parameters:
            window.params[:] = initial[0]
            window.state[:] = initial[1:]
        # The initial state is the snapshot of epoch 0: what a fit that closes no
        # epoch ends with.
        window.snapshots[1] = initial
        window.snapshot_tags[1] = (0, spec.version)
        window.words.store(Word.VERSION, spec.version)
        window.words.store(Word.SETTLED_VERSION, spec.version)
        self._timeout = spec.timeout
        self._gateway: Gateway | None = None
        self._thread = ThreadPoolExecutor(1, "dps-shard") if spec.window.size >= _LARGE else None

    def card(self) -> WindowCard:
        """How to map this window."""
        file = self.window.file
        path = str(file.path) if file else None
        window = self.window
        return WindowCard(
            window.spec, window.update, window.token, path, host_id(), window.unshared
        )

    async def run(
        self, operation: Callable[..., Operation], rank: int, fence: int, *args: Any
    ) -> Any:
        """Run an operation for a replica that cannot map the window, as :meth:`drive` does.

        Arrays in the answer are copies, because within one process Dask passes
        results by reference.

        Raises
        ------
        FencedError
            `fence` is not the attempt that owns the rank.
        """
        check_fence(self.window, rank, fence)
        value, waited = await self.drive(operation(self.window, rank, *args), rank)
        return _copied(value), waited

    async def admit(self, operation: Callable[..., Operation], rank: int, *args: Any) -> str:
        """Run the operation by which a replica takes its rank; the gateway's name for it."""
        from distributed import get_worker

        from dps.server.gateway import Gateway

        await self.drive(operation(self.window, rank, *args), rank)
        if self._gateway is None:
            self._gateway = Gateway(get_worker(), self)
        return self._gateway.name

    async def drive(self, operation: Operation, rank: int) -> tuple[Any, int]:
        """Run an operation for a rank; arrays in the result may be the window's.

        Returns
        -------
        object
            The operation's result.
        int
            Nanoseconds that it has waited for others.
        """
        watch = Watch(self.window, self._timeout, rank)
        waited = 0
        while True:
            began = time.monotonic_ns()
            if self._thread is None:
                done, value = self._advance(operation)
            else:
                loop = asyncio.get_running_loop()
                done, value = await loop.run_in_executor(self._thread, self._advance, operation)
            ended = time.monotonic_ns()
            self.window.activity[rank, APPLY] += ended - began
            if done:
                return value, waited
            await self._until(value, watch)
            waited += time.monotonic_ns() - ended

    def _advance(self, operation: Operation) -> tuple[bool, Any]:
        """Run an operation to its end or to where it must wait: whether it ended, and which."""
        try:
            while self.window.ready(wait := next(operation)):
                continue
        except StopIteration as end:
            return True, end.value
        return False, wait

    async def _until(self, wait: Wait, watch: Watch) -> None:
        nap = _SHORTEST_NAP
        next_look = asyncio.get_running_loop().time()
        watch.begin()
        while not self.window.ready(wait):
            if self.window.stopped:
                raise StoppedError("the fit was stopped")
            now = asyncio.get_running_loop().time()
            if now >= next_look:
                watch.look(wait)
                next_look = now + min(1.0, self._timeout / 4)
            await asyncio.sleep(nap)
            nap = min(nap * 1.5, _LONGEST_NAP)

    def status(self, since: int) -> ShardStatus:
        """Records from epoch `since` on, and where every rank is."""
        window = self.window
        ranks = range(window.spec.n_ranks)
        closed = window.words.load(Word.CLOSED)
        rows = [epoch % window.spec.history for epoch in range(since, closed)]
        return ShardStatus(
            closed=closed,
            stop=window.stopped,
            records=window.history[rows],
            progress=tuple(
                (*window.progress(rank), window.words.rank_load(rank, Field.WAITS))
                for rank in ranks
            ),
            steps=tuple(window.words.rank_load(rank, Field.ARRIVED) for rank in ranks),
        )

    def snapshot(self, epochs: int) -> tuple[NDArray[np.floating], int]:
        """Parameters and state, (1 + state_rows, n), after some epochs; and their version.

        Raises
        ------
        LookupError
            That snapshot is not, or no longer, there.
        """
        window = self.window
        place = (epochs - 1) % 2
        tag = window.snapshot_tags[place]
        if tag[0] != epochs:
            raise LookupError(f"no snapshot after {epochs} epochs")
        values, version = window.snapshots[place].copy(), int(tag[1])
        if tag[0] != epochs:  # of a fit that goes on, it may be taken anew meanwhile
            raise LookupError(f"no snapshot after {epochs} epochs any more")
        return values, version

    def stop(self) -> None:
        """End the fit for every replica."""
        self.window.stop(ABORTED)

    def close(self) -> None:
        """Stop the fit and give the window back."""
        self.window.close()
        if self._gateway is not None:
            self._gateway.close()
        if self._thread is not None:
            self._thread.shutdown(wait=False)


def _copied(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, tuple):
        return tuple(_copied(item) for item in value)
    return value
