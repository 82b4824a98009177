"""Progress of the tasks that a fit waits for, as far as Dask's scheduler knows.

What others compute on the cluster is no progress of ours. The scheduler is asked in Dask's own
words alone: it need not have dps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dps.errors import ClusterError


@dataclass(frozen=True)
class TaskProgress:
    """States of the tasks that no worker is running."""

    lately: float  # seconds within which workers that are well are heard of
    # True if a worker that tasks may wait for has not been heard of lately, and may
    # yet be: one that imports a large library is not for some seconds.
    uncertain: bool
    # For each worker that they may wait for, a value that changes while it works on
    # earlier tasks.
    signs: dict[str, Any]
    # Workers that have been silent for as long as a task waits, and for how long.
    silent: dict[str, float]
    paused: tuple[str, ...]  # workers among these that Dask has paused
    # Workers among these whose threads are all at other tasks, and the keys of these.
    busy: dict[str, list[str]]
    n_workers: int  # of the cluster
    unknown: int  # tasks that the scheduler has not been sent, or has forgotten

    def must_end(self, waited: float, timeout: float) -> bool:
        """True if `waited` seconds without progress are too many; heartbeats report late."""
        return waited > max(timeout, 2 * self.lately) and not self.uncertain

    def error(self, n_tasks: int, seconds: float) -> ClusterError:
        """An error that says what has gone wrong, where, and what to do."""
        begins = f"no progress on {n_tasks} partitions or tasks for {seconds:.3g} s: "
        if self.unknown:
            return ClusterError(
                f"{begins}the scheduler does not know {self.unknown} of them, so messages of this "
                "client do not arrive there; make a new Client, and fit again"
            )
        here = {worker: since for worker, since in self.silent.items() if worker in self.signs}
        gone = here or ({} if self.paused or self.busy else self.silent)
        if gone:
            worker, since = max(gone.items(), key=lambda item: item[1])
            return ClusterError(
                f"{begins}nothing has been heard of a worker for {since:.0f} s; is it frozen or "
                "overloaded? end or restart it, or raise dps.timeout of dask.config",
                worker=worker,
            )
        if self.paused:
            return ClusterError(
                f"{begins}Dask has paused {len(self.paused)} of {self.n_workers} workers, whose "
                f"memory is nearly full ({', '.join(self.paused)}); give workers more memory, or "
                "make partitions smaller"
            )
        if self.busy:
            worker, keys = min(self.busy.items())
            return ClusterError(
                f"{begins}all threads of a worker are at other tasks ({', '.join(keys[:3])}); "
                "give workers more threads, or raise dps.timeout of dask.config",
                worker=worker,
            )
        return ClusterError(f"{begins}are there workers that may run them?")


class StallClock:
    """A clock of the time without progress of tasks.

    timeout: seconds without any that are an error.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._signs: Any = None
        self._moved = time.monotonic()

    def see(self, standing: TaskProgress | None, n_tasks: int, ended: bool = False) -> None:
        """Record the progress of tasks (None: they advance), and whether one has ended.

        Raises ClusterError: there has been no progress for too long.
        """
        now = time.monotonic()
        if ended or standing is None or standing.signs != self._signs:
            self._moved = now
            self._signs = None if standing is None else standing.signs
        waited = now - self._moved
        if standing is not None and standing.must_end(waited, self._timeout):
            raise standing.error(n_tasks, waited)


def look_for_progress(timeout: float) -> Callable[..., Any]:
    """A function for the scheduler: for some keys, None if a worker runs what they need.

    Else the arguments of :class:`TaskProgress`. Made here, so that it is pickled by value.

    timeout: seconds after which a worker of which nothing is heard counts as silent, if that is
        more than some heartbeats take.
    """

    def look(dask_scheduler: Any, keys: Sequence[Any]) -> dict[str, Any] | None:
        from time import time

        from distributed.scheduler import heartbeat_interval

        workers, now = dask_scheduler.workers, time()
        lately = 4 * heartbeat_interval(len(workers))
        patience = max(timeout, 5 * lately)
        silence = {address: now - of.last_seen for address, of in workers.items()}
        running = {address for address, of in workers.items() if of.status.name == "running"}
        unknown = sum(key not in dask_scheduler.tasks for key in keys)
        left, seen, wanted = [*reversed(keys)], set(), set()
        while left:
            key = left.pop()
            task = dask_scheduler.tasks.get(key)
            if task is None or key in seen:
                continue
            seen.add(key)
            if task.state == "processing":
                worker = task.processing_on
                if task in worker.executing and silence[worker.address] < lately:
                    return None
                wanted.add(worker.address)
            elif task.state == "waiting":
                left += [other.key for other in task.waiting_on]
            elif task.state == "queued":
                wanted |= running
            elif task.state == "no-worker":  # of those that run none may have it
                wanted |= set(task.worker_restrictions or workers) - running
        shown = {address: worker for address, worker in workers.items() if address in wanted}
        silent = {address: since for address, since in silence.items() if since >= patience}
        transfers = {
            address: (worker.metrics or {}).get("transfer", {}) for address, worker in shown.items()
        }
        if not silent and any(of.get("incoming_count") for of in transfers.values()):
            return None
        executing = {
            address: sorted(str(task.key) for task in worker.executing)
            for address, worker in shown.items()
        }
        return {
            "lately": lately,
            "uncertain": any(lately <= silence[address] < patience for address in shown),
            "signs": {
                address: [executing[address], of.get("incoming_count_total")]
                for address, of in transfers.items()
            },
            "silent": silent,
            "paused": tuple(
                sorted(a for a, worker in shown.items() if worker.status.name == "paused")
            ),
            "busy": {
                address: names
                for address, names in executing.items()
                if len(names) >= shown[address].nthreads
            },
            "n_workers": len(workers),
            "unknown": unknown,
        }

    return look
