"""The progress of tasks that a fit waits for, as Dask's scheduler sees it.

Tasks of other users are no progress. The scheduler runs functions that are pickled by value, so it
does not need dps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dps.errors import ClusterError


@dataclass(frozen=True)
class TaskProgress:
    """The state of tasks that no worker runs."""

    lately: float  # seconds in which healthy workers send a heartbeat
    # True if the scheduler has not heard of a worker lately that tasks may wait for, and may still
    # do so: a worker that imports a large library sends nothing for seconds.
    uncertain: bool
    # For each worker that the tasks may wait for, a value that changes while it works on earlier
    # tasks.
    signs: dict[str, Any]
    # Workers that have been silent for as long as a task waits, and for how long.
    silent: dict[str, float]
    paused: tuple[str, ...]  # workers among these that Dask has paused
    # Workers among these whose threads are all busy, with the keys of their tasks.
    busy: dict[str, list[str]]
    n_workers: int  # number of workers in the cluster
    unknown: int  # tasks that have not arrived at the scheduler, or that it has forgotten

    def must_end(self, waited: float, timeout: float) -> bool:
        """True if `waited` seconds without progress are too long; heartbeats are delayed."""
        return waited > max(timeout, 2 * self.lately) and not self.uncertain

    def error(self, n_tasks: int, seconds: float) -> ClusterError:
        """Return an error that says what went wrong, where, and what to do."""
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
    """Measures the time without progress of tasks.

    timeout: seconds without progress that raise an error.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._signs: Any = None
        self._moved = time.monotonic()

    def see(self, found: Mapping[str, Any] | None, n_tasks: int, ended: bool = False) -> None:
        """Record what :func:`look_for_progress` found of tasks, and whether one has ended.

        Raises ClusterError: there has been no progress for too long.
        """
        now, standing = time.monotonic(), None if found is None else TaskProgress(**found)
        if ended or standing is None or standing.signs != self._signs:
            self._moved = now
            self._signs = None if standing is None else standing.signs
        waited = now - self._moved
        if standing is not None and standing.must_end(waited, self._timeout):
            raise standing.error(n_tasks, waited)


def look_for_progress(timeout: float) -> Callable[..., Any]:
    """Return a function for the scheduler: None if a worker runs what some keys need.

    Otherwise it returns the arguments of :class:`TaskProgress`. It is made here so that it is
    pickled by value.

    timeout: seconds after which a worker that sends nothing counts as silent, unless its heartbeats
        are further apart.
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
            elif task.state == "no-worker":  # a worker with free threads may be able to run it
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
