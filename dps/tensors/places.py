"""Where the shards of a server are: in this process, or on Actors of a Dask cluster.

One object a place, with the same methods; whoever asks does not see which it is.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dps.cluster.choice import here
from dps.errors import ClusterError
from dps.server.holding import Holding
from dps.server.tensors import ServerSpec
from dps.transport.access import Access, LocalAccess

__all__ = ["HERE", "Place", "client_for", "find", "known", "make", "names", "shards_for"]

#: The name of this process where a worker is named.
HERE = "this process"


class Place(Protocol):
    """The shards of one server."""

    @property
    def spec(self) -> ServerSpec:
        """What it is made of."""
        ...

    def connect(self, shard: int) -> Access:
        """The way to a shard."""
        ...

    def status(self) -> list[dict[str, Any]]:
        """What has been done at each shard, and who is connected."""
        ...

    def extend(self, spec: ServerSpec) -> None:
        """Have the shards hold the tensors of `spec`, and hear of what others have made."""
        ...

    def publish(self) -> None:
        """Let it be found by its name, until it is closed."""
        ...

    def abandon(self) -> None:
        """End the shards."""
        ...

    def close(self) -> None:
        """End the shards, and forget the name."""
        ...


class _Here:
    """Shards in this process."""

    def __init__(self, spec: ServerSpec) -> None:
        self.spec = spec
        self._holdings = [Holding(spec, shard, shared=False) for shard in range(spec.n_shards)]

    def connect(self, shard: int) -> Access:
        return LocalAccess(self._holdings[shard])

    def status(self) -> list[dict[str, Any]]:
        return [{"worker": HERE, "callers": [], **each.counts()} for each in self._holdings]

    def extend(self, spec: ServerSpec) -> None:
        for holding in self._holdings:
            spec = holding.extend(spec)
        self.spec = spec

    def publish(self) -> None:
        assert self.spec.name is not None
        if _named.setdefault(self.spec.name, self) is not self:
            raise ValueError(
                f"there is a server with name={self.spec.name!r}: connect to it, or close it"
            )

    def abandon(self) -> None:
        for holding in self._holdings:
            holding.close()

    def close(self) -> None:
        self.abandon()
        if self.spec.name is not None and _named.get(self.spec.name) is self:
            del _named[self.spec.name]

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self.spec} is in this process and cannot be sent to others: make it on a cluster"
        )


#: Servers of this process, by name.
_named: dict[str, _Here] = {}


class _OnCluster:
    """Shards on Actors."""

    def __init__(self, client: Any, card: Any, futures: Sequence[Any] = ()) -> None:
        self._client, self._given, self._futures = client, card, list(futures)
        self._known = client is not None

    @property
    def _card(self) -> Any:
        """The server, as it can be asked from here: found out when it is first asked.

        The scheduler unpickles what is on its way to tasks, and asks nothing.
        """
        from dps.cluster.dask import active_client, inside_task, servers

        if not self._known:
            client = None if inside_task() else active_client()
            self._client, self._given = client, servers.through(self._given, client)
            self._known = True
        return self._given

    @property
    def spec(self) -> ServerSpec:
        spec: ServerSpec = self._given.spec
        return spec

    def connect(self, shard: int) -> Access:
        from dps.cluster.dask import servers

        return servers.connect(self._card, shard)

    def status(self) -> list[dict[str, Any]]:
        from dps.cluster.dask import servers

        return servers.status(self._card)

    def extend(self, spec: ServerSpec) -> None:
        from dps.cluster.dask import servers

        self._given = servers.extend(self._card, spec)

    def publish(self) -> None:
        from dps.cluster.dask import servers

        servers.publish(self._client, self._card, self._futures)

    def abandon(self) -> None:
        from dps.cluster.dask import servers

        servers.close(self._card, self._futures)

    def close(self) -> None:
        from dps.cluster.dask import servers

        self.abandon()
        if self.spec.name is not None:
            servers.forget(self._client or servers.task_client(), self.spec)

    def __reduce__(self) -> Any:
        return _OnCluster, (None, self._given)


def client_for(given: Any) -> Any:
    """The client that is meant: a given or the active one, or None.

    Raises
    ------
    TypeError
        It is no client.
    ClusterError
        This is its event loop.
    """
    if given is None:
        given = here(None)
        if given is None:
            return None
    from distributed import Client

    if not isinstance(given, Client):
        raise TypeError(f"client must be a distributed.Client or None, got {given!r}")
    if given.asynchronous:
        raise ClusterError(
            "this would block the event loop of an asynchronous client: call it in another thread, "
            "by await asyncio.to_thread(dps.ParameterServer.connect, name)"
        )
    return given


def known(given: Any) -> Any:
    """The client by which servers are found: inside of a task that of its worker."""
    client = client_for(given)
    if client is None and "distributed" in sys.modules:
        from dps.cluster.dask import inside_task, servers

        if inside_task():
            return servers.task_client()
    return client


def shards_for(
    client: Any,
    n_shards: int | None,
    workers: Sequence[str] | Mapping[str, float] | None,
    timeout: float,
) -> list[str]:
    """The worker of each shard."""
    if client is None:
        if workers is not None:
            raise ClusterError("workers= needs a client: without one a server is in this process")
        return [HERE] * (n_shards or 1)
    from dps.cluster.dask import servers

    return servers.choose_workers(client, n_shards, workers, timeout)


def make(client: Any, spec: ServerSpec, workers: Sequence[str], timeout: float) -> Place:
    """Make the shards."""
    if client is None:
        return _Here(spec)
    from dps.cluster.dask import servers

    return _OnCluster(client, *servers.start(client, spec, workers, timeout))


def find(client: Any, name: str) -> Place:
    """A server by its name.

    Raises
    ------
    LookupError
        There is none of that name.
    """
    if client is None:
        if name not in _named:
            raise LookupError(
                f"there is no server with name={name!r} in this process; there are {sorted(_named)}"
            )
        return _named[name]
    from dps.cluster.dask import inside_task, servers

    card = servers.find(client, name)
    if inside_task():
        return _OnCluster(None, card)
    return _OnCluster(client, servers.through(card, client))


def names(client: Any) -> list[str]:
    """The names of all servers there are."""
    if client is None:
        return sorted(_named)
    from dps.cluster.dask import servers

    return servers.names(client)
