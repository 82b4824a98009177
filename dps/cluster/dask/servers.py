"""Servers of named tensors on a Dask cluster: made, found by name, given back.

An Actor holds each shard. Dask gives it back when nobody holds its Future any more: the client that
made it does, until its server is closed; those of a named server are in a published dataset too,
which the scheduler holds until the server is closed, whoever made it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import dask
import numpy as np
from distributed import Client, Future, get_client, get_worker
from distributed.protocol import pickle

from dps.cluster.base import until_known
from dps.cluster.dask import active_client, inside_task
from dps.cluster.dask.calls import (
    ask,
    await_futures,
    check_client,
    check_versions,
    first_workers,
    living,
    present,
    reaching,
    shared_memory,
)
from dps.data.sealed import sealed
from dps.errors import ClusterError, ServerLostError, WorkerLostError
from dps.monitor.dashboard import show_fits
from dps.monitor.shard import ReportingTensorShard
from dps.server.holding import Holding, HoldingCard
from dps.server.tensors import ServerSpec
from dps.transport.callers import RemoteAccess, access_to
from dps.transport.remote import Remote
from dps.transport.tensor_shard import TensorShard

__all__ = ["ServerShards", "choose_workers", "find", "names", "start", "task_client"]

#: What the names of published datasets begin with.
_PREFIX = "dps-server-"
#: Seconds that the scheduler may take to answer.
_ASKING = 30.0


@dataclass(frozen=True)
class ServerCard:
    """A server on a cluster, as whoever connects to it must know it; it travels.

    Parameters
    ----------
    spec : ServerSpec
    remotes : tuple of Remote
    cards : tuple of HoldingCard
        One a shard, as are the remotes.
    timeout : float
    """

    spec: ServerSpec
    remotes: tuple[Remote, ...]
    cards: tuple[HoldingCard, ...]
    timeout: float


def choose_workers(
    client: Client,
    n_shards: int | None,
    workers: Sequence[str] | Mapping[str, float] | None,
    timeout: float,
) -> list[str]:
    """The worker of each shard: of those given, or one a host, or so many on all hosts in turn.

    Workers may be given by Dask's resources that they have to have.

    Raises
    ------
    ValueError
        One of them is not there.
    """
    check_client(client)
    alive = living(client, timeout) or first_workers(client, "server", timeout)
    if isinstance(workers, Mapping):
        known = ask(client, "scheduler.identity", timeout)["workers"]
        there = {worker: known[worker]["resources"] for worker in alive if worker in known}
        wanted = workers
        workers = sorted(
            worker
            for worker, has in there.items()
            if all(has.get(each, 0) >= least for each, least in wanted.items())
        )
        if not workers:
            raise ValueError(f"no worker has the resources {dict(wanted)}; there are {there}")
    if workers is not None:
        missing = sorted(set(workers) - set(alive))
        if missing or not workers:
            raise ValueError(
                f"workers must be addresses of workers, of which there are {sorted(alive)}. "
                f"Got {list(workers)!r} instead."
            )
        chosen = list(workers)
        return chosen if n_shards is None else [chosen[n % len(chosen)] for n in range(n_shards)]
    all_of_them = sorted(present(client, "server", timeout))
    hosts: dict[str, list[str]] = {}
    for worker, host in zip(all_of_them, shared_memory(client, all_of_them, timeout), strict=True):
        hosts.setdefault(host, []).append(worker)
    groups = list(hosts.values())
    n_shards = n_shards or len(groups)
    return [
        groups[n % len(groups)][n // len(groups) % len(groups[n % len(groups)])]
        for n in range(n_shards)
    ]


def start(
    client: Client,
    spec: ServerSpec,
    workers: Sequence[str],
    timeout: float,
) -> ServerShards:
    """Make the shards.

    Raises
    ------
    WorkerLostError
        A worker died meanwhile.
    """
    check_versions(client, set(workers), timeout)
    kind = TensorShard
    if dask.config.get("dps.monitor", True):
        kind = ReportingTensorShard
        show_fits(client, timeout)

    def check() -> None:
        gone = sorted(set(workers) - set(living(client, timeout)))
        if gone:
            raise WorkerLostError("a worker died while a server was made", worker=gone[0])

    futures = [
        client.submit(
            sealed(partial(kind, spec, shard)), actor=True, workers=[worker],
            key=f"dps-server-{spec.id}-{shard}", pure=False,
        )
        for shard, worker in enumerate(workers)
    ]  # fmt: skip
    try:
        await_futures(client, futures, timeout, check)
        remotes = tuple(
            Remote(worker, future.key, client)
            for worker, future in zip(workers, futures, strict=True)
        )
        cards = tuple(remote.call("card", timeout=timeout, check=check) for remote in remotes)
    except ServerLostError:
        until_known(check)
        raise
    return ServerShards(client, ServerCard(spec, remotes, cards, timeout), futures)


def task_client() -> Client:
    """The client of the worker whose task this is."""
    return get_client()


def names(client: Client) -> list[str]:
    """The names of all servers of a cluster.

    Raises
    ------
    ClusterError
        The scheduler is gone.
    """
    with reaching(client):
        found = client.list_datasets(callback_timeout=_ASKING)
    return sorted(
        name.removeprefix(_PREFIX)
        for name in found
        if isinstance(name, str) and name.startswith(_PREFIX)
    )


def find(client: Client, name: str) -> ServerShards:
    """A server by its name.

    Raises
    ------
    LookupError
        There is none of that name.
    ClusterError
        The scheduler is gone.
    """
    cards = _cards(client, name)
    if not cards:
        raise LookupError(
            f"there is no server with name={name!r} on {client.scheduler.address}; "
            f"there are {names(client)}"
        )
    if inside_task():
        return ServerShards(None, cards[0])
    return ServerShards(client, _through(cards[0], client))


class ServerShards:
    """The shards of a server on Actors of a cluster.

    Parameters
    ----------
    client : distributed.Client or None
        None: it is found out where it is first asked.
    card : ServerCard
    futures : sequence of Future
        What holds the Actors.
    """

    def __init__(
        self, client: Client | None, card: ServerCard, futures: Sequence[Future] = ()
    ) -> None:
        self._client, self._given, self._futures = client, card, list(futures)
        self._known = client is not None

    def __reduce__(self) -> Any:
        return ServerShards, (None, self._given)

    @property
    def spec(self) -> ServerSpec:
        """What it is made of."""
        return self._given.spec

    @property
    def _card(self) -> ServerCard:
        """The server, as it can be asked from here.

        The scheduler unpickles what is on its way to tasks, and asks nothing.
        """
        if not self._known:
            client = None if inside_task() else active_client()
            self._client, self._given = client, _through(self._given, client)
            self._known = True
        return self._given

    def connect(self, shard: int) -> Holding | RemoteAccess:
        """The way to a shard."""
        card = self._card
        return access_to(card.spec, shard, card.cards[shard], card.remotes[shard], card.timeout)

    def status(self) -> list[dict[str, Any]]:
        """What has been done at each shard, and who is connected; of a lost one, why.

        Raises
        ------
        ServerLostError
            All shards are lost.
        """
        card = self._card
        alive = _alive(card)
        found = []
        for shard, remote in enumerate(card.remotes):
            try:
                if remote.address not in alive:
                    raise ServerLostError("its worker has died")
                answer = remote.call("status", timeout=card.timeout)
            except ServerLostError as error:
                lost = card.spec.lost(shard, error.message, remote.address)
                answer = {"parts": {}, "callers": [], "lost": str(lost)}
            found.append({"worker": remote.address, **answer})
        if all("lost" in shard for shard in found):
            raise lost
        return found

    def extend(self, spec: ServerSpec) -> None:
        """Have all shards hold the tensors of `spec`, or those that somebody else has made first.

        The first shard decides who was first. To ask with what is known brings what is there, of
        the shards that are not lost.

        Raises
        ------
        ServerLostError
            A shard is lost, and there are to be others; or all are, or the server has been closed.
        """
        card = self._card
        alive, asks = _alive(card), spec.tensors == card.spec.tensors
        there = [remote.address in alive for remote in card.remotes]
        if not (any(there) if asks else all(there)):
            shard = there.index(False)
            raise spec.lost(shard, "its worker has died", card.remotes[shard].address)
        found, cards = spec, list(card.cards)
        for shard in np.flatnonzero(there).tolist():
            remote = card.remotes[shard]
            try:
                answer = remote.call("extend", found, timeout=card.timeout)
                if found is spec:
                    found = answer
                    if found.tensors == card.spec.tensors:
                        return
                cards[shard] = remote.call("card", timeout=card.timeout)
            except ServerLostError as error:
                raise spec.lost(shard, error.message, remote.address) from error
        self._given = replace(card, spec=found, cards=tuple(cards))

    def publish(self) -> None:
        """Have the scheduler hold it by its name, until it is closed.

        Raises
        ------
        ValueError
            There is one of that name.
        """
        client, name = self._client, self.spec.name
        assert client is not None
        held = {f"{_PREFIX}{name}": (self._futures, pickle.dumps(self._card))}
        taken = f"there is a server with name={name!r}: connect to it, or close it"
        if name in names(client):  # Dask would have a traceback in its log
            raise ValueError(taken)
        try:
            with reaching(client):
                client.publish_dataset(held, callback_timeout=self._card.timeout)
        except KeyError as error:
            raise ValueError(taken) from error

    def abandon(self) -> None:
        """End the shards, also where one is lost.

        Raises
        ------
        ClusterError
            The scheduler is gone.
        """
        card = self._card
        try:
            alive = _alive(card)
            for remote in card.remotes:
                if remote.address in alive:
                    with contextlib.suppress(ServerLostError):  # it has gone
                        remote.call("close", timeout=card.timeout)
        finally:
            for future in self._futures:
                future.release()

    def close(self) -> None:
        """End the shards, and have the scheduler hold the name no longer."""
        self.abandon()
        if self.spec.name is None:
            return
        client = self._client or task_client()
        if self.spec.id in (card.spec.id for card in _cards(client, self.spec.name)):
            with reaching(client):
                client.unpublish_dataset(f"{_PREFIX}{self.spec.name}", callback_timeout=_ASKING)


def _through(card: ServerCard, client: Client | None) -> ServerCard:
    """The same, to be asked through a client; without one by the worker whose task this is.

    That is asked now: other threads of the task would not know.
    """
    node = client or get_worker()
    remotes = tuple(Remote(remote.address, remote.key, node) for remote in card.remotes)
    return replace(card, remotes=remotes)


def _alive(card: ServerCard) -> dict[str, int]:
    """The workers that the scheduler has now."""
    remote = card.remotes[0]

    async def workers() -> Any:
        return await remote.node.scheduler.ncores()

    try:
        found: dict[str, int] = remote.submit(workers()).result(card.timeout)
    except ServerLostError as error:
        raise ClusterError(f"the scheduler cannot be reached ({error.message})") from error
    return found


def _cards(client: Client, name: str | None) -> list[ServerCard]:
    """What is known by a name: one server, or none."""
    try:
        with reaching(client):
            _, data = client.get_dataset(f"{_PREFIX}{name}", callback_timeout=_ASKING)
    except KeyError:
        return []
    return [pickle.loads(data)]
