"""Shared memory that a shard left when its worker died, and processes that can read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from distributed import Client

from dps.cluster.dask.calls import ask
from dps.server.group.reading import ShardMemory
from dps.server.group.session import Endpoint, Lazy, Local
from dps.server.shard import WindowCard

#: Workers of the host that are asked whether they can read the memory.
_ASKED = 4


def remains_of(
    client: Client, card: WindowCard, address: str, alive: Mapping[str, int], timeout: float
) -> Endpoint | None:
    """Return an endpoint for the memory of a shard whose worker has died, or None.

    This process reads memory of its own host; otherwise a worker on the dead one's host does.

    alive: the living workers.
    """
    here = ShardMemory.find(card)
    if here is not None:
        return Local(here)
    host = address.rpartition(":")[0]
    near = sorted(worker for worker in alive if worker.rpartition(":")[0] == host)[:_ASKED]
    for worker in near:
        there = _Elsewhere(client, worker, card)
        if there.call("found", timeout=timeout):
            return there
    return None


@dataclass(frozen=True)
class _Elsewhere(Endpoint):
    """Memory that a worker reads."""

    client: Client
    worker: str
    card: WindowCard

    def start(self, method: str, *args: Any) -> Lazy:
        """Start a call at that worker."""
        return Lazy(partial(self._ask, method, args))

    def _ask(self, method: str, arguments: tuple[Any, ...], timeout: float) -> Any:
        found = ask(
            self.client, "_run", timeout, what="a worker cannot be reached",
            function=_answer, card=self.card, method=method, arguments=arguments,
            workers=[self.worker],
        )  # fmt: skip
        return found[self.worker]


def _answer(card: WindowCard, method: str, arguments: tuple[Any, ...]) -> Any:
    remains = ShardMemory.find(card)
    if method == "found":
        return remains is not None
    if remains is None:
        raise LookupError("what the shard has left is no longer there")
    return getattr(remains, method)(*arguments)
