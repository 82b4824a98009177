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
from dps.monitor.reading import Pace, mean_loss, mean_staleness

__all__ = ["NAMES", "hide_columns", "show_columns"]

NAMES = ("dps rows/s", "dps loss", "dps staleness", "dps shard bytes")


def show_columns(worker: Any, board: Board) -> None:
    """Have a worker tell of what is on it, if it does not yet."""
    if NAMES[0] not in worker.metrics:
        columns = (_rows_per_second(board), _loss, _staleness, _shard_bytes)
        for name, column in zip(NAMES, columns, strict=True):
            worker.metrics[name] = partial(column, board)


def hide_columns(worker: Any, board: Board) -> None:
    """Have it stop, if nothing is left on it."""
    entries: list[Entry] = [*board.replicas(), *board.shards()]
    if not any(entry.ended is None and entry.worker == worker.address for entry in entries):
        for name in NAMES:
            worker.metrics.pop(name, None)


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
