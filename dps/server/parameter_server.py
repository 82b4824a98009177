"""Handles on all shards, and on a group that works there; the latter is what a replica is given.

They pickle. They know where shards are and which elements they hold, and ask them; they do not
make or release them (``dps/cluster`` does).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dps.server.placement import Placement
from dps.server.shard import GroupSpec, ParameterShard, ShardStatus, WindowCard
from dps.server.store import Kept

__all__ = ["Endpoint", "Local", "ParameterServer", "Session", "WindowHandle"]

#: Called while an answer is awaited; raises to give up.
Check = Callable[[], None]


class Endpoint(Protocol):
    """Where a shard's short methods are called."""

    def call(
        self, method: str, *args: Any, timeout: float, check: Callable[[], None] | None = None
    ) -> Any:
        """Call a method that does not wait for others; `check` is called meanwhile."""
        ...


@dataclass(frozen=True)
class Local:
    """A shard in this process."""

    shard: ParameterShard

    def call(
        self, method: str, *args: Any, timeout: float, check: Callable[[], None] | None = None
    ) -> Any:
        """Call the method; it never waits."""
        return getattr(self.shard, method)(*args)


@dataclass(frozen=True)
class ParameterServer:
    """The stores of all shards.

    Parameters
    ----------
    shards : tuple of Endpoint
    placement : Placement
    timeout : float
        Seconds within which a shard must answer.
    """

    shards: tuple[Endpoint, ...]
    placement: Placement
    timeout: float

    def snapshot(self, epochs: int, check: Check | None = None) -> Kept:
        """Parameters and optimizer state after so many closed epochs of the group at work.

        Parameters
        ----------
        epochs : int
        check : callable, optional
            Called while the answer is awaited; raises to give up.

        Returns
        -------
        Kept
            Of the whole vector; `ids` of all keys where there is a table, else empty.
        """
        size = sum(self.placement.size(shard) for shard in range(len(self.placement)))
        keys = self.placement.by_key()
        values: NDArray[np.floating] | None = None
        ids, version = np.zeros((2, 0), np.int64), 0
        for shard, endpoint in enumerate(self.shards):
            part: Kept = endpoint.call("snapshot", epochs, timeout=self.timeout, check=check)
            if values is None:
                values = np.empty((len(part.values), size), part.values.dtype)
                n_keys = size // self.placement.unit if part.ids.size else 0
                ids = np.zeros((2, n_keys), np.int64)
            self.placement.put(shard, part.values, values)
            if ids.size:
                held = np.zeros((2, keys.size(shard)), np.int64)
                held[:, : part.ids.shape[1]] = part.ids
                keys.put(shard, held, ids)
            version = part.version
        assert values is not None
        return Kept(values, version, ids)

    def open(
        self,
        groups: Sequence[GroupSpec],
        hosts: Sequence[tuple[Endpoint, GroupSpec]] = (),
        check: Check | None = None,
    ) -> Session:
        """Begin a group, which takes the place of the one before.

        Parameters
        ----------
        groups : sequence of GroupSpec
            One a shard.
        hosts : sequence of (Endpoint, GroupSpec)
            Of hosts whose ranks sum before they send.
        check : callable, optional
        """
        asked = [*zip(self.shards, groups, strict=True), *hosts]
        handles = tuple(
            WindowHandle(endpoint.call("open", spec, timeout=self.timeout, check=check), endpoint)
            for endpoint, spec in asked
        )
        n = len(self.shards)
        return Session(self, handles[:n], handles[n:])


@dataclass(frozen=True)
class WindowHandle:
    """A group's window at one shard: how to map it, and where to call."""

    card: WindowCard
    endpoint: Endpoint

    def ask(self, method: str, *args: Any, timeout: float, check: Check | None = None) -> Any:
        """Call a method of the group at the shard."""
        key = self.card.spec.key
        return self.endpoint.call("ask", key, method, *args, timeout=timeout, check=check)


@dataclass(frozen=True)
class Session:
    """A group at a parameter server.

    Parameters
    ----------
    server : ParameterServer
    shards : tuple of WindowHandle
    hosts : tuple of WindowHandle
        Windows in which ranks of a host sum before they send.
    """

    server: ParameterServer
    shards: tuple[WindowHandle, ...]
    hosts: tuple[WindowHandle, ...] = ()

    def status(self, since: int, check: Check | None = None) -> ShardStatus:
        """How far the group is, from the shard that keeps the epochs (the first).

        Parameters
        ----------
        since : int
            First epoch whose record is wanted.
        check : callable, optional
        """
        status: ShardStatus = self.shards[0].ask(
            "status", since, timeout=self.server.timeout, check=check
        )
        return status

    def stop(self, check: Check | None = None) -> None:
        """End the fit for every replica."""
        for handle in (*self.shards, *self.hosts):
            handle.ask("stop", timeout=self.server.timeout, check=check)
