"""Bring partitions into the memory of workers, each to one of them; tasks on them there."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from distributed import Client, Future

from dps.cluster.dask.calls import ask, watched
from dps.cluster.dask.tasks import cut
from dps.data.computing import prepared
from dps.data.partitions import Partition

__all__ = ["compute", "naming_partitions", "scatter"]

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


def compute(
    client: Client,
    partitions: Sequence[Partition],
    workers: Sequence[str],
    timeout: float,
    prepare: Callable[[Any, int], Any] | None = None,
) -> tuple[list[Partition], list[Future]]:
    """Have Delayed partitions computed on a worker chosen by their number; all futures made.

    Where X is in memory, y and weights are computed beside it; and so is ``prepare(X, number)``,
    which stands for X if it is given.
    """
    in_memory = [part.X for part in partitions if isinstance(part.X, Future)]
    keys = [future.key for future in in_memory]
    held = ask(client, client.scheduler.who_has, timeout, keys=keys) if keys else {}
    homes: dict[str, list[int]] = {}
    for number, part in enumerate(partitions):
        holders = held.get(part.X.key) if isinstance(part.X, Future) else None
        home = min(holders) if holders else workers[number * len(workers) // len(partitions)]
        homes.setdefault(home, []).append(number)
    futures: dict[tuple[int, str], Any] = {}
    for home, numbers in homes.items():
        parts = prepared(prepare, {number: partitions[number] for number in numbers})
        wanted = {
            (number, name): value
            for number, part in parts.items()
            for name, value in vars(part).items()
            if value is not None and not isinstance(value, Future)
        }
        computed = client.compute(list(wanted.values()), workers=[home], allow_other_workers=False)
        futures.update(zip(wanted, computed, strict=True))
    computed_partitions = [
        Partition(*(futures.get((number, name), value) for name, value in vars(part).items()))
        for number, part in enumerate(partitions)
    ]
    return computed_partitions, list(futures.values())


@contextmanager
def naming_partitions(partitions: Sequence[Partition]) -> Iterator[list[Future]]:
    """Give the Futures of partitions to wait for; an error meanwhile names the one that failed."""
    futures = {
        value: f"partition {number} of {_NAMES[name]}"
        for number, part in enumerate(partitions)
        for name, value in vars(part).items()
        if isinstance(value, Future)
    }
    try:
        yield list(futures)
    except Exception as error:
        failed = (future for future in futures if future.status == "error")
        for future in itertools.islice(failed, 1):
            note = f"{futures[future]}, {future.key!r}, could not be computed"
            if note not in getattr(error, "__notes__", ()):  # Dask raises one object each time
                error.add_note(note)
        raise
