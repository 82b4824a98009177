"""The replica tasks of a fit: one long task per rank, strictly on its worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from distributed import Future, get_worker, secede
from distributed.core import Status

from dps.cluster.base import Running
from dps.cluster.dask.calls import ask, fetch
from dps.cluster.dask.scheduler.progress import StallClock, look_for_progress
from dps.cluster.dask.work import FitWork
from dps.data.collections.partitions import Partition
from dps.errors import ClusterError, WorkerLostError
from dps.monitor.shard.task_metrics import metered
from dps.server.group.session import Session


class ReplicaTasks(Running):
    """Replica tasks and their results."""

    def __init__(
        self,
        work: FitWork,
        futures: dict[int, Future],
        places: Mapping[int, str],
        shards: Sequence[str],
        held: Sequence[Future] = (),
    ) -> None:
        self._work = work
        self._futures, self._held = futures, held
        self._places = places
        self._shards = shards
        self._outcomes: dict[int, Any] = {}
        self._left: set[int] = set()
        self._clock = StallClock(work.timeout)
        self._change = threading.Event()
        for future in futures.values():
            future.add_done_callback(lambda _: self._change.set())

    def wait(self, seconds: float) -> bool:
        """Wait for a change; True if all have ended."""
        if len(self._outcomes) < len(self._futures):
            self._change.wait(seconds)
            self._change.clear()
        return len(self.outcomes()) == len(self._futures)

    def outcomes(self) -> dict[int, Any]:
        """Results of the replicas that have ended, by rank; None means no error."""
        new = [rank for rank in self._futures.keys() - self._outcomes.keys() if self._ended(rank)]
        # Most have no error, and Dask has said already that their result is None.
        said = [rank for rank in new if self._futures[rank].type is not type(None)]
        if finished := [rank for rank in said if self._futures[rank].status == "finished"]:
            futures = [self._futures[rank] for rank in finished]
            found = fetch(self._work.client, futures, self._work.timeout, self.check)
            self._outcomes |= zip(finished, found, strict=True)
        for rank in new:
            if rank not in finished:
                self._raise_if_failed(rank, self._futures[rank])
                self._outcomes[rank] = None
        return dict(self._outcomes)

    @property
    def all_well(self) -> bool:
        """True if all replicas have ended without an error."""
        return len(self._outcomes) == len(self._futures) and not any(self._outcomes.values())

    def _ended(self, rank: int) -> bool:
        return bool(self._futures[rank].status != "pending")

    def _raise_if_failed(self, rank: int, future: Future) -> None:
        if future.status == "finished":
            return
        worker = self._places[rank]
        self.check()
        if future.status == "error":
            error = future.exception(timeout=self._work.timeout)
            raise ClusterError(f"Dask could not run a replica: {error!r}", worker=worker, rank=rank)
        raise ClusterError("the replica's task was cancelled", worker=worker, rank=rank)

    def check(self) -> None:
        """Raise if a worker that takes part is lost or leaves, or the scheduler is lost.

        Raises WorkerLostError, ClusterError.
        """
        alive = self._work.staying()
        for rank, worker in self._places.items():
            if worker not in alive:
                raise WorkerLostError(
                    "a worker died or left the cluster during the fit", worker=worker, rank=rank
                )
        for number, worker in enumerate(self._shards):
            if worker not in alive:
                raise WorkerLostError(
                    f"the worker of shard {number} died or left the cluster", worker=worker
                )

    @property
    def workers(self) -> set[str]:
        """The workers of replicas and shards."""
        return {*self._places.values(), *self._shards}

    def raise_if_unresponsive(self, worker: str | None) -> None:
        """Raise if a worker that a replica could not reach is lost or does not answer."""
        self._work.raise_if_unresponsive(worker, self.workers, self.check)

    def abandon(self, ranks: Iterable[int]) -> None:
        """Do not wait for these, see `Running.abandon`."""
        self._left.update(ranks)

    def to_begin(self, ranks: Iterable[int]) -> set[int]:
        """Return the replicas that wait for a thread or their data, see `Running.to_begin`.

        A replica shows that it has begun by seceding.
        """
        pending = {
            self._futures[rank].key: rank
            for rank in ranks
            if self._futures[rank].status == "pending"
        }
        if not pending:
            return set()

        def look(dask_scheduler: Any, keys: Sequence[Any]) -> list[Any]:
            tasks = [dask_scheduler.tasks.get(key) for key in keys]
            at = [task.processing_on for task in tasks if task is not None]
            begun = {task.key for worker in at if worker for task in worker.long_running}
            return [key for key in keys if key not in begun]

        client, timeout = self._work.client, self._work.timeout
        keys = ask(client, "_run_on_scheduler", timeout, function=look, keys=list(pending))
        if keys:
            question = look_for_progress(timeout)
            found = ask(client, "_run_on_scheduler", timeout, function=question, keys=keys)
            try:
                self._clock.see(found, len(keys))
            except ClusterError as error:
                self.raise_if_unresponsive(error.worker)
                raise
        return {pending[key] for key in keys}

    def drain(self, alive: Mapping[str, int], deadline: float) -> bool:
        """Wait for the replicas of living workers to end; True if all ended well."""
        # A task that is pinned to a dead worker waits forever.
        living = [
            future
            for rank, future in self._futures.items()
            if self._places[rank] in alive and rank not in self._left
        ]
        while any(future.status == "pending" for future in living):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._change.wait(min(left, 0.1))
            self._change.clear()
        return all(future.status == "finished" for future in self._futures.values())

    def release(self) -> None:
        """Forget the tasks; tasks that have not started are cancelled."""
        pending = [future for future in self._futures.values() if future.status == "pending"]
        if pending:
            self._work.client.cancel(pending, force=True)
        for future in (*self._futures.values(), *self._held):
            future.release()
        self._futures, self._held = {}, ()


def own_of(spec: Any, first: Any) -> dict[str, Any]:
    """Return the fields of a replica's spec that differ from the first replica's objects."""
    return {name: value for name, value in vars(spec).items() if value is not vars(first)[name]}


def call_with(own: Mapping[str, Any], common: Callable[..., Any], partitions: Any) -> Any:
    """The task of a replica: add its own fields to the common part, and call the function."""
    return common(own, partitions)


def run_replica_task(
    function: Callable[..., Any],
    first: Any,
    server: Session,
    watched: bool,
    own: Mapping[str, Any],
    partitions: Sequence[tuple[Any, Any, Any]],
) -> Any:
    """Leave the thread pool, so that a barrier blocks no slot, and call ``function(spec, ...)``.

    If the fit is watched, Dask's fine metrics show where the time went.
    """
    worker = get_worker()
    secede()

    def alive() -> None:
        if worker.status not in (Status.running, Status.paused):
            raise WorkerLostError("a worker leaves the cluster", worker=worker.address)

    values, spec = [Partition(*part) for part in partitions], replace(first, **own)
    with metered() if watched else nullcontext() as watch:
        return function(spec, server, values, alive, watch)
