"""Plan the generations of a fit, and decide when joined or idle workers are worth a new one.

A generation keeps the workers that it began with. The time that other workers would save follows
from the plan with them and from the measured time of an epoch.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from dps.cluster.base import Cluster
from dps.training.epochs.records import EpochRecord
from dps.training.epochs.stopping import StoppingRule
from dps.training.plan.plan import Plan

_log = logging.getLogger("dps")

#: Seconds between looks for workers that have joined.
_LOOK_EVERY = 2.0
#: Seconds that a new generation must save; its start takes about one second.
_MIN_SAVED_SECONDS = 2.0
#: Bytes of rows, parameters and optimizer state that move per second.
_MOVED = 1e8
#: Moved rows are held twice. They may take this share of the memory of the workers that they come
#: from.
_ROOM = 0.25
#: Seconds of computing for which the fit asks for one more worker; as Dask's
#: ``adaptive.target-duration``.
_TARGET = 5.0
#: The largest number of additional workers to ask for.
_MOST_ASKED = 64


class Planning(Protocol):
    """Makes a plan for given workers."""

    def __call__(self, threads: Mapping[str, int], moves: bool = False) -> Plan:
        """Plan for workers with these threads; `moves` allows rows to move to idle workers."""


class Joining:
    """Plans generations and looks for joined workers.

    stopping: gives the number of epochs that may follow.
    row_bytes, state_bytes: bytes of a row, and of all parameters with optimizer state.
    """

    def __init__(
        self,
        cluster: Cluster,
        stopping: StoppingRule,
        row_bytes: float,
        state_bytes: float,
    ) -> None:
        self._cluster, self._stopping = cluster, stopping
        self._row_bytes, self._state_bytes = row_bytes, state_bytes
        self._slowest = 0.0  # largest number of rows per thread in the current plan, see `_slowest`
        self._pace = 0.0  # seconds of an epoch per row of the slowest replica; 0 until measured
        self._done = 0
        self._due = time.monotonic() + _LOOK_EVERY
        self._joined = False

    def plan(self, planned: Planning) -> Plan:
        """Plan the next generation.

        After workers have joined, or a loss has made the plan slower, rows move to idle workers if
        that saves time.
        """
        self._planned = planned
        threads = self._cluster.threads()
        plan = planned(threads)
        slowest = _slowest(plan, threads)
        if self._joined or 0 < self._slowest < slowest:
            moved = planned(threads, True)
            if self._spares(slowest, moved, threads) > 0:
                plan = moved
        self._slowest, self._joined = _slowest(plan, threads), False
        return plan

    def should_end(self, history: Sequence[EpochRecord]) -> bool:
        """True if the generation should end because of joined workers; called after each epoch."""
        now = time.monotonic()
        if now < self._due:
            return False
        self._due = now + _LOOK_EVERY
        self._pace, self._done = history[-1].seconds / self._slowest, len(history)
        threads = self._cluster.joined()
        if threads and self._spares(self._slowest, self._planned(threads, True), threads) > 0:
            _log.info("workers have joined, which the fit goes on with: there are %d", len(threads))
            self._joined = True
            self._cluster.wish(len(threads))  # the request stays open between two generations
        else:
            self._cluster.wish(self._wanted() if self._cluster.can_grow else 0)
        return self._joined

    def _ahead(self) -> int:
        """Expected epochs: all that are left, or at most as many as so far if it may stop early."""
        left, rule = self._stopping.max_iter - self._done, self._stopping
        return left if rule.tol is None and not rule.finishes else min(self._done, left)

    def _spares(self, slowest: float, plan: Plan, threads: Mapping[str, int]) -> float:
        """Seconds that a plan saves, after its costs, compared with one of this speed."""
        pieces = [piece for rank in plan.ranks for piece in rank.pieces if piece.moved]
        moved = sum(piece.rows for piece in pieces) * self._row_bytes
        spared = self._pace * (slowest - _slowest(plan, threads)) * self._ahead()
        spared -= _MIN_SAVED_SECONDS + (moved + self._state_bytes) / _MOVED
        if spared > 0 and moved:
            had = {self._cluster.holders[piece.partition] for piece in pieces}
            if 0 < _ROOM * len(had) * self._cluster.memory() < moved:
                return -math.inf
        return spared

    def _wanted(self) -> int:
        """Number of additional workers, like the current ones, that would save time."""
        threads = dict(self._cluster.threads())
        total = self._pace * self._slowest * self._ahead() * len(threads)
        further = min(_MOST_ASKED, int(total / _TARGET) - len(threads))
        if further <= 0:
            return 0
        new = dict.fromkeys(map(str, range(further)), max(threads.values()))
        plan = self._planned(threads | new, True)
        if self._spares(self._slowest, plan, threads | new) <= 0:
            return 0
        return len(new.keys() & {rank.worker for rank in plan.ranks})


def _slowest(plan: Plan, threads: Mapping[str, int]) -> float:
    """Rows per thread and epoch on the worker with the most."""
    rows: dict[str, int] = {}
    ranks: dict[str, int] = {}
    for rank in plan.ranks:
        rows[rank.worker] = rows.get(rank.worker, 0) + rank.rows
        ranks[rank.worker] = ranks.get(rank.worker, 0) + 1
    return max(rows[worker] / min(ranks[worker], threads.get(worker, 1)) for worker in rows)
