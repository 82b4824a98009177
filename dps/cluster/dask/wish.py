"""Ask an adaptive cluster for workers.

An adaptive cluster starts workers according to its tasks, and a fit has only one long task per
replica. To ask for more, the fit submits tasks that need a resource which no worker has. The
scheduler counts them, and their expected duration, as work that waits for workers.
"""

from __future__ import annotations

import contextlib
from typing import Any

from distributed import Future

from dps.cluster.dask.calls import ask
from dps.cluster.dask.work import FitWork
from dps.errors import ClusterError

_NAME = "dps-wanted"
#: Expected duration of such a task, longer than any ``adaptive.target-duration``.
_SECONDS = 3600.0


class Wish:
    """Requests workers for a fit."""

    def __init__(self, work: FitWork) -> None:
        self._client, self._fit, self._timeout = work.client, work.fit, work.timeout
        self._tasks: list[Future] = []

    @property
    def is_heard(self) -> bool:
        """True if the client's cluster object is adaptive."""
        return getattr(self._client.cluster, "_adaptive", None) is not None

    def set(self, n: int) -> None:
        """Request `n` more threads, if the client's cluster object is adaptive."""
        n = n if self.is_heard else 0
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

            with contextlib.suppress(ClusterError):  # `set` is called again soon
                ask(
                    self._client, "_run_on_scheduler", self._timeout,
                    function=expect, name=_NAME, seconds=_SECONDS,
                )  # fmt: skip
