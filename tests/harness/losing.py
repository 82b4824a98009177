"""Fits that lose workers at a known point: what is trained, who is killed, and when."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dps
from dps.losses import LogLoss
from dps.training.run import supervise
from dps.training.run.recovery import Recovery
from dps.training.run.supervise import Watcher

ROWS = 4000


def rows() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, 10))
    return X, (X @ rng.normal(size=10) + rng.logistic(size=ROWS) > 0).astype(int)


def kill(client: Client, address: str) -> None:
    os.kill(client.run(os.getpid, workers=[address])[address], signal.SIGKILL)


def killing_after(
    monkeypatch: pytest.MonkeyPatch, epochs: int, strike: Callable[[], None], steps: int = 0
) -> list[Any]:
    """Have something done once a fit has closed some epochs, and has a snapshot after some steps.

    What the fit has lost then.
    """
    fetch, after = Watcher._fetch, Recovery.after
    losses: list[Any] = []
    struck: list[bool] = []

    def fetched(self: Watcher) -> bool:
        ends = fetch(self)
        within = self.progress.within
        further = steps == 0 or (within is not None and within.steps >= steps)
        runs = not (self.progress.history and self.progress.history[-1].last)
        if self.progress.closed >= epochs and further and runs and not struck:
            struck.append(True)
            strike()
        return ends

    def recovered(self: Recovery, *args: Any) -> Any:
        found = after(self, *args)
        losses[:] = self.losses
        return found

    monkeypatch.setattr(Watcher, "_fetch", fetched)
    monkeypatch.setattr(Recovery, "after", recovered)
    for pause in ("_TICK", "_CHECK_EVERY"):  # of fits that take less than a second
        monkeypatch.setattr(supervise, pause, 0.02)
    return losses


def slow_loss(seconds: float = 0.004) -> LogLoss:
    """A loss that takes its time; made in a function, so that it is pickled by value."""

    @dataclass(frozen=True)
    class Slow(LogLoss):
        def evaluate(self, y: Any, raw: Any, weight: Any, out: Any) -> float:
            time.sleep(seconds)
            return LogLoss.evaluate(self, y, raw, weight, out)

    return Slow()


def classifier(client: Client, **options: Any) -> dps.LinearClassifier:
    made = {"optimizer": "adam", "max_iter": 8, "tol": None, "batch_size": 500, "verbose": 0}
    made |= {"random_state": 0, "loss": slow_loss()}
    return dps.LinearClassifier(client=client, **(made | options))


def assert_exact(model: Any, n_rows: int = ROWS) -> None:
    epochs = model.max_iter
    assert [record["epoch"] for record in model.history_] == list(range(1, epochs + 1))
    assert {record["rows"] for record in model.history_} == {n_rows}
