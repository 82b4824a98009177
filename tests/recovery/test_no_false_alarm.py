"""Progress is never blamed, wherever others wait; a stuck replica is named in time."""

from __future__ import annotations

import itertools
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import pairs
from conditions import until
from configure import configure, placed
from distributed import Client, get_worker
from own_models import Line
from uneven import Slow, uneven

import dps
from dps.errors import StalledError

MODES = {"sync": dps.Sync, "async": dps.Async, "allreduce": dps.AllReduce}


def fit(client: Client, workers: Any, late: int, mode: Any, **options: Any) -> Any:
    """A pass takes the slow rank 1.6 seconds, and no one may be silent for longer than 0.8."""
    X, y = uneven(client, workers, late)
    configure(timeout=0.8, rebalance=False)
    model = dps.LinearClassifier(
        mode=mode, client=client, optimizer="lbfgs", loss=Slow(0.2), max_iter=1,
        tol=None, **placed(options),
    )  # fmt: skip
    return model.fit(X, y)


def check(client: Client, mode: str, access: str, n_shards: int, late: int) -> None:
    made = MODES[mode](access=access)
    model = fit(client, sorted(client.nthreads()), late, made, n_shards=n_shards)
    assert model.n_iter_ == 1
    assert sorted(rank.rows for rank in model.plan_.ranks) == [50, 400]


@pytest.mark.parametrize("mode", MODES)
def test_a_slow_rank_is_waited_for_at_each_of_two_shards(mode: str, client: Client) -> None:
    check(client, mode, "stream", 2, 1)


@pytest.mark.slow
@pairs(mode=MODES, access=["stream", "auto"], n_shards=[1, 3])
def test_a_slow_rank_is_waited_for_at_any_shards(
    mode: str, access: str, n_shards: int, client: Client
) -> None:
    check(client, mode, access, n_shards, 0)


class Hangs(Line):
    """A model that does not return before it is told to."""

    go_on, calls = threading.Event(), itertools.count()

    def loss_gradient(self, params: Any, batch: Any, out: Any) -> float:
        if next(self.calls) >= 6:  # in the fourth epoch
            self.go_on.wait(60)
        loss: float = super().loss_gradient(params, batch, out)
        return loss


class HangsHere(Line):
    """A model that hangs on one worker while a file is not there."""

    def __init__(self, n_features: int, n_outputs: int, worker: str, ended: Path) -> None:
        super().__init__(n_features, n_outputs)
        self.worker, self.ended = worker, ended

    def loss_gradient(self, params: Any, batch: Any, out: Any) -> float:
        if get_worker().address == self.worker:
            until(self.ended.exists, "the test ends it")
        loss: float = super().loss_gradient(params, batch, out)
        return loss


@pytest.mark.parametrize("mode", MODES)
def test_a_model_that_hangs_on_a_worker_ends_the_fit_in_time(
    mode: str, client: Client, tmp_path: Path
) -> None:
    X, y = uneven(client, workers := sorted(client.nthreads()), 0)
    options = {"client": client, "mode": mode, "n_replicas": 2, "max_iter": 2, "tol": None}
    make = partial(HangsHere, worker=workers[1], ended=tmp_path)
    dps.ModelRegressor(make, **options).fit(X, y)  # imports, and asks for versions
    make = partial(HangsHere, worker=workers[1], ended=tmp_path / "ended")
    before = time.monotonic()
    configure(timeout=1.0)
    with pytest.raises(StalledError, match=workers[1]):
        dps.ModelRegressor(make, **options).fit(X, y)
    assert time.monotonic() - before < 20  # and not for as long as it hangs
    (tmp_path / "ended").touch()


def test_a_model_that_hangs_ends_the_fit_in_time_and_leaves_a_thread(caplog: Any) -> None:
    X = np.random.default_rng(0).normal(size=(40, 3))
    before = time.monotonic()
    configure(timeout=1.0)
    model = dps.ModelRegressor(Hangs, n_replicas=2, batch_size=40, tol=None, random_state=0)
    try:
        with pytest.raises(StalledError, match="no progress for 1 s"):
            model.fit(X, X[:, 0])
        assert time.monotonic() - before < 20
        assert model.n_iter_ == len(model.history_) == 3
        assert np.isfinite(model.predict(X)).all()
        assert "dps-replica-0, dps-replica-1 did not end" in caplog.text
    finally:
        Hangs.go_on.set()
        for thread in threading.enumerate():
            if thread.name.startswith("dps-replica"):
                thread.join(30)
