"""After the loss of a worker: new workers for its partitions, and what Dask makes again.

The scheduler runs functions that are pickled by value, so it does not need dps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any

from distributed import Client

from dps.cluster.dask.calls import ask

#: For the key of a task, the workers that may run it, and whether others may if these are lost.
Pins = dict[Any, tuple[set[str], bool]]


def homes_after(holders: Sequence[str], alive: Sequence[str]) -> list[str]:
    """Return the worker of each partition after some workers are lost.

    A worker that holds nothing replaces a lost one, so that the plan stays the same. Without such a
    worker the remaining ones share its partitions.

    Examples
    --------
    >>> homes_after(["a", "b", "b", "c"], ["a", "c", "d"])
    ['a', 'd', 'd', 'c']
    >>> homes_after(["a", "b", "b", "c"], ["a", "c"])
    ['a', 'a', 'c', 'c']
    """
    left = sorted(set(holders) & set(alive))
    spare = sorted(set(alive) - set(left))
    gone = list(dict.fromkeys(holder for holder in holders if holder not in alive))
    stand_in = dict(zip(gone, spare, strict=False))
    homes, shared = [], 0
    for holder in holders:
        if holder in gone and holder not in stand_in:
            others = left or spare
            homes.append(others[shared % len(others)])
            shared += 1
        else:
            homes.append(stand_in.get(holder, holder))
    return homes


# The scheduler runs `free` by itself, so it is one function.
def unpin(  # noqa: C901
    client: Client, keys: Sequence[Any], silent: Collection[str], timeout: float
) -> Pins:
    """Let the remaining workers run the tasks behind some keys that lost or silent workers have.

    Dask keeps the pin of a known task when it is submitted again, and would wait forever. A pin is
    removed if all of its workers are lost. Otherwise the task is only kept from silent workers,
    because it may run on a worker that joins later. Tasks whose results only silent workers hold,
    or that they run, begin again. Data that was scattered to silent workers is left alone, since
    they may wake up. While some workers are silent it must be called again, because Dask keeps
    giving them tasks.
    Returns the previous pins for `pin_again`.
    """

    def free(dask_scheduler: Any, keys: Sequence[Any], silent: set[str]) -> tuple[list[str], Pins]:
        from time import time

        roots, left, seen, stuck, were = set(keys), list(keys), set(), {}, {}
        staying = {
            address
            for address, worker in dask_scheduler.workers.items()
            if "closing" not in worker.status.name and address not in silent
        }
        while left:
            task = dask_scheduler.tasks.get(left.pop())
            if task is None or task.key in seen:
                continue
            seen.add(task.key)
            holders = {worker.address for worker in task.who_has or ()}
            # Another worker may make a copy of these.
            if holders & staying and task.key not in roots:
                continue
            left += [other.key for other in task.dependencies]
            pinned, at = task.worker_restrictions, task.processing_on
            if (pinned or silent) and staying.isdisjoint(pinned or ()):
                were[task.key] = set(pinned or ()), task.loose_restrictions
                task.worker_restrictions = staying.copy() if silent else set()
                task.loose_restrictions = True
                if task.state == "no-worker":
                    stuck[task.key] = "processing"
            if at is not None and at.address not in staying:
                # A silent worker starts no further task.
                if at.address in silent or task not in at.executing:
                    stuck[task.key] = "released"
            elif holders and holders <= silent and task.run_spec is not None:
                stuck[task.key] = "released"
        dask_scheduler.transitions(stuck, f"dps-set-free-{time()}")
        tasks = filter(None, map(dask_scheduler.tasks.get, seen))
        running = {task.processing_on.address for task in tasks if task.processing_on}
        return list(running & staying), were

    def drop_connections(dask_worker: Any, silent: set[str]) -> None:
        from contextlib import suppress
        from time import time

        for other in silent:
            with suppress(RuntimeError):  # another fit has started it already
                dask_worker._handle_remove_worker(other, f"dps-hang-up-{time()}")

    fetching, were = ask(
        client, "_run_on_scheduler", timeout, function=free, keys=list(keys), silent=silent,
    )  # fmt: skip
    if silent and fetching:
        # A worker that fetches the input of one of these tasks from a silent worker would wait
        # until that fetch ends. Only such workers get the message that the silent ones have died:
        # Dask would end a worker that gets it twice for the same worker.
        gone = set(silent)  # it may change before it is sent
        asking = client._run(drop_connections, silent=gone, workers=fetching, on_error="return")
        asyncio.run_coroutine_threadsafe(asking, client.loop.asyncio_loop)
    return were


def pin_again(client: Client, pins: Pins, timeout: float) -> None:
    """Restore the pins of tasks, unless all of their workers are lost."""

    def pin(dask_scheduler: Any, pins: Pins) -> None:
        for key, (workers, loose) in pins.items():
            task = dask_scheduler.tasks.get(key)
            if task is not None and not (workers and workers.isdisjoint(dask_scheduler.workers)):
                task.worker_restrictions, task.loose_restrictions = workers, loose

    ask(client, "_run_on_scheduler", timeout, function=pin, pins=pins)


def standing() -> Callable[..., dict[Any, str]]:
    """Return a function for the scheduler, made here so that it is pickled by value."""

    def look(dask_scheduler: Any, keys: Sequence[Any], silent: set[str]) -> dict[Any, str]:
        found = {}
        for key in keys:
            task = dask_scheduler.tasks.get(key)
            holders = [w for w in (task.who_has or () if task else ()) if w.address not in silent]
            if task is None or (not holders and task.run_spec is None):
                found[key] = "gone"
            else:
                staying = any("closing" not in worker.status.name for worker in holders)
                found[key] = "there" if staying else "coming"
        return found

    return look
