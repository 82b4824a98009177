"""Handles on all shards, and on a group that works there; the latter is what a replica is given.

They pickle. They know where shards are and which elements they hold, and ask them; they do not
make or release them (``dps/cluster`` does).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dps.models.layout import Table
from dps.server.placement import Placement
from dps.server.shard import GroupSpec, ParameterShard, ShardStatus, WindowCard
from dps.server.snapshots import Kept

__all__ = ["Endpoint", "Local", "Session", "Stores", "WindowHandle"]

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
class Stores:
    """The stores of all shards.

    Parameters
    ----------
    shards : tuple of Endpoint
    placement : Placement
    timeout : float
        Seconds within which a shard must answer.
    table : Table or None
        What the first of the elements are, if their rows are made when they are touched.
    """

    shards: tuple[Endpoint, ...]
    placement: Placement
    timeout: float
    table: Table | None = None

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
            All of it, with the rows of a table in the order of their ids.
        """
        parts = [list(self._parts(shard, epochs, check)) for shard in range(len(self.shards))]
        first, width = parts[0][0], 0 if self.table is None else self.table.width
        of_table = 0 if self.table is None else self.table.rows * width
        n = sum(self.placement.size(shard) for shard in range(len(self.placement)))
        behind = np.empty((len(first.values), n - of_table), first.values.dtype)
        where = self.placement.behind(of_table)
        for shard, (part, *_) in enumerate(parts):
            where.put(shard, part.split(width)[1], behind)
        all_parts = [part for each in parts for part in each]
        ids = np.concatenate([part.ids for part in all_parts], axis=1)
        order = np.argsort(ids[0])
        rows = np.concatenate([part.split(width)[0] for part in all_parts], axis=1)
        rows = rows.reshape(len(rows), -1, max(width, 1))[:, order].reshape(len(rows), -1)
        return Kept(np.concatenate([rows, behind], axis=1), first.version, ids[:, order])

    def _parts(self, shard: int, epochs: int, check: Check | None) -> Iterator[Kept]:
        rest = 0
        while True:
            part: Kept = self.shards[shard].call(
                "snapshot", epochs, rest, timeout=self.timeout, check=check
            )
            yield part
            rest = part.rest
            if not rest:
                return

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
    server : Stores
    shards : tuple of WindowHandle
    hosts : tuple of WindowHandle
        Windows in which ranks of a host sum before they send.
    """

    server: Stores
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
