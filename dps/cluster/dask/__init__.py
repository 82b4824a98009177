"""The workers of a Dask cluster.

``fit`` is a fit's use of the cluster, ``replicas`` its tasks, ``loading`` brings data to workers,
and ``calls`` asks Dask so that an answer always comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from distributed import Client, default_client, get_worker
from distributed.threadpoolexecutor import rejoin
from distributed.worker import secede, thread_state

from dps.cluster.dask.fit import DaskCluster
from dps.data.collections.results import is_inherited

__all__ = ["DaskCluster", "active_client", "inside_task", "seceded"]


def active_client() -> Client | None:
    """Return the current client of this thread or process, if it can be used."""
    try:
        found = default_client()
    except ValueError:
        return None
    return None if is_inherited(found) else found


def inside_task() -> bool:
    """True in the thread of a Dask task."""
    try:
        get_worker()
    except ValueError:
        return False
    return True


@contextmanager
def seceded() -> Iterator[None]:
    """Leave the thread of a task to other tasks, as Dask's own calls do while they wait.

    The tasks that it waits for may need this worker.
    """
    mine = hasattr(thread_state, "key") and not getattr(thread_state, "actor", False)
    try:
        if mine:
            secede()
    except KeyError:  # it has left its thread already
        mine = False
    try:
        yield
    finally:
        if mine:
            rejoin()
