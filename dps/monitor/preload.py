"""A preload for Dask's scheduler that adds the page before the dashboard starts.

With ``dask scheduler --preload dps.monitor.preload`` the page exists before the first fit, and
JupyterLab lists its plots. Without it the first fit adds the page.
"""

from __future__ import annotations

from typing import Any

from dps.monitor.scheduler.plugin import install, store_of


def _among_dasks_own() -> None:
    try:
        from distributed.dashboard import scheduler as dashboard

        from dps.monitor.page.document import applications
    except ImportError:  # without bokeh there is no dashboard, as Dask says itself
        return
    dashboard.applications.update(applications(store_of))


def dask_setup(scheduler: Any) -> None:
    """Called by Dask once the scheduler is made."""
    install(scheduler)


_among_dasks_own()
