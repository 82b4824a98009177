"""Threads of this process as a cluster of one worker."""

from __future__ import annotations

import functools
import logging
import operator
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import replace
from typing import Any

from dps._cores import usable_cores
from dps.cluster.base import Cluster, RankSpec, Running, ShardPlan, grace
from dps.data.collections.partitions import Counted, Partition, is_dask
from dps.data.exchange import RandomSplit, join_rows, take_rows
from dps.data.keep.keeping import Keeping, remake_partition
from dps.data.keep.streams import is_whole, open_partition
from dps.errors import WorkerLostError
from dps.server.group.session import Local, Session, Stores
from dps.server.placement import Placement
from dps.server.shard import ParameterShard

_log = logging.getLogger("dps")

#: The name of this process where a plan names a worker.
LOCAL = "this process"


class ThreadCluster(Cluster):
    """Runs replicas on threads, with the same kernels, windows and modes.

    fit: id of the fit.
    n_threads: replicas that are worth starting; the cores of this process by default.
    why: the reason where a client is active.
    """

    def __init__(self, fit: str, n_threads: int | None = None, why: str = "") -> None:
        super().__init__()
        self.why = why
        self._fit = fit
        self._keeping = Keeping(fit, "memory")
        self._threads = n_threads or usable_cores()
        self._partitions: list[Partition] = []
        self._n_trained = 0
        self._shards: list[ParameterShard] = []
        self._running: _ReplicaThreads | None = None

    def threads(self) -> Mapping[str, int]:
        """The one worker there is."""
        return {LOCAL: self._threads}

    def load(
        self,
        partitions: Sequence[Partition],
        prepare: Callable[[Any, int], Any] | None = None,
        cache: str | None = "memory",
        most: int | None = None,
        validation: Sequence[Partition] = (),
        loading: Counted = lambda done, total: None,
    ) -> None:
        """Compute Dask partitions with Dask's own scheduler; keep others as they are."""
        given = [*partitions, *validation]
        if partitions and is_dask(partitions[0].X):
            from dps.data.keep.computing import computed, storage_for

            self._keeping = storage_for(self._fit, cache, given, len(partitions))
            self._partitions = computed(given, self._keeping, prepare, len(partitions), loading)
        else:
            self._partitions = given
        self._n_trained = len(partitions)

    @property
    def holders(self) -> list[str]:
        """They are all here."""
        return [LOCAL] * len(self._partitions)

    @property
    def n_trained(self) -> int:
        """Partitions that are not of validation data."""
        return self._n_trained

    def streamed(self) -> dict[int, bool]:
        """Partitions that are not kept as they are read, and which are read as a whole."""
        found = {number: is_whole(part.X) for number, part in enumerate(self._partitions)}
        return {number: whole for number, whole in found.items() if whole is not None}

    def map(
        self, function: Callable[..., Any], numbers: Sequence[int] | None = None,
        opened: bool = True, **options: Any,
    ) -> list[Any]:  # fmt: skip
        """Call a function on each partition in turn."""
        numbers = range(len(self._partitions)) if numbers is None else numbers
        parts = [vars(self._partitions[number]).values() for number in numbers]
        return [function(*(open_partition(*p) if opened else p), **options) for p in parts]

    def sum(self, function: Callable[..., Any], numbers: Sequence[int], **options: Any) -> Any:
        """Add up what a function returns of partitions."""
        return functools.reduce(operator.add, self.map(function, numbers, **options))

    def replace(
        self, function: Callable[[Any, int], Any], numbers: Sequence[int] | None = None
    ) -> None:
        """Put something else in the place of X, one partition after the other."""
        for number in range(len(self._partitions)) if numbers is None else numbers:
            part = self._partitions[number]
            made = remake_partition(self._keeping, number, function, part.X)
            self._partitions[number] = replace(part, X=made)

    def exchange(self, split: RandomSplit, homes: Sequence[str]) -> None:
        """Draw all rows into new partitions, one after the other."""
        filled = [number for number, rows in enumerate(split.rows) if rows]
        drawn = {number: split.draw(number) for number in filled}

        def made(goal: int) -> Partition:
            pieces = [(self._partitions[number], drawn[number][goal]) for number in filled]
            return Partition(
                *join_rows(
                    [
                        take_rows(*open_partition(p.X, p.y, p.weight), rows)
                        for p, rows in pieces
                        if len(rows)
                    ]
                )
            )

        behind = self._partitions[len(split.rows) :]
        self._partitions = [*map(made, range(len(homes))), *behind]
        self._n_trained = len(homes)

    def hosts(self, workers: Sequence[str]) -> list[str]:
        """They are all here."""
        return [LOCAL] * len(workers)

    def serve(
        self, shards: Sequence[ShardPlan], placement: Placement, hosts: Sequence[ShardPlan] = ()
    ) -> Session:
        """Make the shards in this process."""
        self._shards = [ParameterShard(made.shard) for made in shards]
        for shard, made in zip(self._shards, shards, strict=True):
            for ids, values in made.pieces():
                shard.put_rows(ids, values)
        local = tuple(map(Local, self._shards))
        first = shards[0]
        return Stores(local, placement, first.shard.timeout, first.table).open()

    def launch(
        self, function: Callable[..., Any], specs: Sequence[RankSpec], server: Session
    ) -> _ReplicaThreads:
        """Start a thread a replica."""
        self._running = _ReplicaThreads()
        for spec in specs:
            partitions = [self._partitions[piece.partition] for piece in spec.pieces]
            self._running.start(spec.rank, function, spec, server, partitions)
        return self._running

    def end_generation(
        self, lost: WorkerLostError | None = None, *, drop: bool = False
    ) -> set[int]:
        """Stop and join the threads, free the shards.

        A thread in which a model never returns stays behind: nothing can end it. It is a daemon,
        and what it holds of the shards' memory is its own.
        """
        for shard in self._shards:
            shard.close()
        if self._running is not None and (left := self._running.join(grace())):
            _log.warning(
                "%s did not end, and %s left behind: does the model return?",
                ", ".join(left), "is" if len(left) == 1 else "are",
            )  # fmt: skip
        self._shards, self._running = [], None
        return set()

    def close(self) -> None:
        """Give back the rows too."""
        self.end_generation()
        self._partitions = []


