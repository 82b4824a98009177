"""Metrics of fits for Prometheus, on the ``/metrics`` of Dask's scheduler.

Names and labels are in docs/reference/metrics.md. Dask serves the registry of the process on the
event loop that receives events, so metrics that are registered here appear there. Without
``prometheus_client`` nothing happens.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import time
from typing import Any

from dps.monitor.events import bucket_floor
from dps.monitor.scheduler.store import Fit, FitStore

#: Seconds for which an ended fit is reported: Prometheus scrapes every 15 to 60 seconds.
LINGER = 90.0
#: Bounds of the histogram of staleness, 0, 1, 3, 7 and so on; each is a series.
_BOUNDS = 12
#: Name, help, and a function that returns the value (None: no value); names of counters end in
#: "_total".
Metric = tuple[str, str, Callable[[Any], float | None]]

_OF_FITS: tuple[Metric, ...] = (
    ("dps_fit_epochs_total", "Epochs closed.", lambda fit: fit.epochs),
    ("dps_fit_rows_total", "Rows of closed epochs.", lambda fit: fit.rows),
    ("dps_fit_running", "1 until it ends.", lambda fit: int(fit.running)),
    ("dps_fit_stragglers", "Replicas that are slow.", lambda f: f.running * len(f.stragglers)),
    ("dps_fit_loss", "Mean training loss of the last closed epoch.", lambda fit: fit.loss),
    ("dps_fit_validation_loss", "That on the rows held out.", lambda fit: fit.validation_loss),
)
_OF_REPLICAS: tuple[Metric, ...] = (
    ("dps_replica_rows_total", "Training rows seen.", lambda replica: replica["rows"]),
    ("dps_replica_steps_total", "Gradients handed over.", lambda replica: replica["step"]),
    ("dps_replica_epoch", "The epoch at work, from 1.", lambda replica: replica["epoch"]),
    ("dps_replica_loss", "Mean training loss of that epoch.", lambda replica: replica["loss"]),
)
_OF_SHARDS: tuple[Metric, ...] = (
    ("dps_shard_pushes_total", "Gradients received.", lambda shard: shard["pushes"]),
    ("dps_shard_received_bytes_total", "Bytes of them.", lambda shard: shard["bytes"]),
    (
        "dps_shard_apply_seconds_total",
        "Time spent on the shard's memory: copying, summing, applying.",
        lambda shard: shard["apply_seconds"],
    ),
    ("dps_shard_version", "Updates applied.", lambda shard: shard["version"]),
    ("dps_shard_memory_bytes", "Memory of the shard.", lambda shard: shard["nbytes"]),
)


class FitCollector:
    """Metrics for Prometheus of the fits of all schedulers in this process."""

    def __init__(self) -> None:
        self.stores: weakref.WeakSet[FitStore] = weakref.WeakSet()

    def describe(self) -> list[Any]:
        """Return nothing: metrics are known only once there is a fit."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield all metrics of running and recently ended fits."""
        from prometheus_client.core import CounterMetricFamily

        stores = list(self.stores)
        ended = CounterMetricFamily("dps_fits", "Fits that have ended.", labels=["outcome"])
        for outcome in ("converged", "max_iter", "interrupted", "failed"):
            ended.add_metric([outcome], sum(store.outcomes[outcome] for store in stores))
        yield ended
        fits = [fit for store in stores for fit in store.fits if _shown(fit)]
        named = [([fit.id, fit.started["name"], fit.started["mode"]], fit) for fit in fits]
        replicas = [([f.id, str(rank)], each) for f in fits for rank, each in f.replicas.items()]
        shards = [([f.id, str(number)], each) for f in fits for number, each in f.shards.items()]
        yield from _families(_OF_FITS, ("fit", "name", "mode"), named)
        yield from _families(_OF_REPLICAS, ("fit", "replica"), replicas)
        yield from _families(_OF_SHARDS, ("fit", "shard"), shards)
        yield from _of_time(replicas)
        yield _of_pushes(fits)


def _shown(fit: Fit) -> bool:
    return bool(fit.started) and (fit.running or time() - fit.heard < LINGER)


def _families(
    metrics: Iterable[Metric], labels: Sequence[str], values: Sequence[tuple[list[str], Any]]
) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for name, what, value_of in metrics:
        kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        family = kind(name, what, labels=labels)
        for named, each in values:
            if (value := value_of(each)) is not None:
                family.add_metric(named, value)
        yield family


def _of_time(replicas: Sequence[tuple[list[str], Any]]) -> Iterator[Any]:
    """Return metrics of the replicas' time."""
    from prometheus_client.core import CounterMetricFamily

    spent = CounterMetricFamily(
        "dps_replica_seconds", "Where a replica's time went.", labels=("fit", "replica", "phase")
    )
    for labels, replica in replicas:
        for phase in ("load", "compute", "pull", "push", "wait"):
            spent.add_metric([*labels, phase], replica[phase])
    yield spent


def _of_pushes(fits: Sequence[Fit]) -> Any:
    """Return the metric of the staleness of pushes to the first shard."""
    from prometheus_client.core import HistogramMetricFamily

    stale = HistogramMetricFamily(
        "dps_push_staleness",
        "Updates that the parameters behind a push to the first shard lacked.",
        labels=("fit", "replica"),
    )
    for fit in fits:
        histograms = fit.shards[0]["staleness"] if 0 in fit.shards else ()
        for rank, counts in enumerate(histograms):
            pushes = sum(counts)
            if not pushes or rank not in fit.replicas:
                continue
            bounds = [
                (str(float(bucket_floor(n + 1) - 1)), sum(counts[: n + 1])) for n in range(_BOUNDS)
            ]
            total = fit.replicas[rank]["staleness_mean"] * pushes
            stale.add_metric([fit.id, str(rank)], [*bounds, ("+Inf", pushes)], total)
    return stale


# One per process, like the registry; a process may run several schedulers.
_collector: FitCollector | None = None


def serve_metrics(store: FitStore) -> None:
    """Serve a store's metrics from the registry of the process, if there is one."""
    global _collector
    if _collector is None:
        try:
            from prometheus_client import REGISTRY
        except ImportError:
            return
        _collector = FitCollector()
        REGISTRY.register(_collector)
    _collector.stores.add(store)
