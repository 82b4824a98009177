"""Partitions as Dask computes them: with something else in the place of X, or in this process.

Owns what is said of a partition that fails in this process: the keys that were at work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import dask
from dask.callbacks import Callback

from dps.data.partitions import Partition

__all__ = ["computed", "prepare_partition", "prepared"]


def computed(
    partitions: Sequence[Partition], prepare: Callable[[Any, int], Any] | None = None
) -> list[Partition]:
    """Compute partitions together, so that what they share is computed once.

    Parameters
    ----------
    partitions : sequence of Partition
    prepare : callable, optional
        What stands for X is ``prepare(X, number)``.

    Raises
    ------
    Exception
        What a partition raised, with a note that names the task.
    """
    parts = prepared(prepare, dict(enumerate(partitions))).values()
    running = _Running()
    try:
        with running:
            values = dask.compute(*[(part.X, part.y, part.weight) for part in parts])
    except Exception as error:
        if running.keys:  # others may have been at work beside it
            error.add_note(f"raised while Dask computed {' or '.join(map(repr, running.keys))}")
        raise
    return [Partition(*part) for part in values]


def prepared(
    prepare: Callable[[Any, int], Any] | None, partitions: Mapping[int, Partition]
) -> dict[int, Partition]:
    """Partitions by number, with a Delayed ``prepare(X, number)`` in the place of X.

    One task holds `prepare`, which may be large, for all of them.
    """
    if prepare is None:
        return dict(partitions)
    shared = dask.delayed(prepare, traverse=False, pure=False)
    make = dask.delayed(prepare_partition, pure=False)
    return {
        number: replace(part, X=make(shared, part.X, number)) for number, part in partitions.items()
    }


def prepare_partition(prepare: Callable[[Any, int], Any], X: Any, number: int) -> Any:
    """The task that makes something else of a partition's X."""
    return prepare(X, number)


class _Running(Callback):  # type: ignore[misc]
    """The tasks that have been started and have not ended."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: dict[Any, None] = {}

    def _pretask(self, key: Any, dsk: Any, state: Any) -> None:
        self.keys[key] = None

    def _posttask(self, key: Any, result: Any, dsk: Any, state: Any, worker_id: Any) -> None:
        self.keys.pop(key, None)