class _ReplicaThreads(Running):
    """Threads and what they returned."""

    def __init__(self) -> None:
        self._threads: dict[int, threading.Thread] = {}
        self._left: set[int] = set()
        self._outcomes: dict[int, Any] = {}
        self._change = threading.Condition()

    def start(self, rank: int, function: Callable[..., Any], *args: Any) -> None:
        def run() -> None:
            outcome = function(*args)
            with self._change:
                self._outcomes[rank] = outcome
                self._change.notify_all()

        # Daemons, so that a fit that is abandoned does not keep the process alive.
        # In the caller's context, which may be that of a task of Dask's.
        thread = threading.Thread(
            target=copy_context().run, args=(run,), name=f"dps-replica-{rank}", daemon=True
        )
        self._threads[rank] = thread
        thread.start()

    def wait(self, seconds: float) -> bool:
        with self._change:
            ended = len(self._outcomes)
            if ended < len(self._threads):
                self._change.wait_for(lambda: len(self._outcomes) > ended, seconds)
            return len(self._outcomes) == len(self._threads)

    def outcomes(self) -> dict[int, Any]:
        with self._change:
            return dict(self._outcomes)

    def abandon(self, ranks: Iterable[int]) -> None:
        """Do not wait for these, see `Running.abandon`."""
        self._left.update(ranks)

    def join(self, seconds: float) -> list[str]:
        """Wait for the threads, no longer than a time; return the names of those that still run."""
        deadline = time.monotonic() + seconds
        for rank, thread in self._threads.items():
            thread.join(0.0 if rank in self._left else max(0.0, deadline - time.monotonic()))
        return [thread.name for thread in self._threads.values() if thread.is_alive()]
