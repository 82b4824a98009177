"""Clusters of a test's own, on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from distributed import Client, LocalCluster


@contextmanager
def local_client(n_workers: int, **options: Any) -> Iterator[Client]:
    """A client of so many processes, each with one thread; `client.cluster` is their cluster."""
    with (
        LocalCluster(
            n_workers=n_workers, threads_per_worker=1, dashboard_address=":0", **options
        ) as made,
        Client(made, set_as_default=False) as client,
    ):  # fmt: skip
        yield client
