"""Workers that join while a fit runs, and whether rows move to workers that are idle.

A generation has the workers that there were when it began. What others would spare is seen from
the plan that would be made with them, and from the time that epochs have taken.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from dps.cluster.base import Cluster
from dps.training.history import EpochRecord
from dps.training.plan import Plan
from dps.training.stopping import StoppingRule

_log = logging.getLogger("dps")

#: Seconds between looks for workers that have joined.
_LOOK_EVERY = 2.0
#: Seconds that they must spare: a generation takes about one to begin,
_WORTH = 2.0
#: and so many bytes of rows, parameters and state take a second to move.
_MOVED = 1e8
#: What has moved is held twice: it may take this part of the memory of the workers that had it.
_ROOM = 0.25
#: Seconds that a worker which is asked for is to train: Dask's ``adaptive.target-duration``.
_TARGET = 5.0
#: Workers that a fit asks for at the most, beside those that it has.
_MOST_ASKED = 64


class Planning(Protocol):
    """Makes plans of a fit."""

    def __call__(self, threads: Mapping[str, int], moves: bool = False) -> Plan:
        """The plan with some workers and their threads; `moves`: rows go to all of them."""
        ...


class Joining:
    """Plans the generations of a fit, and looks for workers that have joined.

    Parameters
    ----------
    cluster : Cluster
    planned : Planning
    stopping : StoppingRule
        How many epochs may follow.
    row_bytes, state_bytes : float
        Bytes of a row, and of parameters and optimizer state.
    """

    def __init__(
        self,
        cluster: Cluster,
        planned: Planning,
        stopping: StoppingRule,
        row_bytes: float,
        state_bytes: float,
    ) -> None:
        self._cluster, self._planned, self._stopping = cluster, planned, stopping
        self._row_bytes, self._state_bytes = row_bytes, state_bytes
        self._slowest = 0.0  # of the plan at work, see `_slowest`
        self._pace = 0.0  # seconds of an epoch a row of these; 0: it is not known
        self._done = 0
        self._due = time.monotonic() + _LOOK_EVERY
        self._joined = False

    def plan(self) -> Plan:
        """Plan the next generation.

        Rows move to workers that have joined, and to idle ones if the fit has lost others, where
        that spares more than it takes.
        """
        threads = self._cluster.threads()
        plan = self._planned(threads)
        slowest = _slowest(plan, threads)
        if self._joined or 0 < self._slowest < slowest:
            moved = self._planned(threads, True)
            if self._spares(slowest, moved, threads) > 0:
                plan = moved
        self._slowest, self._joined = _slowest(plan, threads), False
        return plan

    def leaves(self, history: Sequence[EpochRecord]) -> bool:
        """Whether to end the generation, to be asked once it has closed an epoch."""
        now = time.monotonic()
        if now < self._due:
            return False
        self._due = now + _LOOK_EVERY
        self._pace, self._done = history[-1].seconds / self._slowest, len(history)
        threads = self._cluster.joined()
        if threads and self._spares(self._slowest, self._planned(threads, True), threads) > 0:
            _log.info("workers have joined, which the fit goes on with: there are %d", len(threads))
            self._joined = True
            self._cluster.wish(len(threads))  # to be kept between two generations
        else:
            self._cluster.wish(self._wanted())
        return self._joined

    def _ahead(self) -> int:
        """Epochs that are expected: as many as there have been, at most, if it may stop early."""
        left, rule = self._stopping.max_iter - self._done, self._stopping
        return left if rule.tol is None and not rule.finishes else min(self._done, left)

    def _spares(self, slowest: float, plan: Plan, threads: Mapping[str, int]) -> float:
        """Seconds that a plan spares, beside those that it must, over one with such a replica."""
        pieces = [piece for rank in plan.ranks for piece in rank.pieces if piece.moved]
        moved = sum(piece.rows for piece in pieces) * self._row_bytes
        spared = self._pace * (slowest - _slowest(plan, threads)) * self._ahead()
        spared -= _WORTH + (moved + self._state_bytes) / _MOVED
        if spared > 0 and moved:
            had = {self._cluster.holders[piece.partition] for piece in pieces}
            if 0 < _ROOM * len(had) * self._cluster.memory() < moved:
                return -math.inf
        return spared

    def _wanted(self) -> int:
        """Further workers, like those that there are, that the fit could use."""
        threads = dict(self._cluster.threads())
        total = self._pace * self._slowest * self._ahead() * len(threads)
        further = min(_MOST_ASKED, int(total / _TARGET) - len(threads))
        if further <= 0:
            return 0
        # No worker has such an address.
        new = dict.fromkeys(map(str, range(further)), max(threads.values()))
        plan = self._planned(threads | new, True)
        if self._spares(self._slowest, plan, threads | new) <= 0:
            return 0
        return len(new.keys() & {rank.worker for rank in plan.ranks})


def _slowest(plan: Plan, threads: Mapping[str, int]) -> float:
    """Rows of an epoch a thread, where there are most."""
    rows: dict[str, int] = {}
    ranks: dict[str, int] = {}
    for rank in plan.ranks:
        rows[rank.worker] = rows.get(rank.worker, 0) + rank.rows
        ranks[rank.worker] = ranks.get(rank.worker, 0) + 1
    return max(rows[worker] / min(ranks[worker], threads.get(worker, 1)) for worker in rows)
