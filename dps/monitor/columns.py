"""Columns of Dask's page ``/workers``: what replicas and shards on a worker do.

They are there while some do, and gone afterwards. Dask asks for them with each heartbeat. A
worker that has several replicas shows the sum of their rows a second, and their means. It must
not know how counts come about.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dps._runtime.activity import ROWS
from dps.monitor.board import Board, Entry, ReplicaEntry
from dps.monitor.counters import Pace, mean_loss, mean_staleness

__all__ = ["NAMES", "update_columns"]

NAMES = ("dps rows/s", "dps loss", "dps staleness", "dps shard bytes")


def update_columns(worker: Any, board: Board) -> None:
    """Have a worker tell of what is on it, or stop where nothing is; from any thread, soon.

    A heartbeat goes through the worker's metrics on its event loop, and waits in between for those
    that are asynchronous. So the columns change there alone, and come in another dict.
    """
    worker.loop.add_callback(_update, worker, board)


def _update(worker: Any, board: Board) -> None:
    entries: list[Entry] = [*board.replicas(), *board.shards()]
    wanted = any(entry.ended is None and entry.worker == worker.address for entry in entries)
    if wanted == (NAMES[0] in worker.metrics):
        return
    others = {name: metric for name, metric in worker.metrics.items() if name not in NAMES}
    columns = (_rows_per_second(board), _loss, _staleness, _shard_bytes) if wanted else ()
    shown = {name: partial(column, board) for name, column in zip(NAMES, columns, strict=False)}
    worker.metrics = {**others, **shown}


def _running(board: Board, worker: Any) -> list[ReplicaEntry]:
    replicas = board.replicas()
    return [entry for entry in replicas if entry.ended is None and entry.worker == worker.address]


def _rows_per_second(board: Board) -> Callable[[Board, Any], float]:
    paces: dict[ReplicaEntry, Pace] = {}
    began = time.monotonic()

    def column(board: Board, worker: Any) -> float:
        running = _running(board, worker)
        for gone in set(paces) - set(running):
            del paces[gone]
        now, total = time.monotonic() - began, 0.0
        for entry in running:
            pace = paces.setdefault(entry, Pace(1))
            total += float(pace.of(now, np.array([entry.rows[0][ROWS]]))[0])
        return round(total, 1)

    return column


def _loss(board: Board, worker: Any) -> float | None:
    losses = [mean_loss(entry.rows[0]) for entry in _running(board, worker)]
    known = [loss for loss in losses if loss is not None]
    return float(np.mean(known)) if known else None


def _staleness(board: Board, worker: Any) -> float:
    running = _running(board, worker)
    return float(np.mean([mean_staleness(entry.rows[0]) for entry in running] or [0.0]))


def _shard_bytes(board: Board, worker: Any) -> int:
    return sum(
        entry.nbytes for entry in board.shards() if entry.alive and entry.worker == worker.address
    )
