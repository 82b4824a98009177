"""Bring partitions into the memory of workers, each to one of them; tasks on them there."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from distributed import Client, Future

from dps.cluster.dask.calls import ask, watched
from dps.cluster.dask.tasks import cut
from dps.data.computing import delayed_keep
from dps.data.keeping import Keeping
from dps.data.partitions import Partition

__all__ = ["compute", "homes_of", "naming_partitions", "scatter"]

#: What users call the parts of a partition.
_NAMES = {"X": "X", "y": "y", "weight": "sample_weight"}


def scatter(
    client: Client,
    partitions: Sequence[Partition],
    workers: Sequence[str],
    timeout: float,
    check: Callable[[], None],
) -> tuple[list[Partition], list[Future]]:
    """Send local data to the workers, cut into as many pieces; all futures made."""
    pieces: list[Partition] = []
    made: list[Future] = []
    for part in partitions:
        rows = part.X.shape[0]
        for number, worker in enumerate(workers):
            at = slice(rows * number // len(workers), rows * (number + 1) // len(workers))
            if at.start < at.stop:
                values = [cut(part.X, at), cut(part.y, at)]
                if part.weight is not None:
                    values.append(cut(part.weight, at))
                sent = client._scatter(values, workers=[worker], hash=False)
                futures = watched(client, sent, "sending data to a worker", timeout, check)
                made += futures
                pieces.append(Partition(*futures, *([None] if part.weight is None else [])))
    return pieces, made


def homes_of(
    client: Client, partitions: Sequence[Partition], workers: Sequence[str], timeout: float
) -> list[str]:
    """The worker that each partition is to be on: where its X is, or one chosen by its number."""
    in_memory = [part.X for part in partitions if isinstance(part.X, Future)]
    keys = [future.key for future in in_memory]
    held = ask(client, client.scheduler.who_has, timeout, keys=keys) if keys else {}
    homes = []
    for number, part in enumerate(partitions):
        holders = held.get(part.X.key) if isinstance(part.X, Future) else None
        home = min(holders) if holders else workers[number * len(workers) // len(partitions)]
        homes.append(home)
    return homes


def compute(
    client: Client,
    partitions: Sequence[Partition],
    homes: Sequence[str],
    keeping: Keeping,
    prepare: Callable[[Any, int], Any] | None = None,
) -> tuple[list[Partition], list[Future]]:
    """Have partitions computed, each on its worker; all futures made.

    Where X is in memory, y and weights are computed beside it, and X is left as it is. Else, or
    where ``prepare(X, number)`` is to stand for X, one future stands for all of a partition.
    """
    of_home: dict[str, list[int]] = {}
    for number, home in enumerate(homes):
        of_home.setdefault(home, []).append(number)
    placed = list(partitions)
    made: list[Future] = []
    for home, numbers in of_home.items():
        lying = [n for n in numbers if prepare is None and isinstance(partitions[n].X, Future)]
        beside = {
            (number, name): value
            for number in lying
            for name, value in vars(partitions[number]).items()
            if value is not None and not isinstance(value, Future)
        }
        coming = {number: partitions[number] for number in numbers if number not in set(lying)}
        wanted = [*beside.values(), *delayed_keep(keeping, prepare, coming)]
        futures = client.compute(wanted, workers=[home], allow_other_workers=False)
        for (number, name), future in zip(beside, futures, strict=False):
            placed[number] = replace(placed[number], **{name: future})
        for number, future in zip(coming, futures[len(beside) :], strict=True):
            placed[number] = Partition(future, None, None)
        made += futures
    return placed, made


@contextmanager
def naming_partitions(
    client: Client,
    given: Sequence[Partition],
    placed: Sequence[Partition],
    trained: int,
    timeout: float,
) -> Iterator[list[Future]]:
    """Give the Futures of partitions to wait for; an error meanwhile names what has failed.

    Parameters
    ----------
    client : distributed.Client
    given : sequence of Partition
        As users gave them.
    placed : sequence of Partition
        As they are kept.
    trained : int
        The number of those that are not of validation data.
    timeout : float
    """
    futures = {
        value: (number, name)
        for number, part in enumerate(placed)
        for name, value in vars(part).items()
        if isinstance(value, Future)
    }
    try:
        yield list(futures)
    except Exception as error:
        failed = (future for future in futures if future.status == "error")
        for future in itertools.islice(failed, 1):
            number, name = futures[future]
            cause = ask(client, client.scheduler.get_error_cause, timeout, keys=[future.key])
            described = _described(given[number], number, name, cause, trained)
            note = f"{described} could not be computed"
            if note not in getattr(error, "__notes__", ()):  # Dask raises one object each time
                error.add_note(note)
        raise


def _described(part: Partition, number: int, name: str, cause: Any, trained: int) -> str:
    """The part of a partition that a task works for."""
    of = [
        name
        for name, value in vars(part).items()
        if hasattr(value, "__dask_graph__") and cause in value.__dask_graph__()
    ]
    name, key = (of[0], cause) if of else (name, cause or getattr(part, name).key)
    validates = number >= trained
    of_what = f"{number - trained * validates} of {_NAMES[name]}{'_val' * validates}"
    return f"partition {of_what}, {key!r},"
