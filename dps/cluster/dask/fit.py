"""A fit's use of a Dask cluster.

It owns the Actors and replicas of a fit, and releases them. It asks little of the scheduler: one
long task per replica, pinned to its worker, and one Actor per shard. `PlacedData` manages
partitions.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from distributed import Client, Future
from numpy.typing import NDArray

from dps.cluster.base import Cluster, RankSpec, ShardPlan, grace
from dps.cluster.dask.calls import (
    CANCELLED,
    ask,
    check_client,
    have_ended,
    ids,
    is_retired,
    shared_memory,
)
from dps.cluster.dask.loading import scattered
from dps.cluster.dask.partitions import PlacedData
from dps.cluster.dask.remains import remains_of
from dps.cluster.dask.replicas import ReplicaTasks, call_with, own_of, run_replica_task
from dps.cluster.dask.sending import EventSender
from dps.cluster.dask.shard import FitShard
from dps.cluster.dask.wish import Wish
from dps.cluster.dask.work import Call, FitWork
from dps.cluster.options import Options
from dps.data.collections.partitions import Counted, Partition
from dps.data.collections.sealed import sealed
from dps.data.exchange import RandomSplit
from dps.data.keep.disk import forget_files
from dps.errors import ClusterError, ServerLostError, VersionError, WorkerLostError
from dps.monitor.dashboard import show_fits
from dps.server.group.session import Check, Session, Stores
from dps.server.memory.files import remove_files_of
from dps.server.memory.host import host_id
from dps.server.placement import Placement
from dps.transport.remote import Remote

_log = logging.getLogger("dps")

_Answer = TypeVar("_Answer")

#: Consecutive losses while data is made again or inspected after which a fit gives up.
_MAX_LOSSES_IN_A_ROW = 8
#: Bytes of initial values that are sent at a time; Dask handles messages of this size beside
#: others.
_PIECE_BYTES = 1 << 22
#: Up to this size each task carries the common data of all replicas, which saves a hop.
_COMMON_BYTES = 1 << 14


class DaskCluster(Cluster):
    """A fit's use of a Dask cluster.

    fit: id of the fit, in keys and names of files.
    timeout: seconds without progress that raise an error.
    silence: seconds without any answer after which another host is lost.
    watched: the setting ``dps.monitor``, True by default.
    lost: list of (str, float), losses after which partitions were made again, and the seconds that
        this took.
    Raises ClusterError: the client is closed, or there are no workers.
    Raises VersionError: a worker lacks dps or has another version.
    """

    def __init__(self, client: Client, fit: str, timeout: float, silence: float = 2.0) -> None:
        super().__init__()
        self._client = client
        self._fit = fit
        self._timeout, self._silence = timeout, silence
        check_client(client)
        self._work = FitWork(client, fit, timeout)
        self._threads = self._work.present()
        self._data = PlacedData(self._work)
        self._actors: list[Future] = []
        self._remotes: list[Remote] = []
        self._near: set[str] = set()  # workers of shards that are on this host
        self._running: ReplicaTasks | None = None
        self.watched = self.timed = Options.now().monitor
        self._sender = EventSender(client)
        self._wish = Wish(self._work)
        if self.watched:
            show_fits(client, timeout)

    def publish(self, event: Mapping[str, Any]) -> None:
        """Send an event to the scheduler, which stores some and forwards them."""
        self._sender.publish(event)

    def threads(self) -> Mapping[str, int]:
        """Return the workers and their threads."""
        return self._threads

    def joined(self) -> Mapping[str, int]:
        """All workers and their threads if some have joined since the fit began, else empty.

        It ignores the loss of a worker that holds rows, which others detect.
        """
        # A worker that leaves meanwhile, or has another version of dps, is not needed.
        with contextlib.suppress(WorkerLostError, VersionError):
            self._work.ask_silent()
            staying = self._work.staying()
            if self._work.has_new() or not staying.keys() <= self._threads.keys():
                found, holders = self._work.present(), set(self.holders)
                if found.keys() - self._work.reborn >= holders:
                    busy = set() if self._running is None else self._running.workers
                    self._work.ask_silent(found.keys() - holders - busy)
                    return {w: n for w, n in found.items() if w not in self._work.silent}
        return {}

    @property
    def can_grow(self) -> bool:
        """True if the client's cluster object is adaptive."""
        return self._wish.is_heard

    def wish(self, n: int) -> None:
        """Ask for `n` more workers, see `Wish`."""
        self._wish.set(n * max(self._threads.values()))

    def memory(self) -> int:
        """Smallest memory limit of a worker in bytes; 0 if none is known."""
        info = ask(self._client, "scheduler.identity", self._timeout, n_workers=-1)
        known = info["workers"]  # a worker may have died since
        limits = [known[name]["memory_limit"] for name in self._threads if name in known]
        return min((limit for limit in limits if limit), default=0)

    def load(
        self,
        partitions: Sequence[Partition],
        prepare: Callable[[Any, int], Any] | None = None,
        cache: str | None = "memory",
        most: int | None = None,
        validation: Sequence[Partition] = (),
        loading: Counted = lambda done, total: None,
    ) -> None:
        """Keep every partition on one worker.

        Partitions in memory stay where they are. Partitions that are computed now go to workers by
        their numbers, so that equal data gives equal plans; validation data goes to workers that
        train.
        """
        data, workers = self._data, sorted(self._threads)[:most]
        self._work.loading = loading
        self._unless_lost(partial(data.load, partitions, prepare, cache, workers, validation))
        self._unless_lost(lambda: self._count_workers(data.staying))

    def _unless_lost(self, do: Callable[[], None]) -> None:
        """Apply a function to all partitions, again to those that a lost worker takes with it."""
        try:
            do()
        except WorkerLostError as error:
            self._restore(error)

    def _restore(self, lost: WorkerLostError | None = None, *, drop: bool = False) -> set[int]:
        """Compute lost partitions again; return those that cannot be computed."""
        data, before, began = self._data, set(self._data.gone), time.monotonic()
        losses = [] if lost is None else [lost]
        while True:
            for loss in losses[-1:]:
                _log.warning("%s; what it held is loaded again", loss)
            self._threads = self._work.present()
            try:
                data.restore(sorted(self._threads))
                data.staying = self._work.staying()
                self._count_workers(data.staying)
            except WorkerLostError as error:
                losses.append(error)
                if len(losses) > _MAX_LOSSES_IN_A_ROW:
                    raise
                continue
            gone = data.gone - before
            if gone and not drop:
                shown = ", ".join(map(str, sorted(gone)[:5])) + ", ..." * (len(gone) > 5)
                raise WorkerLostError(
                    f"partition{'s' * (len(gone) > 1)} {shown} lay in the memory of a worker that "
                    "died, and cannot be computed again: give a persisted collection instead of "
                    'what was scattered or exchanged, or set dps.on_data_loss="drop" in dask.config'
                )
            seconds = time.monotonic() - began
            self.lost += [(str(one), seconds) for one in losses]
            return gone

    @property
    def holders(self) -> list[str]:
        """The worker of each partition; validation data comes last."""
        return self._data.holders

    @property
    def n_trained(self) -> int:
        """Number of training partitions."""
        return self._data.n_trained

    def streamed(self) -> dict[int, bool]:
        """Partitions that are not kept as they are read, with whether each is read as a whole."""
        return self._asked(self._data.streamed)

    def map(
        self, function: Callable[..., Any], numbers: Sequence[int] | None = None,
        opened: bool = True, **options: Any,
    ) -> list[Any]:  # fmt: skip
        """Call a function on each partition, with one task per worker."""
        return self._asked(partial(self._data.map, function, numbers, opened, **options))

    def sum(self, function: Callable[..., Any], numbers: Sequence[int], **options: Any) -> Any:
        """Add up a function's results over partitions, first on each worker."""
        return self._asked(partial(self._data.sum, function, numbers, **options))

    def _asked(self, question: Callable[[], _Answer]) -> _Answer:
        """Ask partitions a question, again when lost ones are restored."""
        for _ in range(_MAX_LOSSES_IN_A_ROW):
            try:
                return question()
            except WorkerLostError as error:
                self._restore(error)
        return question()

    def replace(
        self, function: Callable[[Any, int], Any], numbers: Sequence[int] | None = None
    ) -> None:
        """Replace X of partitions; Dask forgets an old one after its last use."""
        self._unless_lost(partial(self._data.replace, function, numbers))

    def exchange(self, split: RandomSplit, homes: Sequence[str]) -> None:
        """Move all rows to random new partitions, and release the old ones of this fit."""
        self._data.exchange(split, homes)

    def hosts(self, workers: Sequence[str]) -> list[str]:
        """Return values that are equal for workers that can map each other's memory."""
        try:
            return shared_memory(self._client, workers, self._timeout)
        except ClusterError as error:
            self._work.raise_if_unresponsive(error.worker, workers, self._work.check)
            raise

    def serve(
        self, shards: Sequence[ShardPlan], placement: Placement, hosts: Sequence[ShardPlan] = ()
    ) -> Session:
        """Create an Actor per shard and per summing host, each on its worker."""
        self._work.loading = None  # training begins
        rests, calls, name = [], [], self._work.name()
        for number, made in enumerate((*shards, *hosts)):
            # The scheduler keeps the arguments of an Actor, so long ones go to the worker directly.
            initial, rest = made.shard.initial.apart()
            rests.append(rest)
            make = partial(FitShard, replace(made.shard, initial=initial))
            calls.append(Call(f"dps-shard-{name}-{number}", made.worker, make))
        self._actors = self._work.start(calls, actors=True)
        self._remotes = [Remote(call.worker, call.key, self._client) for call in calls]
        self._work.wait(self._actors)
        remotes = tuple(self._remotes[: len(shards)])
        server = Stores(remotes, placement, self._timeout, shards[0].table, self._silence)
        try:
            for remote, rest in zip(self._remotes, rests, strict=True):
                for row, values in rest.items():
                    self._fill(remote, row, values)
            for remote, made in zip(remotes, shards, strict=True):
                for ids, values in made.pieces():
                    self._call(remote, "put_rows", ids, values)
            session = server.open(self._remotes[len(shards) :], self._work.check)
        except ServerLostError as error:
            self._work.raise_if_unresponsive(error.worker, (), self._work.check)
            raise
        for remote, handle in zip(self._remotes, (*session.shards, *session.hosts), strict=True):
            if handle.card.host == host_id():
                self._near.add(remote.address)
        return session

    def _fill(self, remote: Remote, row: int, values: NDArray[np.floating]) -> None:
        """Send a row of initial values to a shard, in pieces."""
        most = _PIECE_BYTES // values.itemsize
        for start in range(0, len(values), most):
            self._call(remote, "fill", row, start, values[start : start + most])

    def _call(self, remote: Remote, method: str, *args: Any) -> None:
        """Call a method of a shard."""
        remote.call(method, *args, timeout=self._timeout, check=self._work.check)

    def launch(
        self, function: Callable[..., Any], specs: Sequence[RankSpec], server: Session
    ) -> ReplicaTasks:
        """Start a task per replica, strictly on its worker.

        A task carries the fields of its own replica. It also carries the common part if that is
        short. Otherwise one worker receives the common part, and each other worker fetches it once
        from there.
        """
        data, work, name = self._data, self._work, self._work.name()
        moved = data.cut_out([piece for spec in specs for piece in spec.pieces if piece.moved])
        first, places = specs[0], {spec.rank: spec.worker for spec in specs}
        common: Any = sealed(partial(run_replica_task, function, first, server, self.watched))
        held: list[Future] = []
        if len(common.contents) > _COMMON_BYTES:
            held = scattered(work.client, [common], first.worker, self._timeout, work.check)
            common = held[0]
        calls = [
            Call(
                f"dps-replica-{name}-{spec.rank}", spec.worker,
                partial(call_with, own_of(spec, first)),
                (common, [moved.get(piece, data.values(piece.partition)) for piece in spec.pieces]),
            )
            for spec in specs
        ]  # fmt: skip
        futures = dict(zip(places, work.start(calls), strict=True))
        shards = [remote.address for remote in self._remotes]
        self._running = ReplicaTasks(work, futures, places, shards, held)
        return self._running

    def _count_workers(self, alive: Mapping[str, int]) -> None:
        """Forget workers that have left, and add joined ones that hold data."""
        for number, holder in enumerate(self._data.holders):
            if holder not in alive:
                raise WorkerLostError(
                    f"the worker that holds partition {number} died or left the cluster",
                    worker=holder,
                )
        if not set(self._data.holders) <= set(self._threads):
            self._threads = self._work.present()
        self._threads = {worker: n for worker, n in self._threads.items() if worker in alive}

    def read_after_death(self, session: Session) -> tuple[Session, Check]:
        """Return a session to read the same state, also from the remains of dead workers.

        See `Cluster.read_after_death`.
        """
        alive = self._work.living(session.server.timeout)
        # Includes workers that were restarted at the address of a shard.
        answering = {worker: 0 for worker in ids(self._client) if worker not in self._work.silent}
        handles = []
        for handle in session.shards:
            remote = handle.endpoint
            if not isinstance(remote, Remote) or remote.address in alive:
                handles.append(handle)
                continue
            found = remains_of(self._client, handle.card, remote.address, answering, self._timeout)
            if found is None:
                raise ServerLostError(
                    "the memory of a shard has gone with its worker", worker=remote.address
                )
            handles.append(replace(handle, endpoint=found))
        server = replace(session.server, shards=tuple(handle.endpoint for handle in handles))
        hosts = (h for h in session.hosts if getattr(h.endpoint, "address", "") in alive)
        asked = {h.endpoint.address for h in handles if isinstance(h.endpoint, Remote)}

        def check() -> None:
            for worker in sorted(asked - set(self._work.living())):
                raise ServerLostError("another shard's worker has died", worker=worker)

        return Session(server, tuple(handles), tuple(hosts)), check

    def is_retired(self, worker: str | None) -> bool:
        """True if a lost or leaving worker was retired."""
        try:
            return worker is not None and is_retired(self._client, worker, self._timeout)
        except ClusterError:
            return False

    def end_generation(
        self, lost: WorkerLostError | None = None, *, drop: bool = False
    ) -> set[int]:
        """End the current group; partitions of lost workers are made again elsewhere.

        See `Cluster.end_generation`.
        """
        self._end_group()
        return self._restore(lost, drop=drop)

    def close(self) -> None:
        """Stop the replicas, free the windows and release every Future."""
        if self._client.status != "running":
            remove_files_of(self._fit)
            return
        self._wish.set(0)
        alive = self._end_group()
        self._sender.finish(grace() if alive else 0.0)
        self._run_on(forget_files, self._data.close(alive))
        if alive:
            with contextlib.suppress(ClusterError):  # the scheduler is busy or dead
                self._work.pin_again()

    def _end_group(self) -> Mapping[str, int]:
        """Stop the replicas, free the windows, and return the living workers."""
        alive, reached = {}, True
        try:
            # The workers that were alive a moment ago.
            if self._running is not None and self._running.all_well:
                alive = {**self._threads, **dict.fromkeys(self._running.workers, 0)}
            else:
                alive = self._work.living(grace())
        # Busy or dead: the workers may live, and nothing else stops the shards.
        except ClusterError:
            reached = False
        deadline = time.monotonic() + grace()
        shards = alive if reached else {remote.address: 0 for remote in self._remotes}
        made = self._made(shards, deadline)
        calls = [remote.start("close", direct=not reached) for remote in made]
        clean = len(calls) == len(self._actors)
        if self._running is not None:
            clean &= self._running.drain(alive, deadline)
        for call in calls:
            try:
                call.result(max(0.1, deadline - time.monotonic()))
            except (ServerLostError, ClusterError):
                clean = False
        if self._running is not None:
            self._running.release()
        # Released explicitly: a traceback may keep this object alive. A task that is pinned to a
        # dead worker would then stay with the scheduler and block the next fit.
        for future in self._actors:
            future.release()
        if not clean:
            with contextlib.suppress(ClusterError):
                alive = self._work.living(grace()) if reached else alive
            self._remove_files(alive)
        self._running, self._actors, self._remotes = None, [], []
        return alive

    def _made(self, alive: Mapping[str, int], deadline: float) -> list[Remote]:
        """Return the shards of living workers, waiting for one that is being created."""
        shards = [
            (future, remote)
            for future, remote in zip(self._actors, self._remotes, strict=True)
            if remote.address in alive
        ]
        making = [future for future, _ in shards if future.status == "pending"]
        if making:
            with contextlib.suppress(*CANCELLED):
                have_ended(self._client, making, max(0.1, deadline - time.monotonic()))
        return [remote for future, remote in shards if future.status == "finished"]

    def _remove_files(self, alive: Mapping[str, int]) -> None:
        """Unlink the windows of owners that could not do so themselves."""
        remove_files_of(self._fit)
        shards = {remote.address for remote in self._remotes}
        self._run_on(remove_files_of, sorted((shards - self._near) & set(alive)))

    def _run_on(self, forget: Callable[[str], None], workers: list[str]) -> None:
        """Make workers forget parts of this fit; unreachable ones do so when they end."""
        if not workers:
            return
        with contextlib.suppress(OSError):  # frozen or lost
            self._client.sync(
                self._client._run,
                forget,
                self._fit,
                workers=workers,
                on_error="ignore",
                callback_timeout=grace(),
            )
