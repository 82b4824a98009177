"""The workers of a Dask cluster.

Owns every future, task and Actor of a fit, and gives all of them back. The scheduler
is asked little: one long task a replica, pinned to its worker, and one Actor a shard.
"""

from __future__ import annotations

import importlib.metadata
import threading
import time
import weakref
from asyncio import CancelledError
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from distributed import Client, Future, default_client, get_worker, secede
from distributed.client import _wait
from distributed.core import Status

from dps.cluster.base import ReplicaTask
from dps.data.partitions import Partition, is_dask
from dps.errors import ClusterError, ServerLostError, VersionError, WorkerLostError
from dps.server.host import host_id
from dps.server.memory import remove_files_of
from dps.server.parameter_server import ParameterServer, ShardHandle
from dps.server.placement import Placement
from dps.server.remote import Remote
from dps.server.shard import ParameterShard, ShardSpec

__all__ = ["DaskCluster", "active_client", "inside_task"]

_TICK = 1.0
#: Seconds that stopping and releasing may take of somebody who does not answer.
_PATIENCE = 2.0

# Workers whose dps has been found to be this one's, by client.
_checked: weakref.WeakKeyDictionary[Client, set[str]] = weakref.WeakKeyDictionary()


def active_client() -> Client | None:
    """The current client of this thread or process, if there is one."""
    try:
        return default_client()
    except ValueError:
        return None


def inside_task() -> bool:
    """Whether this is the thread of a Dask task."""
    try:
        get_worker()
    except ValueError:
        return False
    return True


