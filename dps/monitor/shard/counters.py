"""The figures of events, from the counters in a shard's window.

Counters are read while ranks write them: one may be newer than another, but each is intact.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps._runtime.shared.activity import (
    APPLY,
    BYTES,
    COMPUTE,
    EPOCH,
    EPOCH_ROWS,
    LEAD_MAX,
    LOAD,
    LOSS,
    PULL,
    PUSH,
    PUSHES,
    ROWS,
    STALE_MAX,
    STALE_SUM,
    STALENESS,
    STEPS,
    WAIT,
)
from dps.monitor.events import ReplicaColumns
from dps.monitor.shard.stragglers import Moment
from dps.server.group.window import Field, Window

#: Seconds for which a rate is kept without progress: a step may take that long.
_HELD = 5.0
#: Seconds that are too short for a rate.
_SHORTEST = 0.1


class Pace:
    """Rates of growth of counters.

    A counter of steps stands still during a step. Its rate is then the last one, until it has stood
    still for `_HELD` seconds and for three times as long as the last growth took; then it is 0.

    Examples
    --------
    >>> pace = Pace(1)
    >>> [float(pace.of(now, np.array([count]))[0]) for now, count in [(1, 10), (2, 30), (3, 30)]]
    [10.0, 20.0, 20.0]
    """

    def __init__(self, n: int) -> None:
        self._moved = np.zeros(n)  # time of each counter's last growth
        self._counts = np.zeros(n)
        self._paces = np.zeros(n)
        self._took = np.zeros(n)

    def of(self, now: float, counts: np.ndarray) -> NDArray[np.float64]:
        """Return the growth per second of each counter at the time `now`, which increases."""
        known = (self._paces > 0) & (now - self._moved < _SHORTEST)
        moved = (counts != self._counts) & ~known
        took = np.maximum(now - self._moved, 1e-9)
        self._paces = np.where(moved, (counts - self._counts) / took, self._paces)
        self._took = np.where(moved, took, self._took)
        self._moved = np.where(moved, now, self._moved)
        self._counts = np.where(moved, counts, self._counts)
        still = now - self._moved > np.maximum(_HELD, 3 * self._took)
        return np.where(still, 0.0, self._paces)


class CounterReader:
    """Reads one shard's window."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._nbytes = window.nbytes + window.store.nbytes
        self._rows = Pace(window.spec.n_ranks)
        self._load = Pace(2)

    def replicas(self, now: float) -> ReplicaColumns:
        """Return the figures of all replicas, `now` seconds after the start."""
        rows = self._window.activity.copy()
        paces = self._rows.of(now, rows[:, ROWS])
        ages = rows[:, [STALE_SUM, STALE_MAX, LEAD_MAX]].any()
        spent = seconds(rows)
        return ReplicaColumns(
            epoch=rows[:, EPOCH].tolist(),
            step=rows[:, STEPS].tolist(),
            rows=rows[:, ROWS].tolist(),
            epoch_rows=rows[:, EPOCH_ROWS].tolist(),
            rows_per_second=paces.round(1).tolist(),
            loss=[mean_loss(row) for row in rows],
            load=spent["load"].tolist(),
            compute=spent["compute"].tolist(),
            pull=spent["pull"].tolist(),
            push=spent["push"].tolist(),
            wait=spent["wait"].tolist(),
            staleness_mean=[mean_staleness(row) for row in rows] if ages else [],
            staleness_max=rows[:, STALE_MAX].astype(float).tolist() if ages else [],
            lead_max=rows[:, LEAD_MAX].tolist() if ages else [],
        )

    def shard(self, now: float, *, whole: bool) -> dict[str, Any]:
        """Return the fields of a shard's event, `now` seconds after the start.

        whole: whether fields with an item per rank are filled.
        """
        rows = self._window.activity.copy()
        pushes, nbytes, apply = (int(rows[:, word].sum()) for word in (PUSHES, BYTES, APPLY))
        paces = self._load.of(now, np.array([pushes, nbytes]))
        return {
            "version": self._window.store.version,
            "pushes": pushes,
            "pushes_per_second": round(float(paces[0]), 1),
            "bytes": nbytes,
            "bytes_per_second": round(float(paces[1]), 1),
            "apply_seconds": apply / 1e9,
            "nbytes": self._nbytes,
            "staleness": histograms(rows) if whole else [],
        }

    def moments(self) -> list[Moment]:
        """Return the progress of each replica for the rule that finds stragglers."""
        rows = self._window.activity.copy()
        busy = rows[:, [LOAD, COMPUTE, PULL, PUSH]].sum(axis=1) / 1e9
        load = self._window.words.rank_load
        return [
            Moment(int(row[ROWS]), int(row[STEPS]), float(busy[rank]), load(rank, Field.ARRIVED))
            for rank, row in enumerate(rows)
        ]


def mean_loss(row: NDArray[np.int64]) -> float | None:
    """Return the mean loss of the epoch so far; None before its first step."""
    if not row[EPOCH_ROWS]:
        return None
    return float(row[LOSS : LOSS + 1].view(np.float64)[0] / row[EPOCH_ROWS])


def mean_staleness(row: NDArray[np.int64]) -> float:
    """Return the mean staleness of a rank's pushes to a shard."""
    return float(row[STALE_SUM] / max(1, row[STALENESS:].sum()))


def histograms(rows: NDArray[np.int64]) -> list[list[int]]:
    """Return each rank's histogram of staleness without trailing zeros; [] if all are 0."""
    counts = rows[:, STALENESS:]
    if not counts.any():
        return []
    return [np.trim_zeros(row, "b").tolist() for row in counts]


def seconds(rows: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
    """Return the time by phase, of one rank or several."""
    phases = {"load": LOAD, "compute": COMPUTE, "pull": PULL, "push": PUSH, "wait": WAIT}
    return {name: np.round(rows[..., phase] / 1e9, 6) for name, phase in phases.items()}
