"""Clusters of a test's own, on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from distributed import Client, LocalCluster


@contextmanager
def local_client(n_workers: int, **options: Any) -> Iterator[Client]:
    """A client of `n_workers` processes with one thread each, the cluster `client.cluster`."""
    with (
        LocalCluster(
            n_workers=n_workers, threads_per_worker=1, dashboard_address=":0", **options
        ) as made,
        Client(made, set_as_default=False) as client,
    ):  # fmt: skip
        yield client


class SharedCluster:
    """A cluster for all tests of a process, made when one first needs it, or has harmed it."""

    def __init__(self, seconds: float = 10.0) -> None:
        self._seconds = seconds  # within which it answers
        self._stack = ExitStack()
        self._client: Client | None = None

    def client(self) -> Client:
        if self._client is None:
            made = LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=":0")
            cluster = self._stack.enter_context(made)
            self._client = self._stack.enter_context(Client(cluster, set_as_default=False))
        return self._client

    def check(self) -> None:
        """Fail the test that has harmed the cluster; the next one has another."""
        try:
            assert self.client().submit(int, pure=False).result(timeout=self._seconds) == 0
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._client = None
        self._stack.close()