class DaskCluster:
    """One fit's use of a Dask cluster.

    Parameters
    ----------
    client : distributed.Client
    fit : str
        Id of the fit; keys and files carry it.
    timeout : float
        Seconds without progress after which waiting is an error.

    Raises
    ------
    ClusterError
        The client is closed, or there are no workers.
    VersionError
        dps is missing on a worker, or another version.
    """

    def __init__(self, client: Client, fit: str, timeout: float) -> None:
        self._client = client
        self._fit = fit
        self._timeout = timeout
        self._partitions: list[Partition] = []
        self._holders: list[str] = []
        # What this fit has made, as opposed to the user's own futures.
        self._owned: list[Future] = []
        self._actors: list[Future] = []
        self._remotes: list[Remote] = []
        self._foreign: list[str] = []  # workers of shards on other hosts
        self._gang: _TaskGang | None = None
        _check_client(client)
        self._threads: dict[str, int] = _ask(client, client.scheduler.ncores, timeout)
        if not self._threads:
            raise ClusterError(
                f"the cluster at {client.scheduler.address} has no workers: "
                "start some, or wait for them with client.wait_for_workers(1)"
            )
        _check_versions(client, set(self._threads), timeout)

    def threads(self) -> Mapping[str, int]:
        """Workers and their threads."""
        return self._threads

    def load(self, partitions: Sequence[Partition]) -> list[str]:
        """Keep every partition in memory on one worker.

        What is in memory stays where it is. What is computed now goes where its number
        says, so that the same data makes the same plan each time.
        """
        workers = sorted(self._threads)
        client = self._client
        if partitions and (isinstance(partitions[0].X, Future) or is_dask(partitions[0].X)):
            given = [value for part in partitions for value in vars(part).values()]
            self._await([value for value in given if isinstance(value, Future)])
            self._partitions, self._owned = _compute(client, partitions, workers)
        else:
            self._partitions, self._owned = _scatter(client, partitions, workers)
        self._await(self._owned)
        keys = [part.X.key for part in self._partitions]
        held = _ask(client, client.scheduler.who_has, self._timeout, keys=keys)
        self._holders = [min(held[key]) for key in keys]
        return self._holders

    def map(self, function: Callable[..., Any], **options: Any) -> list[Any]:
        """Run a task a partition on the worker that holds it."""
        futures = [
            self._client.submit(
                function, part.X, part.y, part.weight, **options,
                workers=[holder], pure=False, key=f"dps-inspect-{self._fit}-{number}",
            )
            for number, (part, holder) in enumerate(
                zip(self._partitions, self._holders, strict=True)
            )
        ]  # fmt: skip
        self._owned += futures
        self._await(futures)
        return list(self._client.gather(futures))

    def serve(
        self, specs: Sequence[ShardSpec], placement: Placement, workers: Sequence[str]
    ) -> ParameterServer:
        """Make an Actor a shard, each on its worker."""
        for number, (spec, worker) in enumerate(zip(specs, workers, strict=True)):
            self._actors.append(
                self._client.submit(
                    ParameterShard, spec, actor=True, workers=[worker],
                    key=f"dps-shard-{self._fit}-{number}",
                )
            )  # fmt: skip
        self._await(self._actors)
        handles = []
        for future, worker in zip(self._actors, workers, strict=True):
            remote = Remote(worker, future.key, self._client)
            self._remotes.append(remote)
            card = remote.call("card", timeout=self._timeout, check=self._check_workers)
            handles.append(ShardHandle(card, remote))
            if card.host != host_id():
                self._foreign.append(worker)
        return ParameterServer(tuple(handles), placement, self._timeout)

    def launch(
        self, function: Callable[..., Any], tasks: Sequence[ReplicaTask], server: ParameterServer
    ) -> _TaskGang:
        """Start a task a replica, strictly on its worker."""
        futures = {}
        for task in tasks:
            parts = [self._partitions[number] for number in task.partitions]
            futures[task.rank] = self._client.submit(
                _run_replica, function, task.spec, server,
                [part.X for part in parts],
                [part.y for part in parts],
                [part.weight for part in parts],
                workers=[task.worker], allow_other_workers=False, pure=False,
                key=f"dps-replica-{self._fit}-{task.rank}",
            )  # fmt: skip
        places = {task.rank: task.worker for task in tasks}
        shards = [remote.address for remote in self._remotes]
        self._gang = _TaskGang(self._client, futures, places, shards, self._timeout)
        return self._gang

    def _await(self, futures: Sequence[Future]) -> None:
        """Wait for tasks, which are pinned to workers."""
        _await(self._client, futures, self._timeout, self._check_workers)

    def _check_workers(self) -> None:
        """Raise if a worker that was there at the start is gone."""
        alive = _ask(self._client, self._client.scheduler.ncores, self._timeout)
        for worker in self._threads:
            if worker not in alive:
                raise WorkerLostError(
                    "a worker died or left the cluster before training began", worker=worker
                )

    def close(self) -> None:
        """Stop replicas, free the windows, release every future."""
        if self._client.status != "running":
            remove_files_of(self._fit)
            return
        try:
            alive = _ask(self._client, self._client.scheduler.ncores, _PATIENCE)
        except ClusterError:
            alive = {}
        deadline = time.monotonic() + _PATIENCE
        calls = [remote.start("close") for remote in self._remotes if remote.address in alive]
        clean = len(calls) == len(self._actors)
        if self._gang is not None:
            clean &= self._gang.drain(alive, deadline)
        for call in calls:
            try:
                call.result(max(0.1, deadline - time.monotonic()))
            except ServerLostError:
                clean = False
        if self._gang is not None:
            self._gang.release()
        # Explicitly: a traceback may keep this object, and what is pinned to a dead worker
        # would stay with the scheduler and stand in the way of the next fit.
        for future in [*self._actors, *self._owned]:
            future.release()
        self._actors, self._owned = [], []
        self._partitions = []
        if not clean:
            self._remove_files(alive)

    def _remove_files(self, alive: Mapping[str, int]) -> None:
        """Unlink the windows of owners that could not do it themselves."""
        remove_files_of(self._fit)
        strangers = [worker for worker in self._foreign if worker in alive]
        if not strangers:
            return
        try:
            self._client.sync(
                self._client._run,
                remove_files_of,
                self._fit,
                workers=strangers,
                on_error="ignore",
                callback_timeout=_PATIENCE,
            )
        except OSError:  # frozen, or gone meanwhile: the next fit there sweeps
            return


