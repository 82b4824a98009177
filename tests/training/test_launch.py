"""The size of what a fit sends to Dask, computed for more replicas than fit on this machine."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dps import MLPClassifier
from dps.cluster.dask.replicas import own_of
from dps.training.plan.plan import Located, make_plan
from dps.training.run import trainer
from dps.training.run.launch import Launch

RANKS, HOSTS, PARTITIONS, ROWS = 1_000, 100, 10_000, 1_000


@dataclass
class ManyHosts:
    """As much of a cluster as a launch asks for; each worker has a host of its own."""

    watched: bool = True
    timed: bool = True

    def hosts(self, workers: Sequence[str]) -> Sequence[str]:
        return workers

    def memory(self) -> float:
        return 0.0


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Launch:
    """A small fit's job on many hosts."""
    of, begun = Launch.of, []

    def noting(job: Any, plan: Any, summary: Any, held_out: Any, cluster: Any) -> Launch:
        begun.append((job, summary, held_out))
        return of(job, plan, summary, held_out, cluster)

    monkeypatch.setattr(trainer.Launch, "of", noting)
    X = np.random.default_rng(0).normal(size=(2000, 50))
    MLPClassifier(max_iter=2, tol=None).fit(X, X[:, 0] > 0)
    job, summary, held_out = begun[0]
    workers = [f"tcp://10.0.0.{number}:40000" for number in range(HOSTS)]
    holders = [workers[number % HOSTS] for number in range(PARTITIONS)]
    data = Located(
        [ROWS] * PARTITIONS, holders, dict.fromkeys(workers, RANKS // HOSTS), ROWS * PARTITIONS * 50
    )
    plan = make_plan(
        job.mode, data, count=lambda piece: piece.stop - piece.start, batch_size=64 * RANKS,
        n_replicas=RANKS, rebalance=False, mixed=True,
    )  # fmt: skip
    return of(job, plan, summary, held_out, ManyHosts())  # type: ignore[arg-type]


def test_a_thousand_replicas_send_little_through_the_scheduler(launched: Launch) -> None:
    specs = launched.ranks(ROWS)
    assert len(specs) == RANKS
    assert len(launched.hosts) == HOSTS
    own = sum(len(pickle.dumps(own_of(spec, specs[0]))) for spec in specs)
    shards = sum(
        len(pickle.dumps(made.shard)) for made in (*launched.shards(), *launched.summing())
    )
    # A key of each partition that a replica reads goes along.
    keys = sum(len(spec.pieces) for spec in specs) * 100
    assert own + shards + keys + len(pickle.dumps(specs[0])) < 10e6
