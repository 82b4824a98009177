"""A bounded store of parameter servers, made from events only.

A closed server is removed. A server whose worker dies is shown as lost for some time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import Any

#: Largest numbers of servers, and of closed ones whose late events are ignored.
_MAX_SERVERS, _FORGOTTEN = 50, 1000
#: Seconds for which a server without shards is shown.
LINGER = 600.0


class Server:
    """One parameter server, as events describe it.

    shards: the last `server` event of each shard.
    lost: shards whose worker has died, with its address.
    heard: time of the last event or death.
    """

    def __init__(self, id: str, now: float) -> None:
        self.id = id
        self.heard = now
        self.shards: dict[int, Mapping[str, Any]] = {}
        self.lost: dict[int, str] = {}

    @property
    def name(self) -> str | None:
        """Its name, if it has one."""
        return self._any["name"]

    @property
    def _any(self) -> Mapping[str, Any]:
        return self.shards[min(self.shards)]

    @property
    def n_shards(self) -> int:
        """Number of its shards."""
        return int(self._any["shards"])

    @property
    def tensors(self) -> list[str]:
        """Names of the tensors on all shards, sorted."""
        return sorted({name for shard in self.shards.values() for name in shard["tensors"]})

    @property
    def bytes(self) -> int:
        """Memory of the living shards."""
        return sum(s["nbytes"] for at, s in self.shards.items() if at not in self.lost)

    @property
    def callers(self) -> int:
        """Number of distinct connected callers."""
        there = (s["callers"] for at, s in self.shards.items() if at not in self.lost)
        return len({caller for callers in there for caller in callers})

    def rate(self, what: str) -> float:
        """Reads, pushes or writes per second of the busiest shard, since a call goes to several."""
        rates = [
            float(shard[f"{what}_per_second"])
            for at, shard in self.shards.items()
            if at not in self.lost
        ]
        return max(rates, default=0.0)


class Servers:
    """The parameter servers of a cluster.

    Examples
    --------
    >>> Servers().all
    []
    """

    def __init__(self) -> None:
        self._servers: dict[str, Server] = {}
        self._closed: deque[str] = deque(maxlen=_FORGOTTEN)

    @property
    def all(self) -> list[Server]:
        """In the order of their first events."""
        return list(self._servers.values())

    def shown(self, now: float) -> list[Server]:
        """All servers except those that were lost long ago."""
        return [
            server
            for server in self.all
            if len(server.lost) < len(server.shards) or now - server.heard <= LINGER
        ]

    def add(self, event: Mapping[str, Any], now: float) -> None:
        """Add a `server` event."""
        id = event["fit"]
        if event["final"]:
            self._servers.pop(id, None)
            self._closed.append(id)
        elif id not in self._closed:
            self._make_room(now)
            server = self._servers.setdefault(id, Server(id, now))
            server.heard = now
            server.shards[event["shard"]] = event

    def lose(self, worker: str, now: float) -> bool:
        """Record the loss of a worker; True if it had a shard."""
        found = False
        for server in self.all:
            for at, shard in server.shards.items():
                if shard["worker"] == worker and at not in server.lost:
                    server.lost[at] = worker
                    server.heard = now
                    found = True
        return found

    def keep(self, workers: Collection[str], now: float) -> None:
        """Mark shards on missing workers as lost, after events that are some time old."""
        for server in self.all:
            for shard in server.shards.values():
                if shard["worker"] not in workers:
                    self.lose(shard["worker"], now)

    def _make_room(self, now: float) -> None:
        self._servers = {server.id: server for server in self.shown(now)}
        if len(self._servers) > _MAX_SERVERS:
            quietest = min(self.all, key=lambda server: (not server.lost, server.heard))
            del self._servers[quietest.id]