class _TaskGang:
    """Replica tasks and what they returned."""

    def __init__(
        self,
        client: Client,
        futures: dict[int, Future],
        places: Mapping[int, str],
        shards: Sequence[str],
        timeout: float,
    ) -> None:
        self._client = client
        self._futures = futures
        self._places = places
        self._shards = shards
        self._timeout = timeout
        self._outcomes: dict[int, Any] = {}
        self._change = threading.Event()
        for future in futures.values():
            future.add_done_callback(lambda _: self._change.set())

    def wait(self, seconds: float) -> bool:
        if len(self._outcomes) < len(self._futures):
            self._change.wait(seconds)
            self._change.clear()
        return len(self.outcomes()) == len(self._futures)

    def outcomes(self) -> dict[int, Any]:
        for rank, future in self._futures.items():
            if rank not in self._outcomes and future.status != "pending":
                self._outcomes[rank] = self._outcome(rank, future)
        return dict(self._outcomes)

    def _outcome(self, rank: int, future: Future) -> Any:
        if future.status == "finished":
            return future.result(timeout=self._timeout)
        worker = self._places[rank]
        self.check()
        if future.status == "error":
            error = future.exception(timeout=self._timeout)
            raise ClusterError(f"Dask could not run a replica: {error!r}", worker=worker, rank=rank)
        raise ClusterError("the replica's task was cancelled", worker=worker, rank=rank)

    def check(self) -> None:
        """Raise if a worker that takes part, or the scheduler, is gone.

        Raises
        ------
        WorkerLostError, ClusterError
        """
        alive = _ask(self._client, self._client.scheduler.ncores, self._timeout)
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

    def drain(self, alive: Mapping[str, int], deadline: float) -> bool:
        """Wait for the replicas of living workers to end; whether all have, in order."""
        # A task that is pinned to a dead worker waits for ever.
        living = [f for rank, f in self._futures.items() if self._places[rank] in alive]
        while any(future.status == "pending" for future in living):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._change.wait(min(left, 0.1))
            self._change.clear()
        return all(future.status == "finished" for future in self._futures.values())

    def release(self) -> None:
        """Forget the tasks; one that has not started is cancelled."""
        pending = [future for future in self._futures.values() if future.status == "pending"]
        if pending:
            self._client.cancel(pending, force=True)
        for future in self._futures.values():
            future.release()
        self._futures = {}


def _run_replica(
    function: Callable[..., Any],
    spec: Any,
    server: ParameterServer,
    X: list[Any],
    y: list[Any],
    weight: list[Any],
) -> Any:
    """The task of a replica: leave the thread pool, so that a barrier blocks nobody's slot."""
    worker = get_worker()
    secede()

    def alive() -> None:
        if worker.status not in (Status.running, Status.paused):
            raise ClusterError("the worker is closing", worker=worker.address)

    partitions = [Partition(*part) for part in zip(X, y, weight, strict=True)]
    return function(spec, server, partitions, alive)


def _check_client(client: Client) -> None:
    if client.asynchronous:
        raise ClusterError(
            "an asynchronous client cannot be used yet: give client=Client(address) "
            "without asynchronous=True"
        )
    if client.status != "running":
        raise ClusterError(
            f"the client is {client.status}: make a new Client, or call fit without one "
            "to train in this process"
        )


def _ask(client: Client, question: Callable[..., Any], timeout: float, **arguments: Any) -> Any:
    """Ask the scheduler, within a time."""
    try:
        return client.sync(question, callback_timeout=timeout, **arguments)
    except OSError as error:  # also a timeout
        raise ClusterError(
            f"the scheduler cannot be reached ({type(error).__name__}: {error})"
        ) from error


def _check_versions(client: Client, workers: set[str], timeout: float) -> None:
    """See that every worker has this dps, once a worker."""
    known = _checked.setdefault(client, set())
    new = sorted(workers - known)
    if not new:
        return
    # A function of the standard library: one of ours could not be unpickled there.
    answers = _ask(
        client, client._run, timeout, function=importlib.metadata.version, distribution_name="dps",
        workers=new, on_error="return",
    )  # fmt: skip
    ours = importlib.metadata.version("dps")
    for worker in new:
        theirs = answers.get(worker)
        if isinstance(theirs, Exception):
            raise VersionError(
                f"dps is not installed on a worker: install dps {ours} in its environment",
                worker=worker,
            )
        if theirs is not None and theirs != ours:
            raise VersionError(
                f"a worker has dps {theirs}, this process has {ours}: install the same version",
                worker=worker,
            )
        known.add(worker)


