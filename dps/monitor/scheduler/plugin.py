"""The scheduler's plugin, which stores events of fits and adds the page.

All of this runs in the scheduler's process, which needs dps. If bokeh or Dask's dashboard is
missing, only a reason is returned.
"""

from __future__ import annotations

from time import time
from typing import Any

from distributed import SchedulerPlugin

from dps.monitor.events import TOPIC
from dps.monitor.scheduler.prometheus import serve_metrics
from dps.monitor.scheduler.store import FitStore

NAME = "dps-fits"


class FitsPlugin(SchedulerPlugin):  # type: ignore[misc]
    """Stores the events of the topic ``dps``, up to a bound."""

    name = NAME

    def __init__(self) -> None:
        self.store = FitStore()
        self._application: Any = None

    def log_event(self, topic: str, msg: Any) -> None:
        """Store an event of the topic."""
        if topic == TOPIC:
            self.store.add(msg, time())

    def remove_worker(self, scheduler: Any, worker: str, **options: object) -> None:
        """Mark servers with a shard on the worker as lost, unless they have been closed."""
        self.store.lose(worker, time())

    def show(self, scheduler: Any) -> str | None:
        """Add the page to the scheduler's dashboard; return the reason if that fails.

        `preload` may have added it to Dask's own pages before the start.
        """
        if "dashboard" not in scheduler.services:
            return None  # it is switched off
        try:
            from bokeh.server.tornado import BokehTornado
            from distributed.dashboard import scheduler as dashboard
            from distributed.dashboard.core import BokehApplication
            from tornado.ioloop import IOLoop

            from dps.monitor.page.document import applications, enter
        except ImportError as error:
            return f"the scheduler cannot show it: {error}"
        shown = [a for a in scheduler.http_application.applications if isinstance(a, BokehTornado)]
        if not shown:
            return None  # a dashboard without Dask's pages
        variables = dashboard.template_variables(scheduler)
        enter(variables)
        if "/dps" not in shown[0].app_paths:
            self._application = BokehApplication(
                applications(store_of),
                scheduler,
                prefix=shown[0].prefix,
                template_variables=variables,
            )
            scheduler.http_application.add_application(self._application)
            self._application.initialize(IOLoop.current())
            self._application.start()
        return None

    async def close(self) -> None:
        """Stop what the page has started."""
        if self._application is not None:
            application, self._application = self._application, None
            if hasattr(application, "stop_async"):  # bokeh 3.10 and newer
                await application.stop_async()
            else:
                application.stop()


def plugin_of(scheduler: Any) -> FitsPlugin:
    """Return the scheduler's plugin; a new one reads the earlier events."""
    if NAME not in scheduler.plugins:
        plugin = FitsPlugin()
        scheduler.add_plugin(plugin, name=NAME)
        for _, event in scheduler.get_events(TOPIC):
            plugin.log_event(TOPIC, event)
        plugin.store.servers.keep(scheduler.workers, time())
    return scheduler.plugins[NAME]


def store_of(scheduler: Any) -> FitStore:
    """Return the store of a scheduler."""
    return plugin_of(scheduler).store


def install(dask_scheduler: Any) -> str | None:
    """Add plugin, metrics and page to a running scheduler, if they are missing.

    Returns the reason if there is no page.
    """
    if NAME in dask_scheduler.plugins:
        return None
    plugin = plugin_of(dask_scheduler)
    serve_metrics(plugin.store)
    return plugin.show(dask_scheduler)
