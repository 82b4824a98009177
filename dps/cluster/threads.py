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

#: The name of this process in place of a worker's address in plans.
LOCAL = "this process"


class ThreadCluster(Cluster):
    """Runs replicas on threads, with the same kernels, windows and modes.

    fit: id of the fit.
    n_threads: number of useful replicas, by default the number of cores of this process.
    why: the reason, if a client is active.
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
        """Return this process as the only worker."""
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
        """The name of this process for each partition."""
        return [LOCAL] * len(self._partitions)

    @property
    def n_trained(self) -> int:
        """Number of training partitions."""
        return self._n_trained

    def streamed(self) -> dict[int, bool]:
        """Partitions that are not kept as they are read, with whether each is read as a whole."""
        found = {number: is_whole(part.X) for number, part in enumerate(self._partitions)}
        return {number: whole for number, whole in found.items() if whole is not None}

    def local(self, numbers: Sequence[int]) -> list[Partition] | None:
        """Return partitions, unless some are read while training."""
        return None if self.streamed() else [self._partitions[number] for number in numbers]

    def map(
        self, function: Callable[..., Any], numbers: Sequence[int] | None = None,
        opened: bool = True, **options: Any,
    ) -> list[Any]:  # fmt: skip
        """Call a function on each partition in turn."""
        numbers = range(len(self._partitions)) if numbers is None else numbers
        parts = [vars(self._partitions[number]).values() for number in numbers]
        return [function(*(open_partition(*p) if opened else p), **options) for p in parts]

    def sum(self, function: Callable[..., Any], numbers: Sequence[int], **options: Any) -> Any:
        """Add up a function's results over partitions."""
        return functools.reduce(operator.add, self.map(function, numbers, **options))

    def replace(
        self, function: Callable[[Any, int], Any], numbers: Sequence[int] | None = None
    ) -> None:
        """Replace X of partitions, one after the other."""
        for number in range(len(self._partitions)) if numbers is None else numbers:
            part = self._partitions[number]
            made = remake_partition(self._keeping, number, function, part.X)
            self._partitions[number] = replace(part, X=made)

    def exchange(self, split: RandomSplit, homes: Sequence[str]) -> None:
        """Move all rows to random new partitions, one after the other."""
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
        """The same text for each worker."""
        return [LOCAL] * len(workers)

    def serve(
        self, shards: Sequence[ShardPlan], placement: Placement, hosts: Sequence[ShardPlan] = ()
    ) -> Session:
        """Create the shards in this process."""
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
        """Start a thread per replica."""
        self._running = _ReplicaThreads()
        for spec in specs:
            partitions = [self._partitions[piece.partition] for piece in spec.pieces]
            self._running.start(spec.rank, function, spec, server, partitions)
        return self._running

    def end_generation(
        self, lost: WorkerLostError | None = None, *, drop: bool = False
    ) -> set[int]:
        """Stop and join the threads, and free the shards.

        Nothing can end a thread in which a model never returns. It is a daemon, and its view of the
        shards' memory stays valid.
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
        """Release the rows as well."""
        self.end_generation()
        self._partitions = []


class _ReplicaThreads(Running):
    """Threads and their results."""

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

        # Daemon threads, so that an abandoned fit does not keep the process alive. They run in the
        # caller's context, which may be that of a Dask task.
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
        """Wait for the threads at most for `seconds`; return the names of those that still run."""
        deadline = time.monotonic() + seconds
        for rank, thread in self._threads.items():
            thread.join(0.0 if rank in self._left else max(0.0, deadline - time.monotonic()))
        return [thread.name for thread in self._threads.values() if thread.is_alive()]