def _scatter(
    client: Client, partitions: Sequence[Partition], workers: Sequence[str]
) -> tuple[list[Partition], list[Future]]:
    """Send local data to the workers, cut into as many pieces; all futures made."""
    pieces: list[Partition] = []
    made: list[Future] = []
    for part in partitions:
        rows = part.X.shape[0]
        for number, worker in enumerate(workers):
            at = slice(rows * number // len(workers), rows * (number + 1) // len(workers))
            if at.start < at.stop:
                values = [_cut(part.X, at), _cut(part.y, at)]
                if part.weight is not None:
                    values.append(_cut(part.weight, at))
                futures = client.scatter(values, workers=[worker], hash=False)
                made += futures
                pieces.append(Partition(*futures, *([None] if part.weight is None else [])))
    return pieces, made


def _cut(values: Any, at: slice) -> Any:
    return values.iloc[at] if hasattr(values, "iloc") else values[at]


def _compute(
    client: Client,
    partitions: Sequence[Partition],
    workers: Sequence[str],
) -> tuple[list[Partition], list[Future]]:
    """Have Delayed partitions computed on a worker chosen by their number; all futures made.

    Where X is in memory, y and weights are computed beside it.
    """
    in_memory = [part.X for part in partitions if isinstance(part.X, Future)]
    held = client.who_has(in_memory) if in_memory else {}
    homes: dict[str, list[int]] = {}
    for number, part in enumerate(partitions):
        holders = held.get(part.X.key) if isinstance(part.X, Future) else None
        home = min(holders) if holders else workers[number * len(workers) // len(partitions)]
        homes.setdefault(home, []).append(number)
    futures: dict[tuple[int, str], Any] = {}
    for home, numbers in homes.items():
        wanted = {
            (number, name): value
            for number in numbers
            for name, value in vars(partitions[number]).items()
            if value is not None and not isinstance(value, Future)
        }
        computed = client.compute(list(wanted.values()), workers=[home], allow_other_workers=False)
        futures.update(zip(wanted, computed, strict=True))
    computed_partitions = [
        Partition(*(futures.get((number, name), value) for name, value in vars(part).items()))
        for number, part in enumerate(partitions)
    ]
    return computed_partitions, list(futures.values())


def _await(
    client: Client, futures: Sequence[Future], timeout: float, check: Callable[[], None]
) -> None:
    """Wait for computations while something moves.

    A future that ends, or a task that the scheduler says is being worked on, is
    progress. `check` is called once a second: a task that is pinned to a dead worker
    waits for ever.

    Raises
    ------
    ClusterError
        Nothing has moved for `timeout` seconds, or the scheduler is gone.
    """
    waiting = list(futures)
    moved = time.monotonic()
    while waiting:
        try:
            client.sync(_wait, waiting, timeout=min(_TICK, timeout / 4))
        except TimeoutError:
            check()
            still = [future for future in waiting if future.status == "pending"]
            processing = _ask(client, client.scheduler.processing, timeout)
            if len(still) < len(waiting) or any(processing.values()):
                moved = time.monotonic()
            elif time.monotonic() - moved > timeout:
                raise ClusterError(
                    f"Dask has not begun to compute {len(still)} partitions or tasks for "
                    f"{timeout:g} s: are there workers that may run them?"
                ) from None
            waiting = still
        except CancelledError:
            break
        else:
            waiting = []
    for future in futures:
        if future.status == "error":
            future.result(timeout=timeout)  # the user's own error, as it was raised
        if future.status in ("cancelled", "lost"):
            _check_client(client)
            check()
            raise ClusterError("a partition or task was lost: did its worker die?")
