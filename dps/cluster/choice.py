"""The choice of the cluster that a fit runs on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from dps._cores import in_a_pool
from dps.cluster.options import Options
from dps.errors import ClusterError

if TYPE_CHECKING:
    from dps.cluster.base import Cluster

_here: ContextVar[bool] = ContextVar("here", default=False)
#: Why a fit does not run on the workers of the active client.
_SMALL = "in this process, since the data is here and small; client= asks for workers"
#: Seconds in which a scheduler must answer.
_ANSWER_SECONDS = 10.0


@contextmanager
def client_of(given: Any) -> Iterator[Any]:
    """See `opened_client`; meanwhile a task leaves its thread to other tasks."""
    with opened_client(given) as client:
        if client is None:
            yield None
            return
        from dps.cluster.dask import seceded

        with seceded():
            yield client


@contextmanager
def opened_client(given: Any) -> Iterator[Any]:
    """Return the given client, or connect one for a cluster or an address; None if there is none.

    Raises ClusterError: no scheduler answers, or the client is closed.
    Raises TypeError: it is none of these.
    """
    if given is None:
        yield None
        return
    from distributed import Client

    if isinstance(given, Client):
        from dps.cluster.dask.calls import check_client, until_connected

        until_connected(given)
        check_client(given)
        yield given
        return
    if not isinstance(given, str) and not hasattr(given, "scheduler_address"):
        raise TypeError(
            "client must be a distributed.Client, a cluster, the address of a scheduler or None, "
            f"got {given!r}"
        )
    timeout = min(Options.now().timeout, _ANSWER_SECONDS)
    try:
        client = Client(given, set_as_default=False, timeout=timeout)
    except (OSError, ValueError) as error:
        raise ClusterError(f"no scheduler answers at client={given!r}: {error}") from error
    with client:
        yield client


def here(given: Any) -> Any:
    """Return the given or the active client; None in a task, or for another object."""
    if given is not None:
        return given if hasattr(given, "scatter") else None
    if "distributed" not in sys.modules:
        return None
    from dps.cluster.dask import active_client, inside_task

    return None if inside_task() else active_client()


@contextmanager
def in_this_process() -> Iterator[None]:
    """Run fits without `client=` in threads, even if a client is active."""
    token = _here.set(True)
    try:
        yield
    finally:
        _here.reset(token)


def cluster_for(client: Any, fit: str, options: Options, small: bool = False) -> Cluster:
    """Choose the workers of the given or the active client, else threads of this process.

    small: whether the data is local and so small that sending it pays only for a given client, or
        if Dask's annotations choose workers.
    """
    from dps.cluster.threads import ThreadCluster

    if client is None and "distributed" in sys.modules and not _here.get():
        from dask import get_annotations

        from dps.cluster.dask import active_client, inside_task

        if inside_task():  # replicas never start replicas
            return ThreadCluster(fit, 1)
        client = active_client()
        if client is not None and small and not get_annotations():
            return ThreadCluster(fit, 1 if in_a_pool() else None, _SMALL)
    if client is not None:
        from dps.cluster.dask import DaskCluster

        return DaskCluster(client, fit, float(options.timeout), float(options.silence))
    return ThreadCluster(fit, 1 if in_a_pool() else None)
