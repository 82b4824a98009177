"""The workers of a Dask cluster.

Owns every future, task and Actor of a fit, and gives all of them back. The scheduler
is asked little: one long task a replica, pinned to its worker, and one Actor a shard.
"""

from __future__ import annotations

import importlib.metadata
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from distributed import Client, Future, get_worker, secede, wait
from distributed.client import futures_of
from distributed.core import Status

from dps.cluster.base import ReplicaTask
from dps.data.partitions import Partition, is_dask
from dps.errors import ClusterError, ServerLostError, VersionError, WorkerLostError
from dps.server.memory import remove_files_of
from dps.server.parameter_server import ParameterServer, ShardHandle
from dps.server.placement import Placement
from dps.server.remote import Remote
from dps.server.shard import ParameterShard, ShardSpec

__all__ = ["DaskCluster", "active_client", "inside_task"]

_TICK = 1.0
#: Seconds that stopping and releasing may take of somebody who does not answer.
_PATIENCE = 5.0

# Workers whose dps has been found to be this one's, by client.
_checked: weakref.WeakKeyDictionary[Client, set[str]] = weakref.WeakKeyDictionary()


def active_client() -> Client | None:
    """The current client of this thread or process, if there is one."""
    from distributed import default_client

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
        self._actors: list[Future] = []
        self._server: ParameterServer | None = None
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
        if not partitions or not is_dask(partitions[0].X):
            self._partitions = _scatter(client, partitions, workers)
        else:
            self._partitions = _compute(client, partitions, workers)
        futures = [f for p in self._partitions for f in (p.X, p.y, p.weight) if f is not None]
        _await(client, futures, self._timeout)
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
        _await(self._client, futures, self._timeout)
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
        _await(self._client, self._actors, self._timeout)
        handles = []
        with self._client.as_current():
            for future, worker in zip(self._actors, workers, strict=True):
                remote = Remote(worker, future.key)
                handles.append(ShardHandle(remote.call("card", timeout=self._timeout), remote))
        self._server = ParameterServer(tuple(handles), placement, self._timeout)
        return self._server

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
        shards = [handle.endpoint.address for handle in server.shards]  # type: ignore[attr-defined]
        self._gang = _TaskGang(self._client, futures, places, shards, self._timeout)
        return self._gang

    def close(self) -> None:
        """Stop replicas, free the windows, release every future."""
        if self._client.status != "running":
            remove_files_of(self._fit)
            return
        deadline = time.monotonic() + _PATIENCE
        clean = True
        with self._client.as_current():
            pending = [Remote(_address(f), f.key).start("close") for f in self._actors if _address(f)]
            if self._gang is not None:
                clean = self._gang.drain(deadline)
            for call in pending:
                try:
                    call.result(max(0.1, deadline - time.monotonic()))
                except (ServerLostError, Exception):
                    clean = False
        if self._gang is not None:
            self._gang.release()
        for future in self._actors:
            future.release()
        self._actors = []
        self._partitions = []
        if not clean:
            self._remove_files()

    def _remove_files(self) -> None:
        """Unlink the windows of owners that could not do it themselves."""
        remove_files_of(self._fit)
        try:
            self._client.sync(
                self._client._run, remove_files_of, self._fit,
                workers=list(_ask(self._client, self._client.scheduler.ncores, _PATIENCE)),
                on_error="ignore", callback_timeout=_PATIENCE,
            )  # fmt: skip
        except (OSError, ClusterError):  # nobody is left to ask
            return
