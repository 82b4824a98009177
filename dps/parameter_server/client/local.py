"""Where the shards of a server are: in this process, or on Actors of a Dask cluster.

Both have the same methods, so callers need not know.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dps.cluster.choice import here, opened_client
from dps.errors import ClusterError
from dps.parameter_server.shard.layout import ServerSpec
from dps.parameter_server.shard.state import TensorShardState

#: The name of this process in place of a worker's.
HERE = "this process"


class _Here:
    """The shards of a server in this process."""

    def __init__(self, spec: ServerSpec) -> None:
        self.spec = spec
        self._holdings = [
            TensorShardState(spec, shard, shared=False) for shard in range(spec.n_shards)
        ]

    def connect(self, shard: int) -> TensorShardState:
        return self._holdings[shard]

    def status(self) -> list[dict[str, Any]]:
        return [{"worker": HERE, **each.status()} for each in self._holdings]

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


if TYPE_CHECKING:
    from dps._typing import Auto
    from dps.parameter_server.client.dask import ServerShards

    Place = _Here | ServerShards

#: Servers of this process, by name.
_named: dict[str, _Here] = {}


def client_for(given: Any) -> Any:
    """Return the given or the active client, or None.

    Raises ClusterError: this is its event loop.
    """
    given = here(given)
    if given is not None and given.asynchronous:
        raise ClusterError(
            "this would block the event loop of an asynchronous client: call it in another thread, "
            "by await asyncio.to_thread(dps.ParameterServer.connect, name)"
        )
    return given


@contextmanager
def connection(given: object, in_task: bool = True) -> Iterator[Any]:
    """Yield the client that creates or finds servers; in a task, the client of its worker.

    A client that is connected to a given cluster or address is closed afterwards.
    """
    with opened_client(given) as client:
        client = client_for(client)
        if client is None and in_task and "distributed" in sys.modules:
            from dps.cluster.dask import inside_task
            from dps.parameter_server.client import dask as servers

            if inside_task():
                client = servers.task_client()
        yield client


def shards_for(
    client: Any,
    n_shards: int | None,
    nbytes: int,
    workers: Sequence[str] | Mapping[str, float] | None,
    mirror: bool | Auto,
    timeout: float,
) -> list[tuple[str, ...]]:
    """Choose the worker of each shard, for `nbytes` in all, and of its mirror."""
    if client is None:
        if mirror is True:
            raise ClusterError("mirror=True needs a client: without one a server is in one process")
        if workers is not None:
            raise ClusterError("workers= needs a client: without one a server is in this process")
        return [(HERE,)] * (n_shards or 1)
    from dps.parameter_server.client import dask as servers

    return servers.choose_workers(client, n_shards, nbytes, workers, mirror, timeout)


def make(
    client: Any, spec: ServerSpec, workers: Sequence[tuple[str, ...]], given: bool, timeout: float
) -> Place:
    """Create the shards; later mirrors use these workers if they were `given`."""
    if client is None:
        return _Here(spec)
    from dps.parameter_server.client import dask as servers

    return servers.start(client, spec, workers, given, timeout)


def find(client: Any, name: str) -> Place:
    """Return the server with a name.

    Raises LookupError: there is none of that name.
    """
    if client is None:
        if name not in _named:
            raise LookupError(
                f"there is no server with name={name!r} in this process; there are "
                f"{sorted(_named)}. To find one on a cluster, give a client or call this in a "
                "task; a function of `apply` cannot reach servers"
            )
        return _named[name]
    from dps.parameter_server.client import dask as servers

    return servers.find(client, name)


def names(client: Any) -> list[str]:
    """Return the names of all servers."""
    if client is None:
        return sorted(_named)
    from dps.parameter_server.client import dask as servers

    return servers.names(client)
