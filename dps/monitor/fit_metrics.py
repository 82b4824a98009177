"""Metrics of whole fits for Prometheus, on the ``/metrics`` of Dask's scheduler.

Made of events alone, as they pass through the scheduler. It must not know who sends them; those
of replicas and shards are on the workers (``prometheus``). Nothing waits for it, and without
``prometheus_client`` on the scheduler there is nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from distributed import SchedulerPlugin

from dps.monitor.board import LINGER, MOST_ENDED
from dps.monitor.checking import is_sound
from dps.monitor.events import TOPIC

__all__ = ["FitMetrics", "MetricsPlugin", "install_metrics"]

NAME = "dps-metrics"
_LABELS = ("fit", "name", "mode")


class _Fit:
    """What is known of a fit."""

    def __init__(self, event: Mapping[str, Any]) -> None:
        self.labels = [event["fit"], event["name"], event["mode"]]
        self.values: dict[str, float] = {"epochs": 0, "rows": 0, "running": 1}
        self.slow: set[int] = set()
        self.ended: float | None = None


class FitMetrics:
    """Collects what events say of fits.

    A fit is shown for a while after its end, as replicas are on workers.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fits: dict[str, _Fit] = {}
        self._outcomes = {"converged": 0, "max_iter": 0, "interrupted": 0, "failed": 0}

    def take(self, event: Any) -> None:
        """Take in an event of the topic; what is none is left out."""
        if not is_sound(event):
            return
        kind = event["kind"]
        with self._lock:
            if kind == "started":
                self._forget()
                self._fits[event["fit"]] = _Fit(event)
            fit = self._fits.get(event["fit"])
            if fit is None:
                return
            if kind == "epochs" and event["epochs"]:
                last = event["epochs"][-1]
                fit.values["epochs"] = last["epoch"]
                fit.values["rows"] = last["epoch"] * last["rows"]
                fit.values["loss"] = last["loss"]
                if last["validation_loss"] is not None:
                    fit.values["validation_loss"] = last["validation_loss"]
            elif kind == "straggler":
                (fit.slow.add if event["slow"] else fit.slow.discard)(event["rank"])
            elif kind in ("stopped", "failed"):
                self._outcomes["failed" if kind == "failed" else event["reason"]] += 1
                fit.values["running"] = 0
                fit.slow.clear()
                fit.ended = time.monotonic()

    def _forget(self) -> None:
        ended = sorted(fit.ended for fit in self._fits.values() if fit.ended is not None)
        oldest = time.monotonic() - LINGER
        if len(ended) > MOST_ENDED:
            oldest = max(oldest, ended[-MOST_ENDED])
        self._fits = {
            name: fit
            for name, fit in self._fits.items()
            if fit.ended is None or fit.ended >= oldest
        }

    def describe(self) -> list[Any]:
        """Nothing is known before there is a fit."""
        return []

    def collect(self) -> Iterator[Any]:
        """All metrics of what runs, and of what has ended lately."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        with self._lock:
            self._forget()
            fits = [(fit.labels, dict(fit.values), len(fit.slow)) for fit in self._fits.values()]
            outcomes = dict(self._outcomes)
        ended = CounterMetricFamily("dps_fits", "Fits that have ended.", labels=["outcome"])
        for outcome, count in outcomes.items():
            ended.add_metric([outcome], count)
        slow = GaugeMetricFamily("dps_fit_stragglers", "Replicas that are slow.", labels=_LABELS)
        families = {
            "epochs": CounterMetricFamily("dps_fit_epochs", "Epochs closed.", labels=_LABELS),
            "rows": CounterMetricFamily("dps_fit_rows", "Rows of closed epochs.", labels=_LABELS),
            "running": GaugeMetricFamily("dps_fit_running", "1 until it ends.", labels=_LABELS),
            "loss": GaugeMetricFamily(
                "dps_fit_loss", "Mean training loss of the last closed epoch.", labels=_LABELS
            ),
            "validation_loss": GaugeMetricFamily(
                "dps_fit_validation_loss", "That on the rows held out.", labels=_LABELS
            ),
        }
        for labels, values, stragglers in fits:
            for name, value in values.items():
                families[name].add_metric(labels, value)
            slow.add_metric(labels, stragglers)
        yield from (ended, slow, *families.values())


class MetricsPlugin(SchedulerPlugin):  # type: ignore[misc]
    """Hands the events that pass through a scheduler on."""

    name = NAME

    def __init__(self, metrics: FitMetrics) -> None:
        self._metrics = metrics

    def log_event(self, topic: str, msg: Any) -> None:
        """Take in an event of ours."""
        if topic == TOPIC:
            self._metrics.take(msg)


# Of the process, as the registry is: several schedulers may live in it.
_served: list[FitMetrics] = []


def install_metrics(dask_scheduler: Any) -> None:
    """Have a scheduler serve the metrics of fits, if it can and does not yet."""
    if NAME in dask_scheduler.plugins:
        return
    try:
        from prometheus_client import REGISTRY
    except ImportError:
        return
    if not _served:
        _served.append(FitMetrics())
        REGISTRY.register(_served[0])
    dask_scheduler.add_plugin(MetricsPlugin(_served[0]), name=NAME)
