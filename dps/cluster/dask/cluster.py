"""One fit's use of a Dask cluster.

Owns every future, task and Actor of a fit, and gives all of them back. The scheduler
is asked little: one long task a replica, pinned to its worker, and one Actor a shard.
"""

from __future__ import annotations

import contextlib
import time
from asyncio import CancelledError
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import dask
import numpy as np
from distributed import Client, Future
from distributed.client import _wait
from numpy.typing import NDArray

from dps.cluster.base import PATIENCE, ReplicaTask, Serving, until_known
from dps.cluster.dask.calls import (
    ask,
    await_futures,
    check_client,
    check_versions,
    fetch,
    first_workers,
    living,
    shared_memory,
)
from dps.cluster.dask.exchange import exchange
from dps.cluster.dask.loading import compute, homes_of, naming_partitions, scatter
from dps.cluster.dask.replicas import ReplicaTasks, run_replica_task
from dps.cluster.dask.sending import EventSender
from dps.cluster.dask.spans import FitSpan
from dps.cluster.dask.tasks import call_on_each, call_unopened, cut_out
from dps.data.computing import keeping_of, recipes_of_absent
from dps.data.disk import forget_files
from dps.data.exchange import RandomSplit
from dps.data.keeping import Keeping, absent_bytes, make_again, remake_partition
from dps.data.partitions import Partition, Piece, is_dask
from dps.data.sealed import itself, sealed
from dps.data.streams import is_whole
from dps.errors import ClusterError, ServerLostError, WorkerLostError
from dps.monitor.dashboard import show_fits
from dps.monitor.shard import ReportingShard
from dps.server.host import host_id
from dps.server.memory import remove_files_of
from dps.server.placement import Placement
from dps.server.session import Session, Stores
from dps.transport.remote import Remote

__all__ = ["DaskCluster"]

#: Bytes of initial values that are sent at a time: Dask handles so many beside other things.
_PIECE = 1 << 22


