"""Servers of named tensors on a Dask cluster: created, found by name, and closed.

An Actor holds each shard. Dask releases it when no client holds its Future. The client that created
a server holds its Futures until the server is closed. For a named server a published dataset also
holds them, so the scheduler keeps it until any client closes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import distributed
from distributed import Client, Future, Worker, get_client, get_worker
from distributed.protocol import pickle

from dps.cluster.base import grace, until_known
from dps.cluster.dask import active_client, inside_task, seceded
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
from dps.cluster.options import Options
from dps.data.collections.sealed import sealed
from dps.errors import ClusterError, ServerLostError, WorkerLostError
from dps.monitor.dashboard import show_fits
from dps.parameter_server.client.access import (
    RemoteAccess,
    access_to,
    mirror_key,
    mirrors_of,
    shard_key,
)
from dps.parameter_server.shard.actor import TensorShard
from dps.parameter_server.shard.layout import ServerSpec
from dps.parameter_server.shard.state import TensorShardCard, TensorShardState
from dps.server.memory.files import remove_files_of
from dps.server.sharding import fastest_shards
from dps.transport.remote import Remote

#: Prefix of the names of published datasets.
_PREFIX = "dps-server-"
#: Seconds in which the scheduler must answer.
_ASK_SECONDS = 30.0
#: Before 2026.6 two concurrent requests for datasets leave Dask's option `scheduler` changed.
_OLD = tuple(map(int, distributed.__version__.split(".")[:2])) < (2026, 6)
_fetching = threading.Lock() if _OLD else contextlib.nullcontext()


class _Published:
    """A card as a dataset whose Futures Dask holds; a client that asks gets the card.

    Before 2026.6 Dask loses Futures in a dataset that a client gets.
    """

    def __init__(self, card: ServerCard, futures: Sequence[Future]) -> None:
        self.card, self._futures = pickle.dumps(card), futures

    def __dask_graph__(self) -> dict[Any, Future]:
        return {future.key: future for future in self._futures}

    def __reduce__(self) -> Any:
        return bytes, (self.card,)


@dataclass(frozen=True)
class ServerCard:
    """A server on a cluster: all that a client needs to connect. It can be pickled."""

    spec: ServerSpec
    remotes: tuple[Remote, ...]
    cards: tuple[TensorShardCard, ...]  # one per shard, as are the remotes
    timeout: float


def choose_workers(
    client: Client,
    n_shards: int | None,
    nbytes: int,
    workers: Sequence[str] | Mapping[str, float] | None,
    mirror: bool | str,
    timeout: float,
) -> list[tuple[str, ...]]:
    """Choose the worker of each shard, and of its mirror if there are mirrors.

    `n_shards` shards go to all hosts in turn, or to the given workers. None stands for the fastest
    number for `nbytes` (0: one per host), or for one per given worker. A mirror is on the next
    host; with one host, on another worker if mirrors are required. Workers may be given by Dask's
    resources.

    Raises ValueError: a worker is missing, or mirrors are required and there is one worker.
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
    if workers is None:
        hosts = _by_host(client, sorted(present(client, "server", timeout)), timeout)
        n_hosts = len(hosts)
        shards = [
            hosts[n % n_hosts][n // n_hosts % len(hosts[n % n_hosts])]
            for n in range(n_shards or (fastest_shards(n_hosts, nbytes) if nbytes else n_hosts))
        ]
    else:
        missing = sorted(set(workers) - set(alive))
        if missing or not workers:
            raise ValueError(
                f"workers must be addresses of the cluster's workers, {sorted(alive)}. "
                f"Got {list(workers)!r} instead."
            )
        given = list(workers)
        shards = [given[n % len(given)] for n in range(n_shards or len(given))]
        hosts = _by_host(client, given, timeout)
    if mirror is False or (mirror == "auto" and len(hosts) == 1):
        return [(worker,) for worker in shards]
    return [_with_mirror(worker, number, hosts) for number, worker in enumerate(shards)]


def _by_host(client: Client, workers: Sequence[str], timeout: float) -> list[list[str]]:
    """Group the workers that share memory."""
    hosts: dict[str, list[str]] = {}
    for worker, host in zip(workers, shared_memory(client, workers, timeout), strict=True):
        hosts.setdefault(host, []).append(worker)
    return list(hosts.values())


def _with_mirror(worker: str, number: int, hosts: Sequence[Sequence[str]]) -> tuple[str, str]:
    """Return a shard's worker, and one for its mirror."""
    home = next(at for at, host in enumerate(hosts) if worker in host)
    others = [each for each in hosts[(home + 1) % len(hosts)] if each != worker]
    if not others:
        raise ValueError(f"mirror=True needs two workers at least, and there is {worker}")
    return worker, others[number % len(others)]


def start(
    client: Client,
    spec: ServerSpec,
    workers: Sequence[tuple[str, ...]],
    given: bool,
    timeout: float,
) -> ServerShards:
    """Create the shards and their mirrors; later mirrors use these workers if the user gave them.

    Raises WorkerLostError: a worker has died meanwhile.
    """
    involved = {worker for places in workers for worker in places}
    check_versions(client, involved, timeout)
    watched = Options.now().monitor
    if watched:
        show_fits(client, timeout)

    def check() -> None:
        gone = sorted(involved - set(living(client, timeout)))
        if gone:
            raise WorkerLostError("a worker died while a server was made", worker=gone[0])

    mirrored = len(workers[0]) > 1
    another = partial(_another, watched, frozenset(involved) if given else None)
    make = another if mirrored and spec.name is not None else None

    def key(shard: int, number: int) -> str:
        return mirror_key(spec.id, shard, 1) if number else shard_key(spec.id, shard)

    futures = [
        client.submit(
            sealed(partial(TensorShard, spec, shard, number, make, watched)), actor=True,
            workers=[worker], key=key(shard, number), pure=False,
        )
        for shard, places in enumerate(workers)
        for number, worker in enumerate(places)
    ]  # fmt: skip
    try:
        with seceded():
            await_futures(client, futures, timeout, lambda left: check())
        made = iter(futures)
        actors = [[Remote(each, next(made).key, client) for each in places] for places in workers]
        for remote, *mirrors in actors:
            for mirror in mirrors:
                card = mirror.call("card", timeout=timeout, check=check)
                remote.call("mirror", card, mirror, timeout=timeout, check=check)
        cards = tuple(remote.call("card", timeout=timeout, check=check) for remote, *_ in actors)
    except ServerLostError:
        until_known(check)
        raise
    remotes = tuple(remote for remote, *_ in actors)
    return ServerShards(client, ServerCard(spec, remotes, cards, timeout), futures)


def _another(
    watched: bool,
    among: frozenset[str] | None,
    spec: ServerSpec,
    shard: int,
    number: int,
    worker: Worker,
    use: Callable[[Remote], None],
) -> bool:
    """Create a mirror of a shard on another worker; False if there is no other worker.

    The scheduler holds it as a dataset until the server is closed, since the client that created
    the server may have left. `use` makes the shard forward writes to it, or raises.
    """
    timeout, key = spec.timeout, mirror_key(spec.id, shard, number)
    asking = asyncio.run_coroutine_threadsafe(worker.scheduler.ncores(), worker.loop.asyncio_loop)
    others = set(asking.result(timeout)) - {worker.address}
    if not (others if among is None else others & among):
        return False  # it is called every few seconds, and a client would cost more
    with Client(
        worker.scheduler.address, security=worker.security, set_as_default=False, name="dps-mirror"
    ) as client:
        there = sorted(set(living(client, timeout)) - {worker.address})
        if among is not None:
            there = [each for each in there if each in among]
        if not there:
            return False
        here, *hosts = shared_memory(client, [worker.address, *there], timeout)
        far = [each for each, host in zip(there, hosts, strict=True) if host != here] or there
        chosen = far[(shard + number) % len(far)]  # another worker at each attempt
        make = partial(_another, watched, among)
        future = client.submit(
            sealed(partial(TensorShard, spec, shard, number, make, watched)), actor=True,
            workers=[chosen], key=key, pure=False,
        )  # fmt: skip

        def check() -> None:
            if chosen not in living(client, timeout):
                raise WorkerLostError("a worker died while a mirror was made", worker=chosen)

        await_futures(client, [future], timeout, lambda left: check())
        client.publish_dataset(future, name=key, callback_timeout=timeout)
        try:
            use(Remote(chosen, key, worker))
        except BaseException:
            client.unpublish_dataset(key, callback_timeout=timeout)
            raise
    return True


def task_client() -> Client:
    """Return the client of the worker that runs this task."""
    return get_client()


def names(client: Client) -> list[str]:
    """Return the names of all servers of a cluster."""
    with reaching(client):
        found = client.list_datasets(callback_timeout=_ASK_SECONDS)
    return sorted(
        name.removeprefix(_PREFIX)
        for name in found
        if isinstance(name, str) and name.startswith(_PREFIX)
    )


def find(client: Client, name: str) -> ServerShards:
    """Return the server with a name.

    Raises LookupError: there is none of that name.
    Raises ClusterError: the scheduler is lost.
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
    """The shards of a server on Actors of a cluster, held by Futures.

    Without a client it finds one when it is first used.
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
        """The server's specification."""
        return self._given.spec

    @property
    def _card(self) -> ServerCard:
        """The server's card with a client.

        The scheduler, which unpickles arguments of tasks, never gets here.
        """
        if not self._known:
            client = None if inside_task() else active_client()
            self._client, self._given = client, _through(self._given, client)
            self._known = True
        return self._given

    def connect(self, shard: int) -> TensorShardState | RemoteAccess:
        """Return the access to a shard."""
        card = self._card
        return access_to(card.spec, shard, card.cards[shard], card.remotes[shard], card.timeout)

    def status(self) -> list[dict[str, Any]]:
        """Return counts and callers of each shard; for a lost one the reason.

        Raises ServerLostError: all shards are lost.
        """
        found = []
        for shard, remote in enumerate(self._card.remotes):
            worker = remote.address
            try:
                access = self.connect(shard)
                answer = access.call("status")
                worker = worker if isinstance(access, TensorShardState) else access.worker
            except ServerLostError as error:
                answer = {"parts": {}, "callers": [], "mirror": None, "lost": str(error)}
                lost = error
            found.append({"worker": worker, **answer})
        if all("lost" in shard for shard in found):
            raise lost
        return found

    def extend(self, spec: ServerSpec) -> None:
        """Make all shards hold the tensors of `spec`, or those that another client created first.

        The first shard decides which client was first. A call with the known tensors returns those
        that there are, from all shards that live.

        Raises ServerLostError: a shard is lost, and there are to be more tensors; or all shards are
            lost, or the server has been closed.
        """
        card = self._card
        asks = spec.tensors == card.spec.tensors
        there: dict[int, TensorShardState | RemoteAccess] = {}
        for shard in range(spec.n_shards):
            try:
                access = self.connect(shard)
                access.call("note", "")  # it answers, or its mirror does
                there[shard] = access
            except ServerLostError as error:
                lost = error
        if not there or (len(there) < spec.n_shards and not asks):
            raise lost
        found, cards, remotes = spec, list(card.cards), list(card.remotes)
        for shard, access in there.items():
            answer = access.call("extend", found)
            if found is spec:
                found = answer
                if found.tensors == card.spec.tensors:
                    return
            cards[shard] = access.call("card")
            if isinstance(access, RemoteAccess):  # a mirror may lead
                remotes[shard] = access.remote
        self._given = replace(card, spec=found, cards=tuple(cards), remotes=tuple(remotes))

    def publish(self) -> None:
        """Make the scheduler hold the server by its name until it is closed.

        Raises ValueError: there is one of that name.
        """
        client, name = self._client, self.spec.name
        assert client is not None
        held = _Published(self._card, self._futures)
        taken = f"there is a server with name={name!r}: connect to it, or close it"
        if name in names(client):  # else Dask would log a traceback
            raise ValueError(taken)
        try:
            with reaching(client):
                client.publish_dataset(
                    held, name=f"{_PREFIX}{name}", callback_timeout=self._card.timeout
                )
        except KeyError as error:
            raise ValueError(taken) from error

    def abandon(self) -> None:
        """End the shards, even if one is lost.

        Raises ClusterError: the scheduler is lost.
        """
        card = self._card
        known = [(card.spec.id, shard, remote) for shard, remote in enumerate(card.remotes)]
        try:
            alive = _alive(card)
            mirrors = [each for one in known for each in mirrors_of(*one, card.timeout)]
            for remote in (*card.remotes, *mirrors):
                if remote.address in alive:
                    with contextlib.suppress(ServerLostError):  # it is lost
                        remote.call("close", timeout=card.timeout)
            self._remove_files(alive)
        finally:
            for future in self._futures:
                future.release()

    def _remove_files(self, alive: Mapping[str, int]) -> None:
        """Remove files of dead shards on each host."""
        remove_files_of(self.spec.id)
        if (client := self._client) is not None and alive:
            with contextlib.suppress(OSError):  # a frozen or lost worker
                client.sync(
                    client._run, remove_files_of, self.spec.id, on_error="ignore",
                    callback_timeout=grace(),
                )  # fmt: skip

    def close(self) -> None:
        """End the shards, and make the scheduler drop the name."""
        self.abandon()
        if self.spec.name is None:
            return
        client = self._client or task_client()
        with reaching(client):
            for name in client.list_datasets(callback_timeout=_ASK_SECONDS):
                # No shard is left that could publish another one.
                if isinstance(name, str) and name.startswith(f"{mirror_key(self.spec.id)}-"):
                    client.unpublish_dataset(name, callback_timeout=_ASK_SECONDS)
        if self.spec.id in (card.spec.id for card in _cards(client, self.spec.name)):
            with reaching(client):
                client.unpublish_dataset(
                    f"{_PREFIX}{self.spec.name}", callback_timeout=_ASK_SECONDS
                )


def _through(card: ServerCard, client: Client | None) -> ServerCard:
    """Return a card that uses a client, or the worker that runs this task."""
    node = client or _worker()
    remotes = tuple(Remote(remote.address, remote.key, node) for remote in card.remotes)
    return replace(card, remotes=remotes)


def _worker() -> Worker:
    """Return the worker that runs this task, also in a thread that the task started.

    Raises ValueError: there is none, or several clusters have one here.
    """
    try:
        return get_worker()
    except ValueError:
        running = [each for each in Worker._instances if each.status.name == "running"]
        if len({each.scheduler.address for each in running}) != 1:
            raise
        return running[0]


def _alive(card: ServerCard) -> dict[str, int]:
    """Return the workers that the scheduler has now."""
    remote = card.remotes[0]

    async def workers() -> Any:
        return await remote.node.scheduler.ncores()

    try:
        found: dict[str, int] = remote.submit(workers()).result(card.timeout)
    except ServerLostError as error:
        raise ClusterError(f"the scheduler cannot be reached ({error.message})") from error
    return found


def _cards(client: Client, name: str | None) -> list[ServerCard]:
    """Return the cards of the server with a name: one or none."""
    try:
        with reaching(client), _fetching:
            found = client.get_dataset(f"{_PREFIX}{name}", callback_timeout=_ASK_SECONDS)
    except KeyError:
        return []
    # Within one process nothing is pickled; and any client may publish a dataset of that name.
    card = found.card if isinstance(found, _Published) else found
    if not isinstance(card, bytes):
        return []
    try:
        card = pickle.loads(card)
    except Exception:
        return []
    return [card] if isinstance(card, ServerCard) else []
