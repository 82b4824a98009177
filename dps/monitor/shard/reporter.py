"""The reporter of one shard, which sends its counters as events several times a second.

It runs on the event loop of the shard's worker. Ranks never wait for it.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from tornado.ioloop import PeriodicCallback

from dps.monitor.events import TOPIC, Kind, event
from dps.monitor.shard.counters import CounterReader
from dps.monitor.shard.stragglers import Stragglers
from dps.server.group.window import Window
from dps.server.shard import MonitorInfo

#: Seconds between two looks at the counters.
_TICK = 0.25
#: Seconds between events: this share of the time since the start, from one tick to a second. Dask
#: keeps 1,000 events of a topic, for all fits.
_SHARE, _LONGEST = 1 / 40, 1.0
#: With more replicas, an event with an item per replica is sent proportionally less often: the
#: events that Dask keeps then take about 20 MB.
_MANY = 25


class Looks(Protocol):
    """A reporter, which looks several times a second."""

    def look(self) -> None:
        """Send the events that are due."""


class Reporter:
    """Reports one shard; that of the first shard reports all replicas, too.

    It ends with a call of :meth:`end`, or when its shard is collected.
    """

    def __init__(
        self, worker: Any, window: Window, watched: MonitorInfo,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._fit, self._shard = window.spec.fit, window.spec.shard
        self._workers = watched.workers
        self._worker = worker
        self._reader = CounterReader(window)
        self._stragglers = Stragglers(together=watched.together)
        self._clock, self._began = clock, clock()
        self._next = self._next_whole = 0.0
        self._seldom = max(1.0, len(watched.workers) / _MANY)
        callback = PeriodicCallback(forgetful(self), 1000 * _TICK)
        worker.loop.add_callback(callback.start)
        self._stop = weakref.finalize(self, worker.loop.add_callback, callback.stop)
        self._stop.atexit = False

    def end(self) -> None:
        """Send a last report from the event loop; may be called from any thread."""
        if self._stop.alive:
            self._stop()
            self._worker.loop.add_callback(self._report, final=True)

    def look(self) -> None:
        """Read the counters, and send the events that are due."""
        now = self._clock() - self._began
        if self._shard == 0:
            for found in self._stragglers.look(now, self._reader.moments()):
                self._log(
                    "straggler",
                    rank=found.rank,
                    replica_worker=self._workers[found.rank],
                    slow=found.slow,
                    ratio=None if found.ratio is None else round(found.ratio, 3),
                    why=found.why,
                )
        if now >= self._next:
            every = min(_LONGEST, max(_TICK, _SHARE * now))
            self._next = now + every - _TICK / 2
            whole = now >= self._next_whole
            if whole:
                self._next_whole = now + every * self._seldom - _TICK / 2
            self._report(whole=whole)

    def _report(self, *, whole: bool = True, final: bool = False) -> None:
        now = self._clock() - self._began
        when: dict[str, Any] = {"seconds": round(now, 3), "final": final}
        if self._shard == 0 and whole:
            self._log("replicas", **when, replicas=self._reader.replicas(now))
        self._log("shard", shard=self._shard, **when, **self._reader.shard(now, whole=whole))

    def _log(self, kind: Kind, **fields: object) -> None:
        self._worker.log_event(TOPIC, event(kind, self._fit, **fields))


def forgetful(reporter: Looks) -> Callable[[], None]:
    """Return a call of `look` that does not keep the reporter alive."""
    known = weakref.ref(reporter)

    def look() -> None:
        alive = known()
        if alive is not None:
            alive.look()

    return look
