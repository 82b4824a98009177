"""Partitions computed in this process by Dask's own schedulers.

Owns what is said of a partition that fails: the keys that were at work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import dask
from dask.callbacks import Callback

from dps.data.partitions import Partition

__all__ = ["computed"]


def computed(
    partitions: Sequence[Partition], prepare: Callable[[Any], Any] | None = None
) -> list[Partition]:
    """Compute partitions together, so that what they share is computed once.

    Parameters
    ----------
    partitions : sequence of Partition
    prepare : callable, optional
        What stands for X is ``prepare(X)``.

    Raises
    ------
    Exception
        What a partition raised, with a note that names the task.
    """
    if prepare is not None:
        make = dask.delayed(prepare)
        partitions = [replace(part, X=make(part.X)) for part in partitions]
    running = _Running()
    try:
        with running:
            values = dask.compute(*[(part.X, part.y, part.weight) for part in partitions])
    except Exception as error:
        if running.keys:  # others may have been at work beside it
            error.add_note(f"raised while Dask computed {' or '.join(map(repr, running.keys))}")
        raise
    return [Partition(*part) for part in values]


class _Running(Callback):  # type: ignore[misc]
    """The tasks that have been started and have not ended."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: dict[Any, None] = {}

    def _pretask(self, key: Any, dsk: Any, state: Any) -> None:
        self.keys[key] = None

    def _posttask(self, key: Any, result: Any, dsk: Any, state: Any, worker_id: Any) -> None:
        self.keys.pop(key, None)
