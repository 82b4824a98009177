"""Bringing partitions into the memory of workers, each to one of them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from dask import delayed
from distributed import Client, Future

from dps.cluster.dask.calls import ask, confines, watched
from dps.cluster.dask.tasks import cut, unpacked
from dps.data.collections.partitions import Partition
from dps.data.collections.results import LOST
from dps.data.collections.sealed import sealed
from dps.data.keep.computing import delayed_keep
from dps.data.keep.keeping import Keeping
from dps.data.keep.recipes import shared_tasks
from dps.errors import ClusterError

#: Users' names for the parts of a partition.
_NAMES = {"X": "X", "y": "y", "weight": "sample_weight"}


@dataclass(frozen=True)
class Slice:
    """Rows of a local partition, and the worker that they go to."""

    part: Partition
    rows: slice
    worker: str


def slices_of(partitions: Sequence[Partition], workers: Sequence[str]) -> list[Slice]:
    """Cut local data into one piece per worker."""
    return [
        Slice(part, slice(start, stop), worker)
        for part in partitions
        for worker, (start, stop) in zip(
            workers, itertools.pairwise(_evenly(part.X.shape[0], len(workers))), strict=True
        )
        if start < stop
    ]


def _evenly(rows: int, n: int) -> list[int]:
    return [rows * number // n for number in range(n + 1)]


def send(
    client: Client, rows: Slice, worker: str, timeout: float, check: Callable[[], None]
) -> tuple[Partition, list[Future]]:
    """Send local rows to a worker; return their replacement and all new Futures."""
    part = rows.part
    values = [
        None if value is None else cut(value, rows.rows) for value in (part.X, part.y, part.weight)
    ]
    there = [value for value in values if value is not None]
    made = scattered(client, there, worker, timeout, check)
    return Partition(*made, *([None] * (len(values) - len(made)))), made


def scattered(
    client: Client, values: Sequence[Any], worker: str, timeout: float, check: Callable[[], None]
) -> list[Future]:
    """Send values to a worker, without a task at the scheduler."""
    sent = client._scatter(list(values), workers=[worker], hash=False)
    try:
        return list(watched(client, sent, "sending data to a worker", timeout, check))
    except KeyError:  # the scheduler has lost the worker
        check()
        raise


def homes_of(
    client: Client, partitions: Sequence[Partition], workers: Sequence[str], timeout: float
) -> list[str]:
    """Return the worker for each partition: where its X is, or one chosen by its number.

    If several workers have X, the one with the fewest partitions so far. Workers that
    `dask.annotate` excludes do not count.
    """
    in_memory = [part.X for part in partitions if isinstance(part.X, Future)]
    keys = [future.key for future in in_memory]
    held = ask(client, "scheduler.who_has", timeout, keys=keys) if keys else {}
    homes: list[str] = []
    count: Counter[str] = Counter()
    confined = any(confines())
    for number, part in enumerate(partitions):
        holders = held.get(part.X.key) if isinstance(part.X, Future) else None
        if confined:
            holders = [holder for holder in holders or () if holder in workers]
        home = workers[number * len(workers) // len(partitions)]
        if holders:
            home = min(holders, key=lambda holder: (count[holder], holder))
        homes.append(home)
        count[home] += 1
    return homes


def ours(client: Client, partitions: Sequence[Partition], timeout: float) -> list[Partition]:
    """Return the partitions with Futures of this client.

    Futures of another client are lost when that client is closed, and Futures among the arguments
    of a task have no owner.

    Raises ClusterError: the scheduler no longer knows one.
    """
    others = [
        value.key
        for part in partitions
        for value in vars(part).values()
        if isinstance(value, Future) and value.client is not client
    ]
    if not others:
        return list(partitions)
    known = ask(client, "scheduler.get_task_status", timeout, keys=others)
    lost = [key for key in others if known[key] is None]
    if lost:
        raise ClusterError(f"{LOST} ({lost[0]!r})")

    def held(value: Any) -> Any:
        theirs = isinstance(value, Future) and value.client is not client
        return Future(value.key, client) if theirs else value

    made = [Partition(*map(held, vars(part).values())) for part in partitions]
    client._send_to_scheduler({"op": "client-desires-keys", "keys": others})
    return made


def compute(
    client: Client,
    partitions: Mapping[int, Partition],
    homes: Mapping[int, str],
    keeping: Keeping,
    name: str,
    prepare: Sequence[Any] | None,
    away: Collection[int],
) -> tuple[dict[int, Partition], list[Future], list[Future]]:
    """Compute partitions, each on its worker.

    If X is in memory, y and weights are computed beside it, and X is left alone. If ``prepare(X,
    number)`` replaces X, or X is on a worker (`away`) where it must not stay, one Future stands for
    the whole partition.

    prepare: in parts, see `FitWork.sent`.
    Returns all partitions, the new Futures for them, and other Futures that several partitions
        need.
    """
    of_home: dict[str, list[int]] = {}
    for number, home in homes.items():
        of_home.setdefault(home, []).append(number)
    # Partitions are computed worker by worker; tasks that several need must not be released in
    # between.
    groups = [[partitions[number] for number in numbers] for numbers in of_home.values()]
    shared = client.compute(shared_tasks(groups), workers=list(of_home))
    placed = dict(partitions)
    made: list[Future] = []
    for home, numbers in of_home.items():
        lying = [
            number
            for number in numbers
            if prepare is None and isinstance(partitions[number].X, Future) and number not in away
        ]
        beside = {
            (number, part): value
            for number in lying
            for part, value in vars(partitions[number]).items()
            if value is not None and not isinstance(value, Future)
        }
        coming = {number: partitions[number] for number in numbers if number not in set(lying)}
        opened = None if prepare is None else delayed(sealed(unpacked), pure=False)(prepare)
        wanted = [*beside.values(), *delayed_keep(keeping, opened, coming, name)]
        futures = client.compute(wanted, workers=[home], allow_other_workers=False)
        for (number, part), future in zip(beside, futures, strict=False):
            placed[number] = replace(placed[number], **{part: future})
        for number, future in zip(coming, futures[len(beside) :], strict=True):
            placed[number] = Partition(future, None, None)
        made += futures
    return placed, made, shared


@contextmanager
def naming_partitions(
    client: Client,
    given: Sequence[Partition],
    placed: Mapping[int, Partition],
    trained: int,
    timeout: float,
) -> Iterator[dict[Future, tuple[int]]]:
    """Return Futures to wait for, with the partition of each, so that errors name it.

    given: partitions as users gave them.
    placed: partitions as stored, by number.
    trained: number of training partitions.
    """
    futures = {
        value: (number, name)
        for number, part in placed.items()
        for name, value in vars(part).items()
        if isinstance(value, Future)
    }
    try:
        yield {future: (number,) for future, (number, _) in futures.items()}
    except Exception as error:
        failed = (future for future in futures if future.status in ("error", "cancelled", "lost"))
        for future in itertools.islice(failed, 1):
            number, name = futures[future]
            erred, cause = future.status == "error", None
            if erred:
                cause = ask(client, "scheduler.get_error_cause", timeout, keys=[future.key])
            described = f"partition {number}"  # local data
            if number < len(given):
                described = _described(given[number], number, name, cause, trained)
            note = f"{described} " + ("could not be computed" if erred else "is lost")
            if note not in getattr(error, "__notes__", ()):  # Dask raises the same object each time
                error.add_note(note)
        raise


def _described(part: Partition, number: int, name: str, cause: Any, trained: int) -> str:
    """Name the part of a partition that a task computes."""
    of = [
        name
        for name, value in vars(part).items()
        if hasattr(value, "__dask_graph__") and cause in value.__dask_graph__()
    ]
    name, key = (of[0], cause) if of else (name, cause or getattr(part, name).key)
    validates = number >= trained
    of_what = f"{number - trained * validates} of {_NAMES[name]}{'_val' * validates}"
    return f"partition {of_what}, {key!r},"
