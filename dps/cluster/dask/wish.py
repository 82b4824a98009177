"""Asking an adaptive cluster for workers: by tasks that none of its workers can run.

Such a cluster has as many workers as its tasks need, and a fit has one long task a replica. So
while a fit could use more workers it has tasks that wait for a resource which no worker has. The
scheduler counts them, and the seconds that it expects of them, as work that waits for workers.
"""

from __future__ import annotations

import contextlib
from typing import Any

from distributed import Client, Future

from dps.cluster.dask.calls import ask
from dps.errors import ClusterError

_NAME = "dps-wanted"
#: Seconds that Dask is to expect of such a task: more than any ``adaptive.target-duration``.
_SECONDS = 3600.0


class Wish:
    """The workers that one fit asks for.

    Parameters
    ----------
    client : distributed.Client
    fit : str
        Id of the fit.
    timeout : float
        Seconds for the scheduler.
    """

    def __init__(self, client: Client, fit: str, timeout: float) -> None:
        self._client, self._fit, self._timeout = client, fit, timeout
        self._tasks: list[Future] = []

    def set(self, n: int) -> None:
        """Ask for workers with `n` threads beside those that there are.

        Nothing is asked of a cluster that does not adapt, as far as the client knows.
        """
        if n and getattr(self._client.cluster, "_adaptive", None) is None:
            n = 0
        for task in self._tasks[n:]:
            task.release()
        del self._tasks[n:]
        self._tasks += [
            self._client.submit(
                int, key=f"{_NAME}-{number}-{self._fit}", resources={_NAME: 1}, pure=False
            )
            for number in range(len(self._tasks), n)
        ]
        if n:

            def expect(dask_scheduler: Any, name: str, seconds: float) -> None:
                if (prefix := dask_scheduler.task_prefixes.get(name)) is not None:
                    prefix.duration_average = seconds

            with contextlib.suppress(ClusterError):  # it is asked for again in a moment
                ask(
                    self._client, "_run_on_scheduler", self._timeout,
                    function=expect, name=_NAME, seconds=_SECONDS,
                )  # fmt: skip
