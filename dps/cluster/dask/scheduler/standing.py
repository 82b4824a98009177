"""After a worker has gone: where its partitions go, and what of them Dask has or makes again.

The scheduler is asked in Dask's own words alone: it need not have dps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any

from distributed import Client

from dps.cluster.dask.calls import ask

#: By the key of a task: workers that may run it, and whether others may where these are not there.
Pins = dict[Any, tuple[set[str], bool]]


def homes_after(holders: Sequence[str], alive: Sequence[str]) -> list[str]:
    """The worker of each partition once some workers have gone.

    A worker that holds nothing takes the place of one that has gone, so that the plan is the same;
    where there is none, all that are left share what has gone.

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
    """Let those that stay run what some keys need that workers have, or are to run, that do not.

    Dask keeps the pin of a task that it knows when it is submitted again, and would wait for ever.
    A pin goes whose workers are all gone; another one only keeps a task from silent workers, since
    one that waits for its workers gets no other that comes, though it may run there.
    What only silent workers hold or run is begun again; of what was scattered to them nothing is
    done, since they may come back. While there are some it is to be called again: Dask gives them
    something to do still.
    Returns the pins that were, for `pin_again`.
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
            if holders & staying and task.key not in roots:  # of these another may be made
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
                if at.address in silent or task not in at.executing:  # it begins nothing any more
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
            with suppress(RuntimeError):  # it is at that already, for another fit
                dask_worker._handle_remove_worker(other, f"dps-hang-up-{time()}")

    fetching, were = ask(
        client, "_run_on_scheduler", timeout, function=free, keys=list(keys), silent=silent,
    )  # fmt: skip
    if silent and fetching:
        # A worker that is to run one of these tasks, and fetches what it needs from a silent one,
        # would not run it before that has ended. As if they had died, for such workers alone. In
        # Dask's message of that a second one, in front of which no connection has ended, would end
        # the worker itself.
        gone = set(silent)  # which may change before it is sent
        asking = client._run(drop_connections, silent=gone, workers=fetching, on_error="return")
        asyncio.run_coroutine_threadsafe(asking, client.loop.asyncio_loop)
    return were


def pin_again(client: Client, pins: Pins, timeout: float) -> None:
    """Give tasks back their pins, unless all workers have gone to which they were pinned."""

    def pin(dask_scheduler: Any, pins: Pins) -> None:
        for key, (workers, loose) in pins.items():
            task = dask_scheduler.tasks.get(key)
            if task is not None and not (workers and workers.isdisjoint(dask_scheduler.workers)):
                task.worker_restrictions, task.loose_restrictions = workers, loose

    ask(client, "_run_on_scheduler", timeout, function=pin, pins=pins)


def standing() -> Callable[..., dict[Any, str]]:
    """A function that the scheduler runs; made here, so that it is pickled by value."""

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
