"""Calls to a Dask client that always end: each has a deadline and checks for dead workers.

Dask alone waits forever for tasks that are pinned to a dead worker.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import operator
import time
import weakref
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import dask
from distributed import Client, Future
from distributed.client import _wait

from dps.cluster.base import grace, until_known
from dps.cluster.dask.scheduler.progress import StallClock, look_for_progress
from dps.data.collections.results import LOST, is_inherited
from dps.errors import ClusterError, VersionError, WorkerLostError
from dps.server.memory.host import shared_memory_id

_TICK_SECONDS = 1.0
#: Exceptions of waiting for a cancelled Future, from Dask or asyncio.
CANCELLED = (asyncio.CancelledError, concurrent.futures.CancelledError)

# Ids of workers as last seen, by client and address. A restarted worker may have an old address
# with a new id.
_ids: weakref.WeakKeyDictionary[Client, dict[str, str]] = weakref.WeakKeyDictionary()
# Ids of workers that have the same version of dps, by client.
_checked: weakref.WeakKeyDictionary[Client, set[str]] = weakref.WeakKeyDictionary()
# The shared memory of workers, by client and id.
_memories: weakref.WeakKeyDictionary[Client, dict[str, str]] = weakref.WeakKeyDictionary()


def check_client(client: Client) -> None:
    """Raise if a client cannot be used."""
    if client.asynchronous:
        raise ClusterError(
            "a fit would block the event loop of an asynchronous client: run it in another thread, "
            "by await asyncio.to_thread(model.fit, X, y)"
        )
    if is_inherited(client):
        raise ClusterError(
            "the client was made before this process was forked, and cannot be used here: make a "
            "new Client, or call fit without one to train in this process"
        )
    if client.status != "running":
        raise ClusterError(
            f"the client is {client.status}: make a new Client, or call fit without one "
            "to train in this process"
        )


def until_connected(client: Client) -> None:
    """Wait for a client that another thread has just created, as `get_client` does in tasks."""
    deadline = time.monotonic() + grace()
    while client.status in ("newly-created", "connecting") and time.monotonic() < deadline:
        time.sleep(0.01)


def ask(
    client: Client,
    question: str,
    timeout: float,
    *,
    what: str = "the scheduler cannot be reached",
    **arguments: Any,
) -> Any:
    """Call a method of the client, such as "scheduler.ncores", with a timeout.

    Raises ClusterError: the call has failed, with `what` as the reason, or the client is closed.
    """
    with reaching(client, what):
        method = operator.attrgetter(question)(client)
        return client.sync(method, callback_timeout=timeout, **arguments)


@contextmanager
def reaching(client: Client, what: str = "the scheduler cannot be reached") -> Iterator[None]:
    """Turn failures to reach the scheduler into errors of dps."""
    try:
        yield
    except (OSError, *CANCELLED) as error:  # includes timeouts
        raise ClusterError(f"{what} ({type(error).__name__}: {error})") from error
    except (AttributeError, RuntimeError):  # it has lost its scheduler or its connections
        check_client(client)
        raise


def living(client: Client, timeout: float) -> dict[str, int]:
    """Return the workers that the scheduler knows, and their threads."""
    return {worker: n for worker, (n, _) in _look(client, timeout)[0].items()}


def staying(client: Client, timeout: float) -> dict[str, int]:
    """Return the workers that are not leaving, unless all are; leaving ones take no tasks."""
    return staying_with(client, (), timeout)[0]


def staying_with(
    client: Client, keys: Sequence[Any], timeout: float
) -> tuple[dict[str, int], dict[Any, list[str]]]:
    """Return the workers of `staying`, and for some tasks the workers that have their results."""
    workers, held = _look(client, timeout, keys)
    found = {worker: n for worker, (n, stays) in workers.items() if stays}
    return found or {worker: n for worker, (n, _) in workers.items()}, held


def _look(
    client: Client, timeout: float, keys: Sequence[Any] = ()
) -> tuple[dict[str, tuple[int, bool]], dict[Any, list[str]]]:
    """Return the threads of each worker, whether it stays, and who has results; remember ids."""

    def look(dask_scheduler: Any, keys: Sequence[Any]) -> Any:
        workers = {
            address: (worker.nthreads, "closing" not in worker.status.name, worker.server_id)
            for address, worker in dask_scheduler.workers.items()
        }
        tasks = map(dask_scheduler.tasks.get, keys)
        return workers, [[each.address for each in task.who_has] if task else [] for task in tasks]

    workers, held = ask(client, "_run_on_scheduler", timeout, function=look, keys=list(keys))
    _ids[client] = {address: number for address, (_, _, number) in workers.items()}
    there = {address: (n, stays) for address, (n, stays, _) in workers.items()}
    return there, dict(zip(keys, held, strict=True))


def ids(client: Client) -> dict[str, str]:
    """Return the ids of workers as last seen by `living` or `staying`."""
    return _ids.get(client, {})


def is_retired(client: Client, worker: str, timeout: float) -> bool:
    """True if a worker is being retired, or was before it left."""

    def look(dask_scheduler: Any, worker: str) -> bool:
        if (known := dask_scheduler.workers.get(worker)) is not None:
            return "closing" in known.status.name
        events = [event for _, event in dask_scheduler.get_events(worker)]
        return any(isinstance(each, dict) and each.get("action") == "retired" for each in events)

    return bool(ask(client, "_run_on_scheduler", timeout, function=look, worker=worker))


async def _ended(futures: Sequence[Future], timeout: float) -> bool:
    """True if all have ended within a time.

    An exception that `Client.sync` raises holds the frames of all callers, with their data, until
    the garbage collector runs. So the deadline is checked on this side of it.
    """
    try:
        await _wait(futures, timeout=timeout)
    except TimeoutError:
        return False
    return True


def have_ended(client: Client, futures: Sequence[Future], timeout: float) -> bool:
    """True if all futures end within a time."""
    return bool(client.sync(_ended, futures, timeout=timeout))


def first_workers(client: Client, fit: str, timeout: float) -> dict[str, int]:
    """Wait for the first workers of an empty cluster: an adaptive one starts them for a task.

    Raises ClusterError: none has joined within `timeout` seconds.
    """
    task = client.submit(int, key=f"dps-first-{fit}", pure=False)
    try:
        if not have_ended(client, [task], timeout):
            raise ClusterError(
                f"the cluster at {client.scheduler.address} has no workers, and none has come for "
                f"{timeout:g} s: start some, or raise dps.timeout of dask.config above the time "
                "that the next ones take to come"
            )
    except CANCELLED:  # the scheduler is lost, which the next call reports
        pass
    finally:
        task.release()
    return living(client, timeout)


def present(client: Client, fit: str, timeout: float, but: Collection[str] = ()) -> dict[str, int]:
    """Return the workers that stay and have this version of dps, and their threads.

    but: workers to leave out.
    Raises ClusterError: there is none, and none joins.
    Raises WorkerLostError: one cannot be reached.
    """
    while True:
        found = staying(client, timeout) or first_workers(client, fit, timeout)
        try:
            check_versions(client, set(found) - set(but), timeout)
        except WorkerLostError as error:  # it may just be leaving
            deadline = time.monotonic() + grace()
            while error.worker in staying(client, timeout):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        else:
            return _allowed(client, found, timeout)


def confines() -> tuple[dict[str, float], set[str]]:
    """Return the resources and workers of the surrounding `dask.annotate`."""
    asked = dask.get_annotations()
    named = asked.get("workers") or ()
    if callable(named) or asked.get("allow_other_workers") is True:
        named = ()
    return asked.get("resources") or {}, {named} if isinstance(named, str) else set(named)


def _allowed(client: Client, workers: dict[str, int], timeout: float) -> dict[str, int]:
    """Return the workers that `dask.annotate` allows, by resource, address, name or host."""
    resources, named = confines()
    if not resources and not named:
        return workers
    known = ask(client, "scheduler.identity", timeout, n_workers=-1)["workers"]
    known = {each: known[each] for each in workers if each in known}
    able = [
        each
        for each, has in known.items()
        if all(has["resources"].get(name, 0) >= least for name, least in resources.items())
    ]
    if not able:
        there = {each: has["resources"] for each, has in known.items()}
        raise ClusterError(
            f"no worker has the resources {dict(resources)} of dask.annotate; there are {there}"
        )
    ways = {each: {each, known[each]["name"], known[each]["host"]} for each in able}
    found = {each: workers[each] for each in able if not named or named & ways[each]}
    if not found:
        raise ClusterError(
            f"no worker is one of workers={sorted(named)} of dask.annotate; there are "
            f"{ {each: known[each]['name'] for each in able} }"
        )
    return found


def check_versions(client: Client, workers: set[str], timeout: float) -> None:
    """Check that every worker has this version of dps, once per worker."""
    known, numbers = _checked.setdefault(client, set()), ids(client)
    new = sorted(worker for worker in workers if numbers.get(worker) not in known)
    if not new:
        return
    # A function of the standard library: a worker without dps could not unpickle one of dps.
    try:
        answers = ask(
            client,
            "_run",
            timeout,
            what="the workers cannot be asked which dps they have",
            function=version,
            distribution_name="dps",
            workers=new,
            on_error="return",
        )
    except ClusterError as error:
        error.worker = _quietest(client, new, timeout)
        raise
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
        if worker in numbers:
            known.add(numbers[worker])


def shared_memory(client: Client, workers: Sequence[str], timeout: float) -> list[str]:
    """Return values that are equal for workers that can map each other's memory.

    Raises WorkerLostError: a worker is lost, to which Dask would keep trying to connect.
    """
    known, numbers = _memories.setdefault(client, {}), ids(client)
    found = {worker: known[n] for worker, n in numbers.items() if n in known}
    if new := sorted(set(workers) - set(found)):

        def check() -> None:
            for worker in sorted(set(new) - set(living(client, timeout))):
                raise WorkerLostError("a worker died as it was asked for its memory", worker=worker)

        asking = client._run(shared_memory_id, workers=new)
        found |= watched(client, asking, "asking workers for their shared memory", timeout, check)
        known |= {numbers[worker]: found[worker] for worker in new if worker in numbers}
    return [found[worker] for worker in workers]


def _quietest(client: Client, workers: Sequence[str], timeout: float) -> str | None:
    """Return the worker from which the scheduler has heard nothing for longest."""
    known = ask(client, "scheduler.identity", timeout)["workers"]
    seen = {worker: known[worker]["last_seen"] for worker in workers if worker in known}
    return min(seen, key=lambda worker: float(seen[worker]), default=None)


def _our_version() -> str:
    try:
        return version("dps")
    except PackageNotFoundError:
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
    cancels: bool = True,
) -> Any:
    """Return the result of a client's coroutine; `check` is called once a second meanwhile.

    After an error Dask's gathering of results is not cancelled, which would leave its inner tasks
    and a traceback in the log for each. It ends when the Futures are released.
    """
    answer = asyncio.run_coroutine_threadsafe(coroutine, client.loop.asyncio_loop)
    deadline = time.monotonic() + timeout
    try:
        while True:
            done, _ = concurrent.futures.wait([answer], min(_TICK_SECONDS, timeout / 4))
            if done:
                return answer.result()
            check()
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{what} has not ended for {timeout:g} s; is a worker frozen or overloaded, or "
                    "paused by Dask since its memory is nearly full? give it more memory, or raise "
                    "its timeout, dps.timeout of dask.config for fits, if it may take longer"
                )
    except (OSError, *CANCELLED) as error:
        until_known(check)
        raise ClusterError(f"{what} failed: {type(error).__name__}: {error}") from error
    finally:
        if cancels:
            answer.cancel()


def fetch(
    client: Client, futures: Sequence[Future], timeout: float, check: Callable[[], None]
) -> list[Any]:
    """Return results of tasks that have ended.

    If a result's worker has died since, Dask computes it again; a pinned task never ends then.
    """
    what = "the transfer of results"
    gathering = client._gather(list(futures))
    return list(watched(client, gathering, what, timeout, check, cancels=False))


def await_futures(
    client: Client, futures: Sequence[Future], timeout: float,
    check: Callable[[Sequence[Future]], None],
    stuck: Callable[[], None] = lambda: None,
) -> None:  # fmt: skip
    """Wait for computations while they make progress.

    Progress is a future that ends, a worker that runs one of the tasks behind them, or a worker
    that proceeds with earlier tasks, which may belong to another user. `check` is called once a
    second with the unfinished futures, because a task that is pinned to a dead worker waits
    forever. Results that were lost with a worker are waited for while Dask computes them again.
    `stuck` is called if no worker runs the tasks.

    Raises ClusterError: there has been no progress for `timeout` seconds, or the scheduler is lost.
    """
    waiting = [future for future in futures if future.status != "finished"]
    look, clock = look_for_progress(timeout), StallClock(timeout)
    while waiting:
        try:
            ended = have_ended(client, waiting, min(_TICK_SECONDS, timeout / 4))
        except CANCELLED:
            break
        if not ended:
            still = [future for future in waiting if future.status in ("pending", "lost")]
            check(still)
            if _are_lost(client, waiting, timeout):
                break
            keys = [future.key for future in still]
            found = ask(client, "_run_on_scheduler", timeout, function=look, keys=keys)
            if found is not None:
                stuck()
            clock.see(found, len(still), len(still) < len(waiting))
            waiting = still
        else:
            waiting = [future for future in futures if future.status == "lost"]
            if _are_lost(client, waiting, timeout):
                break
    for future in futures:
        if future.status == "error":
            future.result(timeout=timeout)  # raises the user's own exception
        if future.status in ("cancelled", "lost"):
            check_client(client)
            check([])
            raise ClusterError(LOST)


def _are_lost(client: Client, futures: Sequence[Future], timeout: float) -> bool:
    """True if some futures were lost that Dask cannot compute again."""
    keys = [future.key for future in futures if future.status == "lost"]
    return (
        bool(keys) and None in ask(client, "scheduler.get_task_status", timeout, keys=keys).values()
    )
