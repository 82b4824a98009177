"""The client's side of the dashboard page: it asks the scheduler to add the page.

The scheduler then also serves metrics of fits. A fit runs whether or not there is a page.
"""

from __future__ import annotations

import importlib.metadata
import weakref
from typing import Any

from dps._warned import warn
from dps.errors import VersionError

#: Clients whose scheduler has been asked.
_asked: weakref.WeakSet[Any] = weakref.WeakSet()


def show_fits(client: Any, timeout: float) -> None:
    """Add the page ``/dps`` to the dashboard of the client's cluster, if it has one.

    timeout: seconds in which the scheduler must answer.
    Raises VersionError: the scheduler has another version of dps.
    Warns with UserWarning, once per client: there is a dashboard that cannot show the page.
    """
    if client in _asked:
        return
    _asked.add(client)
    from dps.monitor.scheduler.plugin import install

    run, options = client._run_on_scheduler, {"wait": True, "callback_timeout": timeout}
    try:
        # A function of the standard library, since another version of dps may lack ours.
        theirs = client.sync(run, importlib.metadata.version, "dps", **options)
        ours = importlib.metadata.version("dps")
        if theirs != ours:
            raise VersionError(
                f"the scheduler has dps {theirs}, this process has {ours}: install the same "
                f"version, or set Dask's configuration dps.monitor to false"
            )
        why = client.sync(run, install, **options)
    except VersionError:
        _asked.discard(client)  # the next fit warns, too
        raise
    except (TimeoutError, OSError) as error:
        why = f"the scheduler does not answer ({error!r})"
    except Exception as error:  # an exception of the scheduler's process, of any type
        why = f"the scheduler cannot make it ({error!r}); is dps installed there?"
    if why is not None:
        warn(
            f"the dashboard shows no page of dps: {why}. Training goes on without it.",
            stacklevel=2,
        )
