"""Calls to a Dask client that end: each has a deadline, and looks for workers that died.

Dask itself waits for ever for what is pinned to a dead worker.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib.metadata
import time
import weakref
from asyncio import CancelledError
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from distributed import Client, Future
from distributed.client import _wait

from dps.cluster.base import until_known
from dps.errors import ClusterError, VersionError, WorkerLostError

__all__ = [
    "ask",
    "await_futures",
    "check_client",
    "check_versions",
    "fetch",
    "living",
    "watched",
]

_TICK = 1.0

# Workers whose dps has been found to be this one's, by client.
_checked: weakref.WeakKeyDictionary[Client, set[str]] = weakref.WeakKeyDictionary()


def check_client(client: Client) -> None:
    """Raise if a client cannot be used.

    Raises
    ------
    ClusterError
    """
    if client.asynchronous:
        raise ClusterError(
            "an asynchronous client cannot be used yet: give client=Client(address) "
            "without asynchronous=True"
        )
    if client.status != "running":
        raise ClusterError(
            f"the client is {client.status}: make a new Client, or call fit without one "
            "to train in this process"
        )


def ask(
    client: Client,
    question: Callable[..., Any],
    timeout: float,
    *,
    what: str = "the scheduler cannot be reached",
    **arguments: Any,
) -> Any:
    """Ask the scheduler, within a time; `what` says what has failed if it does."""
    try:
        return client.sync(question, callback_timeout=timeout, **arguments)
    except OSError as error:  # also a timeout
        raise ClusterError(f"{what} ({type(error).__name__}: {error})") from error


def living(client: Client, timeout: float) -> dict[str, int]:
    """The workers that the scheduler has now, and their threads."""
    workers: dict[str, int] = ask(client, client.scheduler.ncores, timeout)
    return workers


def check_versions(client: Client, workers: set[str], timeout: float) -> None:
    """See that every worker has this dps, once a worker."""
    known = _checked.setdefault(client, set())
    new = sorted(workers - known)
    if not new:
        return
    # A function of the standard library: one of ours could not be unpickled there.
    answers = ask(
        client,
        client._run,
        timeout,
        what="the workers cannot be asked which dps they have",
        function=importlib.metadata.version,
        distribution_name="dps",
        workers=new,
        on_error="return",
    )
    ours = _our_version()
    for worker in new:
        theirs = answers.get(worker)
        if isinstance(theirs, OSError):
            raise WorkerLostError(f"a worker cannot be reached ({theirs})", worker=worker)
        if isinstance(theirs, Exception):
            raise VersionError(
                f"dps is not installed on a worker: install dps {ours} in its environment",
                worker=worker,
            )
        if theirs is not None and theirs != ours:
            raise VersionError(
                f"a worker has dps {theirs}, this process has {ours}: install the same version",
                worker=worker,
            )
        known.add(worker)


def _our_version() -> str:
    try:
        return importlib.metadata.version("dps")
    except importlib.metadata.PackageNotFoundError:
        raise VersionError(
            "dps is imported here without being installed, so that workers' versions cannot be "
            "compared with it: install it in this environment"
        ) from None


def watched(
    client: Client,
    coroutine: Coroutine[Any, Any, Any],
    what: str,
    timeout: float,
    check: Callable[[], None],
) -> Any:
    """The result of a client's coroutine; `check` is called once a second meanwhile."""
    answer = asyncio.run_coroutine_threadsafe(coroutine, client.loop.asyncio_loop)
    deadline = time.monotonic() + timeout
    try:
        while True:
            done, _ = concurrent.futures.wait([answer], min(_TICK, timeout / 4))
            if done:
                return answer.result()
            check()
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{what} has not ended for {timeout:g} s; is a worker frozen or overloaded? "
                    "raise `timeout` if it may take longer"
                )
    except (OSError, CancelledError, concurrent.futures.CancelledError) as error:
        until_known(check)
        raise ClusterError(f"{what} failed: {type(error).__name__}: {error}") from error
    finally:
        answer.cancel()


def fetch(
    client: Client, futures: Sequence[Future], timeout: float, check: Callable[[], None]
) -> list[Any]:
    """Results of tasks that have ended.

    A result whose worker has died since is computed again by Dask, if it is pinned: never.
    """
    what = "the transfer of results"
    return list(watched(client, client._gather(list(futures)), what, timeout, check))


def _hindrance(client: Client, timeout: float) -> str:
    """Why tasks are not begun, as far as the scheduler knows, and what to do."""
    workers = ask(client, client.scheduler.identity, timeout)["workers"]
    paused = sorted(address for address, of in workers.items() if of["status"] == "paused")
    if not paused:
        return "are there workers that may run them?"
    return (
        f"it has paused {len(paused)} of {len(workers)} workers, whose memory is nearly full "
        f"({', '.join(paused)}); give workers more memory, or make partitions smaller"
    )


def await_futures(
    client: Client, futures: Sequence[Future], timeout: float, check: Callable[[], None]
) -> None:
    """Wait for computations while something moves.

    A future that ends, or a task that the scheduler says is being worked on, is
    progress. `check` is called once a second: a task that is pinned to a dead worker
    waits for ever.

    Raises
    ------
    ClusterError
        Nothing has moved for `timeout` seconds, or the scheduler is gone.
    """
    waiting = list(futures)
    moved = time.monotonic()
    while waiting:
        try:
            client.sync(_wait, waiting, timeout=min(_TICK, timeout / 4))
        except TimeoutError:
            check()
            still = [future for future in waiting if future.status == "pending"]
            processing = ask(client, client.scheduler.processing, timeout)
            if len(still) < len(waiting) or any(processing.values()):
                moved = time.monotonic()
            elif time.monotonic() - moved > timeout:
                raise ClusterError(
                    f"Dask has not begun to compute {len(still)} partitions or tasks for "
                    f"{timeout:g} s: {_hindrance(client, timeout)}"
                ) from None
            waiting = still
        except CancelledError:
            break
        else:
            waiting = []
    for future in futures:
        if future.status == "error":
            future.result(timeout=timeout)  # the user's own error, as it was raised
        if future.status in ("cancelled", "lost"):
            check_client(client)
            check()
            raise ClusterError("a partition or task was lost: did its worker die?")
