"""The Actor of a fit's shard: remote ranks connect to it, and it reports its counters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distributed import get_worker

from dps.errors import FencedError
from dps.monitor.shard.reporter import Reporter
from dps.server.shard import ParameterShard, ShardSpec, WindowCard
from dps.transport.serving import FarRanks, Served, Services


class FitShard(Served, ParameterShard):
    """A shard of a fit, as a Dask Actor."""

    def __init__(self, spec: ShardSpec) -> None:
        super().__init__(spec, str(get_worker().local_directory))
        self._far: FarRanks | None = None
        self._reporter: Reporter | None = None

    def open(self) -> WindowCard:
        """Create the window of the group, and report it if the fit is watched."""
        card = super().open()
        self._far = FarRanks(self.spec, self.window)
        self._used.calls.append(self._far.close)
        if self.spec.watched is not None:
            self._reporter = Reporter(get_worker(), self.window, self.spec.watched)
        return card

    def admit(self, operation: Callable[..., Any], rank: int, *args: Any) -> str | None:
        """Admit a remote rank, see `FarRanks.admit`."""
        return self._ranks.admit(operation, rank, *args)

    @property
    def services(self) -> Services:
        """The threads that serve the group's remote ranks."""
        return self._ranks.services

    @property
    def _ranks(self) -> FarRanks:
        if not self._abandon.alive or self._far is None:
            raise FencedError("no group is at work on this shard")
        return self._far

    def close(self) -> None:
        """Send a last report, stop the group, and wait a moment for the threads."""
        if self._reporter is not None:
            self._reporter.end()
        self._used.stop()
        if self._far is not None:
            self._far.join()
        super().close()
