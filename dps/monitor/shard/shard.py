"""Shards that are watched: of a fit, while that runs, and of a parameter server.

The shards themselves know nothing of that; what they do is in ``server/shard.py`` and in
``transport/tensor_shard.py``.
"""

from __future__ import annotations

import weakref
from typing import Any

from distributed import get_worker

from dps.monitor.shard.reporter import Reporter
from dps.monitor.shard.server_reporter import ServerReporter
from dps.server.holding import HoldingCard
from dps.server.shard import GroupSpec
from dps.server.store.store import Store
from dps.server.tensors import ServerSpec
from dps.transport.serving import ServedGroup, ServedShard
from dps.transport.tensor_shard import TensorShard


class ReportingGroup(ServedGroup):
    """A group at a shard, and its reports."""

    def __init__(self, spec: GroupSpec, store: Store) -> None:
        super().__init__(spec, store)
        self._reporter: Reporter | None = None
        if spec.watched is not None:
            self._reporter = Reporter(get_worker(), self.window, spec.watched)

    def close(self) -> None:
        """Report for the last time, stop the group and give the window back."""
        if self._reporter is not None:
            self._reporter.end()
        self._reporter = None
        super().close()


class ReportingShard(ServedShard):
    """A slice of the parameters on a Dask Actor that reports what its groups do."""

    group_kind = ReportingGroup

    @property
    def folder(self) -> str | None:
        """The worker's, which is for such files."""
        return str(get_worker().local_directory)


class ReportingTensorShard(TensorShard):
    """A shard of a parameter server on a Dask Actor that reports what is done there."""

    def __init__(self, spec: ServerSpec, shard: int, number: int = 0, *more: Any) -> None:
        super().__init__(spec, shard, number, *more)
        self._spec, self._shard = spec, shard
        self._report_end: weakref.finalize[Any, Any] | None = None
        if number == 0:
            self._report()

    def _report(self) -> None:
        known = weakref.WeakMethod(self.traffic)

        def look() -> dict[str, Any] | None:
            traffic = known()
            return None if traffic is None else traffic()

        spec = self._spec
        reporter = ServerReporter(
            get_worker(), spec.id, self._shard, spec.n_shards, spec.name, look
        )
        self._report_end = weakref.finalize(self, reporter.end)
        self._report_end.atexit = False

    def promote(self) -> HoldingCard | None:
        """Lead, and report from now on."""
        card = super().promote()
        if card is not None and self._report_end is None:
            self._report()
        return card

    def close(self) -> None:
        """Close, and report that."""
        super().close()
        if self._report_end is not None:
            self._report_end()
