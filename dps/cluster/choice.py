"""Which cluster a fit runs on."""

from __future__ import annotations

import multiprocessing
import sys
from typing import Any

from dps.cluster.base import Cluster
from dps.cluster.threads import ThreadCluster

__all__ = ["cluster_for"]


def cluster_for(client: Any, fit: str, timeout: float) -> Cluster:
    """Where to run: the given or the active client's workers, else threads of this process."""
    if client is None and "distributed" in sys.modules:
        from dps.cluster.dask import active_client, inside_task

        if inside_task():  # never replicas inside of replicas
            return ThreadCluster(fit, 1)
        client = active_client()
    if client is not None:
        from dps.cluster.dask import DaskCluster

        return DaskCluster(client, fit, timeout)
    # A child process is somebody's worker already: joblib's, for example.
    return ThreadCluster(fit, 1 if multiprocessing.parent_process() is not None else None)
