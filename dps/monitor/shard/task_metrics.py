"""A replica's time by phase in the fine performance metrics of its Dask task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from distributed.metrics import context_meter

from dps._runtime.shared.activity import Activity
from dps.monitor.shard.counters import seconds


@contextmanager
def metered() -> Iterator[Callable[[Activity], None]]:
    """Yield a function that takes a replica's account, which is read when the body ends."""
    accounts: list[Activity] = []
    try:
        yield accounts.append
    finally:
        for account in accounts:
            for phase, spent in seconds(account.rows[0]).items():
                context_meter.digest_metric(f"dps {phase}", float(spent), "seconds")
