"""Results of a few Dask tasks, computed in this process."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from concurrent.futures import CancelledError
from typing import Any

from dps.errors import ClusterError

#: Exceptions if a result that Dask held is lost.
LOST = (
    "data is no longer on the cluster that was persisted or scattered: the client that made it is "
    "closed, or its worker is gone; make it again. If len() of new data fails too, Dask has lost "
    "it, as it does with some columns of a parquet file: repartition, then persist"
)


def is_inherited(client: Any) -> bool:
    """True if a client was made before this process was forked, so that it gets no answers."""
    thread = getattr(client.loop.asyncio_loop, "_thread_id", None)
    return thread is not None and thread not in sys._current_frames()


def computing() -> dict[str, Any]:
    """Return the configuration with which Dask computes in this process, or in a forked child."""
    if (distributed := sys.modules.get("distributed")) is not None:
        with contextlib.suppress(ValueError):
            if is_inherited(distributed.default_client()):
                return {"scheduler": "sync"}  # the threads were not forked
    return {}


def results_of(tasks: Sequence[Any], client: Any) -> list[Any]:
    """Compute tasks or collections with a client, or with Dask's default scheduler.

    Raises ClusterError: data that they need is lost.
    """
    import dask

    try:
        if client is None:
            return list(dask.compute(*tasks, **computing()))
        futures = client.compute(list(tasks))
        try:
            return list(client.gather(futures))
        finally:
            for future in futures:  # a traceback may keep them
                future.release()
    except CancelledError as error:
        raise ClusterError(LOST) from error
