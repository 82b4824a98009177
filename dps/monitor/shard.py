"""A shard that is watched: it reports what happens in its window while the fit runs.

The shard itself knows nothing of that; what a shard does is ``server/shard.py``.
"""

from __future__ import annotations

from distributed import get_worker

from dps.monitor.presence import Presence
from dps.monitor.reporter import Reporter
from dps.server.shard import GroupSpec
from dps.server.store import Store
from dps.transport.serving import ServedGroup, ServedShard

__all__ = ["ReportingShard"]


class ReportingGroup(ServedGroup):
    """A group at a shard, and its reports."""

    def __init__(self, spec: GroupSpec, store: Store) -> None:
        super().__init__(spec, store)
        self._shown: tuple[Reporter | Presence, ...] = ()
        if spec.watched is not None:
            worker = get_worker()
            self._shown = (
                Reporter(worker, self.window, spec.watched),
                Presence.of_shard(worker, self.window),
            )

    def close(self) -> None:
        """Report for the last time, stop the group and give the window back."""
        for shown in self._shown:
            shown.end()
        self._shown = ()
        super().close()


class ReportingShard(ServedShard):
    """A slice of the parameters on a Dask Actor that reports what its groups do."""

    group_kind = ReportingGroup

    @property
    def folder(self) -> str | None:
        """The worker's, which is for such files."""
        return str(get_worker().local_directory)
