"""Tasks of one fit, and the workers that it cannot do without."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from distributed import Client, Future

from dps.cluster.dask.calls import await_futures, fetch, living, staying
from dps.cluster.dask.spans import FitSpan
from dps.data.sealed import sealed
from dps.errors import WorkerLostError

__all__ = ["FitWork"]


class FitWork:
    """Submits tasks of a fit, waits for them, and looks whether workers are there.

    Parameters
    ----------
    client : distributed.Client
    fit : str
        Id of the fit.
    timeout : float
        Seconds without progress after which waiting is an error.

    Attributes
    ----------
    needed : set of str
        Workers without which the fit cannot go on as it is.
    """

    def __init__(self, client: Client, fit: str, timeout: float) -> None:
        self.client = client
        self.fit = fit
        self.timeout = timeout
        self.needed: set[str] = set()
        self.span = FitSpan()
        self._names = 0

    def name(self) -> str:
        """What keys carry: the fit, and a number that no other has."""
        self._names += 1
        return f"{self.fit}-{self._names}"

    def submit(self, function: Callable[..., Any], *args: Any, **options: Any) -> Future:
        """Submit a task of this fit; what of dps it takes is bound to the function."""
        with self.span():
            return self.client.submit(sealed(function), *args, **options)

    def wait(self, futures: Sequence[Future]) -> None:
        """Wait for tasks, which are pinned to workers."""
        await_futures(self.client, futures, self.timeout, self.check)

    def results(self, futures: Sequence[Future]) -> list[Any]:
        """What tasks that have ended returned."""
        return fetch(self.client, futures, self.timeout, self.check)

    def living(self) -> Mapping[str, int]:
        """The workers that there are now, and their threads."""
        return living(self.client, self.timeout)

    def staying(self) -> Mapping[str, int]:
        """Those that have not begun to leave, unless all have."""
        return staying(self.client, self.timeout)

    def check(self) -> None:
        """Raise if a worker is gone, or leaves, that this fit has given something to do.

        One that leaves takes no tasks, and waits until others have what it holds: what this fit
        keeps there no other may be able to read.
        """
        alive = self.staying()
        for worker in sorted(self.needed):
            if worker not in alive:
                raise WorkerLostError(
                    "a worker died or left the cluster before training began", worker=worker
                )
