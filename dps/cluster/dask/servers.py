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
from dps.server.holding import HoldingCard
from dps.server.tensors import ServerSpec
from dps.transport.access import Access
from dps.transport.callers import access_to
from dps.transport.remote import Remote
from dps.transport.tensor_shard import TensorShard

__all__ = [
    "ServerCard",
    "choose_workers",
    "close",
    "connect",
    "extend",
    "find",
    "forget",
    "names",
    "publish",
    "start",
    "status",
    "task_client",
    "through",
]

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
) -> tuple[ServerCard, list[Future]]:
    """Make the shards; the Futures that hold them.

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
    return ServerCard(spec, remotes, cards, timeout), futures


def publish(client: Client, card: ServerCard, futures: Sequence[Future]) -> None:
    """Have the scheduler hold a server by its name.

    Raises
    ------
    ValueError
        There is one of that name.
    """
    held = {f"{_PREFIX}{card.spec.name}": (list(futures), pickle.dumps(card))}
    taken = f"there is a server with name={card.spec.name!r}: connect to it, or close it"
    if card.spec.name in names(client):  # Dask would have a traceback in its log
        raise ValueError(taken)
    try:
        with reaching(client):
            client.publish_dataset(held, callback_timeout=card.timeout)
    except KeyError as error:
        raise ValueError(taken) from error


def extend(card: ServerCard, spec: ServerSpec) -> ServerCard:
    """Have all shards hold the tensors of `spec`, or those that somebody else has made first.

    The first shard decides who was first. To ask with what is known brings what is there, of the
    shards that are not lost.

    Raises
    ------
    ServerLostError
        A shard is lost, and there are to be others; or all are, or the server has been closed.
    """
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
                    return card
            cards[shard] = remote.call("card", timeout=card.timeout)
        except ServerLostError as error:
            raise spec.lost(shard, error.message, remote.address) from error
    return replace(card, spec=found, cards=tuple(cards))


def connect(card: ServerCard, shard: int) -> Access:
    """The way to a shard."""
    return access_to(card.spec, shard, card.cards[shard], card.remotes[shard], card.timeout)


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


def find(client: Client, name: str) -> ServerCard:
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
    return cards[0]


def through(card: ServerCard, client: Client | None) -> ServerCard:
    """The same, to be asked through a client; without one by the worker whose task this is.

    That is asked now: other threads of the task would not know.
    """
    node = client or get_worker()
    remotes = tuple(Remote(remote.address, remote.key, node) for remote in card.remotes)
    return replace(card, remotes=remotes)


def status(card: ServerCard) -> list[dict[str, Any]]:
    """What has been done at each shard, and who is connected; of a lost one, why.

    Raises
    ------
    ServerLostError
        All shards are lost.
    """
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


def close(card: ServerCard, futures: Sequence[Future]) -> None:
    """End the shards, also where one is lost.

    Raises
    ------
    ClusterError
        The scheduler is gone.
    """
    try:
        alive = _alive(card)
        for remote in card.remotes:
            if remote.address in alive:
                with contextlib.suppress(ServerLostError):  # it has gone
                    remote.call("close", timeout=card.timeout)
    finally:
        for future in futures:
            future.release()


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


def forget(client: Client, spec: ServerSpec) -> None:
    """Have the scheduler hold a server no longer.

    Raises
    ------
    ClusterError
        The scheduler is gone.
    """
    if spec.id in (card.spec.id for card in _cards(client, spec.name)):
        with reaching(client):
            client.unpublish_dataset(f"{_PREFIX}{spec.name}", callback_timeout=_ASKING)


def _cards(client: Client, name: str | None) -> list[ServerCard]:
    """What is known by a name: one server, or none."""
    try:
        with reaching(client):
            _, data = client.get_dataset(f"{_PREFIX}{name}", callback_timeout=_ASKING)
    except KeyError:
        return []
    return [pickle.loads(data)]
