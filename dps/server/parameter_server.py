"""A handle on all shards of a fit. It pickles, and it is all that a replica is given.

It knows where shards are and which elements they hold, and asks them; it does not
make or release them (``dps/cluster`` does).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dps.server.placement import Placement
from dps.server.shard import ParameterShard, ShardStatus, WindowCard

__all__ = ["Local", "ParameterServer", "ShardHandle"]


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
class ShardHandle:
    """One shard: how to map it, and where to call it."""

    card: WindowCard
    endpoint: Endpoint


@dataclass(frozen=True)
class ParameterServer:
    """All shards of a fit.

    Parameters
    ----------
    shards : tuple of ShardHandle
    placement : Placement
    timeout : float
        Seconds within which a shard must answer.
    hosts : tuple of ShardHandle
        Windows in which ranks of a host sum before they send.
    """

    shards: tuple[ShardHandle, ...]
    placement: Placement
    timeout: float
    hosts: tuple[ShardHandle, ...] = ()

    def status(self, since: int, check: Callable[[], None] | None = None) -> ShardStatus:
        """How far the fit is, from the shard that keeps the epochs (the first).

        Parameters
        ----------
        since : int
            First epoch whose record is wanted.
        check : callable, optional
            Called while the answer is awaited; raises to give up.
        """
        status: ShardStatus = self._call(0, "status", since, check=check)
        return status

    def snapshot(
        self, epochs: int, check: Callable[[], None] | None = None
    ) -> tuple[NDArray[np.floating], int]:
        """Parameters and optimizer state after so many closed epochs.

        Returns
        -------
        values : (1 + state_rows, n) array
            Parameters in the first row.
        version : int
            Updates that lie behind them.
        """
        spec = self.shards[0].card.spec
        size = sum(self.placement.size(shard) for shard in range(len(self.placement)))
        values = np.empty((1 + spec.state_rows, size), spec.dtype)
        version = 0
        for shard in range(len(self.shards)):
            part, version = self._call(shard, "snapshot", epochs, check=check)
            self.placement.put(shard, part, values)
        return values, version

    def stop(self, check: Callable[[], None] | None = None) -> None:
        """End the fit for every replica."""
        for handle in (*self.shards, *self.hosts):
            handle.endpoint.call("stop", timeout=self.timeout, check=check)

    def _call(
        self, shard: int, method: str, *args: Any, check: Callable[[], None] | None = None
    ) -> Any:
        endpoint = self.shards[shard].endpoint
        return endpoint.call(method, *args, timeout=self.timeout, check=check)
