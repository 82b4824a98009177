"""Workers that join while a fit runs, and whether they are worth a generation of their own.

A generation has the workers that there were when it began. What others would spare is seen from
the plan that would be made with them: rows must be able to move to them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from dps.cluster.base import Cluster
from dps.training.history import EpochRecord
from dps.training.plan import Plan

_log = logging.getLogger("dps")

#: Seconds between looks for workers that have joined.
_LOOK_EVERY = 2.0
#: Seconds that they must spare: a generation takes about one to begin, and rows take some to move.
_WORTH = 5.0


class Joining:
    """Looks for workers that have joined.

    Parameters
    ----------
    cluster : Cluster
    planned : callable
        Makes the plan with some workers and their threads.
    plan : Plan
        Of the generation at work.
    epochs : int
        The most that the fit may have.
    """

    def __init__(
        self,
        cluster: Cluster,
        planned: Callable[[Mapping[str, int]], Plan],
        plan: Plan,
        epochs: int,
    ) -> None:
        self._cluster = cluster
        self._planned = planned
        self._slowest = _slowest(plan, cluster.threads())
        self._epochs = epochs
        self._due = time.monotonic() + _LOOK_EVERY
        self._spared: dict[tuple[str, ...], float] = {}

    def leaves(self, history: Sequence[EpochRecord]) -> bool:
        """Whether to end the generation, to be asked once an epoch has been closed.

        Nobody knows how long a fit will go on that may stop early: as long as it has, at most.
        """
        now = time.monotonic()
        if now < self._due:
            return False
        self._due = now + _LOOK_EVERY
        threads = self._cluster.joined()
        if not threads:
            return False
        workers = tuple(sorted(threads))
        if workers not in self._spared:
            slowest = _slowest(self._planned(threads), threads)
            self._spared[workers] = 1.0 - slowest / self._slowest
        ahead = min(len(history), self._epochs - len(history)) * history[-1].seconds
        if not self._spared[workers] * ahead >= _WORTH:  # also where it is not known
            return False
        _log.info("workers have joined, which the fit goes on with: there are %d", len(threads))
        return True


def _slowest(plan: Plan, threads: Mapping[str, int]) -> float:
    """Rows of an epoch a thread, where there are most."""
    rows: dict[str, int] = {}
    ranks: dict[str, int] = {}
    for rank in plan.ranks:
        rows[rank.worker] = rows.get(rank.worker, 0) + rank.rows
        ranks[rank.worker] = ranks.get(rank.worker, 0) + 1
    return max(rows[worker] / min(ranks[worker], threads.get(worker, 1)) for worker in rows)
