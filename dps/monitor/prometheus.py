"""Metrics of replicas and shards for Prometheus, on the ``/metrics`` of Dask's workers.

Dask serves the registry of the process; what is registered here appears there. Where
``prometheus_client`` is not installed there are none, and Dask says so itself. Names and labels
are those of docs/monitoring.md. It must not know how counts come about.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from dps._runtime.activity import (
    APPLY,
    BYTES,
    EPOCH,
    PUSHES,
    ROWS,
    STALE_SUM,
    STALENESS,
    STEPS,
)
from dps.monitor.board import Board, ReplicaEntry, ShardEntry
from dps.monitor.counters import mean_loss, seconds
from dps.monitor.events import bucket_floor

__all__ = ["BoardCollector", "serve_metrics"]

_REPLICA, _SHARD = ("fit", "replica"), ("fit", "shard")
#: Bounds of the histogram of staleness, 0, 1, 3, 7 and so on: each is a series of its own.
_BOUNDS = 12
_lock = threading.Lock()
_served = False


def serve_metrics(board: Board) -> None:
    """Have the process' registry tell of a board, once; nothing where there is no registry."""
    global _served
    with _lock:
        if _served:
            return
        _served = True
        try:
            from prometheus_client import REGISTRY
        except ImportError:
            return
        REGISTRY.register(BoardCollector(board))


class BoardCollector:
    """What Prometheus asks."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def describe(self) -> list[Any]:
        """Nothing is known before there is a fit."""
        return []

    def collect(self) -> Iterator[Any]:
        """All metrics of what runs, and of what has ended lately."""
        yield from _of_replicas(self._board.replicas())
        yield from _of_shards(self._board.shards())


def _of_replicas(entries: list[ReplicaEntry]) -> Iterator[Any]:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    rows = CounterMetricFamily("dps_replica_rows", "Training rows seen.", labels=_REPLICA)
    steps = CounterMetricFamily("dps_replica_steps", "Gradients handed over.", labels=_REPLICA)
    spent = CounterMetricFamily(
        "dps_replica_seconds", "Where a replica's time went.", labels=(*_REPLICA, "phase")
    )
    epoch = GaugeMetricFamily("dps_replica_epoch", "The epoch at work, from 1.", labels=_REPLICA)
    loss = GaugeMetricFamily(
        "dps_replica_loss", "Mean training loss of the epoch so far.", labels=_REPLICA
    )
    stale = HistogramMetricFamily(
        "dps_push_staleness",
        "Updates that the parameters behind a push lacked.",
        labels=(*_REPLICA, "shard"),
    )
    for entry in entries:
        first, labels = entry.rows[0], [entry.fit, str(entry.rank)]
        rows.add_metric(labels, int(first[ROWS]))
        steps.add_metric(labels, int(first[STEPS]))
        epoch.add_metric(labels, int(first[EPOCH]))
        for phase, value in seconds(first).items():
            spent.add_metric([*labels, phase], value)
        mean = mean_loss(first)
        if mean is not None:
            loss.add_metric(labels, mean)
        for shard, row in enumerate(entry.rows):
            counts = row[STALENESS:].cumsum().tolist()
            if counts[-1]:
                bounds = [(str(float(bucket_floor(n + 1) - 1)), counts[n]) for n in range(_BOUNDS)]
                buckets = [*bounds, ("+Inf", counts[-1])]
                stale.add_metric([*labels, str(shard)], buckets, int(row[STALE_SUM]))
    yield from (rows, steps, spent, epoch, loss, stale)


def _of_shards(entries: list[ShardEntry]) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    counters = {
        PUSHES: CounterMetricFamily("dps_shard_pushes", "Gradients received.", labels=_SHARD),
        BYTES: CounterMetricFamily(
            "dps_shard_received_bytes", "Bytes of gradients received.", labels=_SHARD
        ),
        APPLY: CounterMetricFamily(
            "dps_shard_apply_seconds",
            "Time spent on the shard's memory: copying, summing, applying.",
            labels=_SHARD,
        ),
    }
    version = GaugeMetricFamily("dps_shard_version", "Updates applied.", labels=_SHARD)
    memory = GaugeMetricFamily("dps_shard_memory_bytes", "Memory of the shard.", labels=_SHARD)
    for entry in entries:
        counts, updates = entry.counts()
        labels = [entry.fit, str(entry.shard)]
        for word, family in counters.items():
            total = int(counts[:, word].sum())
            family.add_metric(labels, total / 1e9 if word == APPLY else total)
        version.add_metric(labels, updates)
        memory.add_metric(labels, entry.nbytes if entry.alive else 0)
    yield from (*counters.values(), version, memory)
