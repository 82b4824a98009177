"""The reporter of one shard of a parameter server.

It runs on the event loop of the shard's worker: often at first, then less often, and never without
activity. Callers never wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tornado.ioloop import PeriodicCallback

from dps.monitor.events import TOPIC, event
from dps.monitor.shard.reporter import forgetful

#: Seconds between looks; share of the time since the start between events, and its bound.
_TICK, _SHARE, _LONGEST = 0.5, 1 / 40, 5.0
#: Largest number of callers and tensors that are named.
_NAMED = 100
_COUNTED = ("reads", "pushes", "writes")


class ServerReporter:
    """Reports one shard until it is ended.

    server: id of the server.
    shard, shards: number of the shard, and of all shards.
    look: returns `traffic` and `callers` of the shard; None after its end.
    """

    def __init__(
        self,
        worker: Any,
        server: str,
        shard: int,
        shards: int,
        name: str | None,
        look: Callable[[], dict[str, Any] | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker, self._server, self._look = worker, server, look
        self._fixed = {"shard": shard, "shards": shards, "name": name}
        self._clock = clock
        self._began = self._at = clock()
        self._counts = dict.fromkeys(_COUNTED, 0)
        self._said: Any = None
        callback = self._callback = PeriodicCallback(forgetful(self), 1000 * _TICK)
        worker.loop.add_callback(callback.start)

    def end(self) -> None:
        """Report the end of the shard, from any thread."""
        loop = self._worker.loop
        loop.add_callback(self._callback.stop)
        loop.add_callback(self._log, final=True, **self._said_last())

    def look(self) -> None:
        """Send an event if there is news and one is due."""
        now = self._clock()
        pause = min(_LONGEST, max(_TICK, _SHARE * (now - self._began)))
        if now - self._at < pause - _TICK / 2 and self._said is not None:
            return
        status = self._look()
        if status is None:
            return
        parts = status["parts"]
        counts = {each: sum(part[each] for part in parts.values()) for each in _COUNTED}
        elapsed = max(now - self._at, 1e-9)
        # Counts of closed parts start again, and rates must not be negative.
        fields = {
            f"{each}_per_second": round(max(0, counts[each] - self._counts[each]) / elapsed, 3)
            for each in _COUNTED
        }
        self._counts, self._at = counts, now
        said = {
            **fields,
            "tensors": sorted(parts)[:_NAMED],
            "nbytes": sum(part["bytes"] for part in parts.values()),
            "callers": status["callers"][:_NAMED],
        }
        if said != self._said:
            self._said = said
            self._log(final=False, **said)

    def _said_last(self) -> dict[str, Any]:
        rates: dict[str, Any] = {f"{each}_per_second": 0.0 for each in _COUNTED}
        return self._said or {**rates, "tensors": [], "nbytes": 0, "callers": []}

    def _log(self, **fields: object) -> None:
        self._worker.log_event(TOPIC, event("server", self._server, **self._fixed, **fields))