class DaskCluster:
    """One fit's use of a Dask cluster.

    Parameters
    ----------
    client : distributed.Client
    fit : str
        Id of the fit; keys and files carry it.
    timeout : float
        Seconds without progress after which waiting is an error.

    Attributes
    ----------
    watched : bool
        Dask's setting ``dps.monitor``, true by default.

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
        self.n_trained = 0
        self._holders: list[str] = []
        # What this fit has made, as opposed to the user's own futures.
        self._owned: list[Future] = []
        self._actors: list[Future] = []
        self._remotes: list[Remote] = []
        self._needed: set[str] = set()  # workers without which this fit cannot go on
        self._near: set[str] = set()  # workers of shards that are known to be on this host
        self._running: ReplicaTasks | None = None
        self._looks = 0  # taken at the data
        self._keeping = Keeping(fit, "memory")
        self._weighted = False
        self._streams = False
        self.watched = bool(dask.config.get("dps.monitor", True))
        self._sender = EventSender(client)
        self._span = FitSpan()
        check_client(client)
        self._threads = living(client, timeout) or first_workers(client, fit, timeout)
        check_versions(client, set(self._threads), timeout)
        if self.watched:
            show_fits(client, timeout)

    def tell(self, event: Mapping[str, Any]) -> None:
        """Send an event to the scheduler, which keeps some and hands them on."""
        self._sender.tell(event)

    def threads(self) -> Mapping[str, int]:
        """Workers and their threads."""
        return self._threads

    def memory(self) -> int:
        """Bytes that a worker may use, of the worker that may use least; 0: no limit is known."""
        info = ask(self._client, self._client.scheduler.identity, self._timeout, n_workers=-1)
        limits = [info["workers"][name]["memory_limit"] for name in self._threads]
        return min((limit for limit in limits if limit), default=0)

    def load(
        self,
        partitions: Sequence[Partition],
        prepare: Callable[[Any, int], Any] | None = None,
        cache: str | None = "memory",
        most: int | None = None,
        validation: Sequence[Partition] = (),
    ) -> list[str]:
        """Keep every partition on one worker.

        What is in memory stays where it is. What is computed now goes where its number
        says, so that the same data makes the same plan each time; of validation data to
        workers that train.
        """
        given, self.n_trained = [*partitions, *validation], len(partitions)
        workers = sorted(self._threads)[:most]
        client = self._client
        self._weighted = any(part.weight is not None for part in partitions)
        if partitions and is_dask(partitions[0].X):
            there = prepare is None and all(isinstance(p.X, Future) for p in given)
            if not there:
                self._keeping = keeping_of(self._fit, cache, given, self.n_trained)
                self._streams = self._keeping.cache != "memory"  # it may have, until it is known
            self._await_partitions(given, given)
            homes = homes_of(client, partitions, workers, self._timeout)
            homes += homes_of(client, validation, sorted(set(homes)), self._timeout)
            self._needed |= set(homes)
            with self._span():
                self._partitions, self._owned = compute(
                    client, given, homes, self._keeping, prepare
                )
        else:
            self._needed |= set(workers)
            for some in (validation, partitions):
                pieces, made = scatter(client, some, workers, self._timeout, self._check_workers)
                self._partitions = pieces + self._partitions
                self._owned += made
                self.n_trained = len(pieces)
        self._await_partitions(given, self._partitions)
        keys = [part.X.key for part in self._partitions]
        held = ask(client, client.scheduler.who_has, self._timeout, keys=keys)
        lost = [number for number, key in enumerate(keys) if not held[key]]
        if lost:  # since it was computed
            self._check_workers()
            raise ClusterError(f"partition {lost[0]} is no longer in memory: did its worker die?")
        self._holders = [min(held[key]) for key in keys]
        self._needed = set(self._holders)
        self._count_workers()
        if self._streams:
            self._tell_recipes(given)
        return self._holders

    def _await_partitions(self, given: Sequence[Partition], placed: Sequence[Partition]) -> None:
        """Wait for what is being computed of them; an error says of which."""
        n, client = self.n_trained, self._client
        with naming_partitions(client, given, placed, n, self._timeout) as futures:
            self._await(futures)

    def _tell_recipes(self, partitions: Sequence[Partition]) -> None:
        """Say how partitions are computed again, of which nothing could be kept."""
        absent = self._look(call_unopened, absent_bytes)
        recipes = recipes_of_absent(partitions, absent, self.n_trained)
        if recipes:
            self._looks += 1
            self._put(
                {
                    number: self._submit(
                        partial(make_again, recipe=recipe), self._partitions[number].X,
                        workers=[self._holders[number]], pure=False,
                        key=f"dps-recipe-{self._fit}-{self._looks}-{number}",
                    )
                    for number, recipe in recipes.items()
                }
            )  # fmt: skip

    def streamed(self) -> dict[int, bool]:
        """Partitions that are not kept as they are read, and which are read as a whole."""
        if not self._streams:
            return {}
        found = dict(enumerate(self._look(call_unopened, is_whole)))
        streams = {number: whole for number, whole in found.items() if whole is not None}
        self._streams = bool(streams)
        return streams

    def map(
        self, function: Callable[..., Any], numbers: Sequence[int] | None = None, **options: Any
    ) -> list[Any]:
        """Call a function on each partition, in one task a worker: tasks cost more than looks."""
        return self._look(call_on_each, partial(function, **options), numbers)

    def _look(
        self,
        task: Callable[..., list[Any]],
        function: Callable[..., Any],
        some: Sequence[int] | None = None,
    ) -> list[Any]:
        self._looks += 1
        look = f"{self._fit}-{self._looks}"
        some = range(len(self._partitions)) if some is None else some
        numbers: dict[str, list[int]] = {}
        for number in some:
            numbers.setdefault(self._holders[number], []).append(number)
        futures = [
            self._submit(
                partial(task, function), [self._values(number) for number in held],
                workers=[holder], pure=False, key=f"dps-inspect-{look}-{held[0]}",
            )
            for holder, held in numbers.items()
        ]  # fmt: skip
        self._owned += futures
        self._await(futures)
        results = fetch(self._client, futures, self._timeout, self._check_workers)
        found = {
            number: result
            for held, answers in zip(numbers.values(), results, strict=True)
            for number, result in zip(held, answers, strict=True)
        }
        return [found[number] for number in some]

    def replace(
        self, function: Callable[[Any, int], Any], numbers: Sequence[int] | None = None
    ) -> None:
        """Put something else in the place of X; Dask forgets an old one with its last use."""
        numbers = range(len(self._partitions)) if numbers is None else numbers
        if not numbers:
            return
        self._looks += 1
        name = f"{self._fit}-{self._looks}"
        # It may be large: one task holds it for all.
        shared = self._submit(
            partial(itself, function), pure=False, workers=[self._holders[numbers[0]]],
            key=f"dps-shared-{name}",
        )  # fmt: skip
        self._put(
            {
                number: self._submit(
                    partial(remake_partition, self._keeping, number),
                    shared, self._partitions[number].X,
                    workers=[self._holders[number]], pure=False,
                    key=f"dps-convert-{name}-{number}",
                )
                for number in numbers
            }
        )  # fmt: skip
        shared.release()

    def _put(self, made: Mapping[int, Future]) -> None:
        """Have Futures stand for the X of partitions, and wait for them."""
        old = {self._partitions[number].X.key for number in made}
        for number, future in made.items():
            self._partitions[number] = replace(self._partitions[number], X=future)
        for future in self._owned:
            if future.key in old:
                future.release()
        self._owned = [future for future in self._owned if future.key not in old]
        self._owned += made.values()
        self._await(list(made.values()))

    def exchange(self, split: RandomSplit, homes: Sequence[str]) -> None:
        """Draw all rows into new partitions; what this fit held of the old ones is released."""
        self._looks += 1
        self._needed |= set(homes)
        n = len(split.rows)
        behind, where = self._partitions[n:], self._holders[n:]
        stay = {value.key for part in behind for value in vars(part).values() if value is not None}
        old = [future for future in self._owned if future.key not in stay]
        self._owned = [future for future in self._owned if future.key in stay]
        try:
            with self._span():
                drawn = exchange(
                    self._client, self._partitions[:n], self._holders[:n], split, homes,
                    f"{self._fit}-{self._looks}", self._weighted, self._await, self._owned,
                )  # fmt: skip
        finally:
            for future in old:
                future.release()
        self._partitions, self._holders = [*drawn, *behind], [*homes, *where]
        self.n_trained = len(homes)

    def _values(self, number: int) -> tuple[Any, Any, Any]:
        """X, y and weight of a partition, in the form in which tasks depend on them."""
        part = self._partitions[number]
        return part.X, part.y, part.weight

    def hosts(self, workers: Sequence[str]) -> list[str]:
        """What workers have in common that can map each other's memory."""
        return shared_memory(self._client, workers, self._timeout)

    def serve(
        self, shards: Sequence[Serving], placement: Placement, hosts: Sequence[Serving] = ()
    ) -> Session:
        """Make an Actor a shard, and one a host, each on its worker."""
        rests = []
        for number, made in enumerate((*shards, *hosts)):
            # Arguments of an Actor stay with the scheduler: what is long goes to the worker.
            initial, rest = made.shard.initial.apart()
            rests.append(rest)
            future = self._submit(
                partial(ReportingShard, replace(made.shard, initial=initial)), actor=True,
                workers=[made.worker], key=f"dps-shard-{self._fit}-{number}",
            )  # fmt: skip
            self._actors.append(future)
            self._remotes.append(Remote(made.worker, future.key, self._client))
        self._await(self._actors)
        remotes = tuple(self._remotes[: len(shards)])
        server = Stores(remotes, placement, self._timeout, shards[0].table)
        summing = zip(self._remotes[len(shards) :], (made.group for made in hosts), strict=True)
        try:
            for remote, rest in zip(self._remotes, rests, strict=True):
                for row, values in rest.items():
                    self._fill(remote, row, values)
            for remote, made in zip(remotes, shards, strict=True):
                for ids, values in made.pieces():
                    self._call(remote, "put_rows", ids, values)
            session = server.open(
                [made.group for made in shards], list(summing), self._check_workers
            )
        except ServerLostError:
            until_known(self._check_workers)
            raise
        for remote, handle in zip(self._remotes, (*session.shards, *session.hosts), strict=True):
            if handle.card.host == host_id():
                self._near.add(remote.address)
        return session

    def _fill(self, remote: Remote, row: int, values: NDArray[np.floating]) -> None:
        """Send a row of initial values to a shard, in pieces."""
        most = _PIECE // values.itemsize
        for start in range(0, len(values), most):
            self._call(remote, "fill", row, start, values[start : start + most])

    def _call(self, remote: Remote, method: str, *args: Any) -> None:
        """Call a method of a shard."""
        remote.call(method, *args, timeout=self._timeout, check=self._check_workers)

    def launch(
        self, function: Callable[..., Any], tasks: Sequence[ReplicaTask], server: Session
    ) -> ReplicaTasks:
        """Start a task a replica, strictly on its worker."""
        moved = self._cut_out([piece for task in tasks for piece in task.pieces if piece.moved])
        futures = {}
        for task in tasks:
            futures[task.rank] = self._submit(
                partial(
                    run_replica_task, function, task.spec, server,
                    (self._fit, task.rank) if self.watched else None,
                ),
                [moved.get(piece, self._values(piece.partition)) for piece in task.pieces],
                workers=[task.worker], allow_other_workers=False, pure=False,
                key=f"dps-replica-{self._fit}-{task.rank}",
            )  # fmt: skip
        places = {task.rank: task.worker for task in tasks}
        shards = [remote.address for remote in self._remotes]
        self._running = ReplicaTasks(self._client, futures, places, shards, self._timeout)
        return self._running

    def _cut_out(self, pieces: Sequence[Piece]) -> dict[Piece, Future]:
        """Rows that go to another worker, cut out where they lie: nothing else travels."""
        futures = {
            piece: self._submit(
                cut_out, self._values(piece.partition), piece.start, piece.stop,
                workers=[self._holders[piece.partition]], pure=False,
                key=f"dps-rows-{self._fit}-{piece.partition}-{piece.start}",
            )
            for piece in pieces
        }  # fmt: skip
        self._owned += futures.values()
        self._await(list(futures.values()))
        return futures

    def _submit(self, function: Callable[..., Any], *args: Any, **options: Any) -> Future:
        """Submit a task of this fit; what of dps it takes is bound to the function."""
        with self._span():
            return self._client.submit(sealed(function), *args, **options)

    def _await(self, futures: Sequence[Future]) -> None:
        """Wait for tasks, which are pinned to workers."""
        await_futures(self._client, futures, self._timeout, self._check_workers)

    def _count_workers(self) -> None:
        """Forget workers that have left; take in those that have joined, if they hold data."""
        alive = living(self._client, self._timeout)
        for number, holder in enumerate(self._holders):
            if holder not in alive:
                raise WorkerLostError(
                    f"the worker that holds partition {number} died or left the cluster",
                    worker=holder,
                )
        if not set(self._holders) <= set(self._threads):
            self._threads = alive
            check_versions(self._client, set(alive), self._timeout)
        self._threads = {worker: n for worker, n in self._threads.items() if worker in alive}

    def _check_workers(self) -> None:
        """Raise if a worker is gone that this fit has given something to do."""
        alive = living(self._client, self._timeout)
        for worker in sorted(self._needed):
            if worker not in alive:
                raise WorkerLostError(
                    "a worker died or left the cluster before training began", worker=worker
                )

    def close(self) -> None:
        """Stop replicas, free the windows, release every future."""
        if self._client.status != "running":
            remove_files_of(self._fit)
            return
        alive, reached = {}, True
        try:
            alive = living(self._client, PATIENCE)
        except ClusterError:  # busy or dead: nobody else stops the shards, whose workers may live
            reached = False
        deadline = time.monotonic() + PATIENCE
        self._sender.finish(PATIENCE if alive else 0.0)
        shards = alive if reached else {remote.address: 0 for remote in self._remotes}
        made = self._made(shards, deadline)
        calls = [remote.start("close", direct=not reached) for remote in made]
        clean = len(calls) == len(self._actors)
        if self._running is not None:
            clean &= self._running.drain(alive, deadline)
        for call in calls:
            try:
                call.result(max(0.1, deadline - time.monotonic()))
            except ServerLostError:
                clean = False
        if self._running is not None:
            self._running.release()
        # Explicitly: a traceback may keep this object, and what is pinned to a dead worker
        # would stay with the scheduler and stand in the way of the next fit.
        for future in [*self._actors, *self._owned]:
            future.release()
        self._actors, self._owned = [], []
        self._partitions = []
        if self._streams:
            self._run_on(forget_files, sorted(set(self._holders) & set(alive)))
        if not clean:
            self._remove_files(alive)

    def _made(self, alive: Mapping[str, int], deadline: float) -> list[Remote]:
        """The shards of living workers; one that is just being made is waited for."""
        shards = [
            (future, remote)
            for future, remote in zip(self._actors, self._remotes, strict=True)
            if remote.address in alive
        ]
        making = [future for future, _ in shards if future.status == "pending"]
        if making:
            with contextlib.suppress(TimeoutError, CancelledError):
                left = max(0.1, deadline - time.monotonic())
                self._client.sync(_wait, making, timeout=left)
        return [remote for future, remote in shards if future.status == "finished"]

    def _remove_files(self, alive: Mapping[str, int]) -> None:
        """Unlink the windows of owners that could not do it themselves."""
        remove_files_of(self._fit)
        shards = {remote.address for remote in self._remotes}
        self._run_on(remove_files_of, sorted((shards - self._near) & set(alive)))

    def _run_on(self, forget: Callable[[str], None], workers: list[str]) -> None:
        """Have workers forget something of this fit; those that cannot do so at their end."""
        if not workers:
            return
        with contextlib.suppress(OSError):  # frozen, or gone meanwhile
            self._client.sync(
                self._client._run,
                forget,
                self._fit,
                workers=workers,
                on_error="ignore",
                callback_timeout=PATIENCE,
            )
