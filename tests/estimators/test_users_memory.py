"""Arrays that users' functions are given stay readable for as long as they are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from own_models import Line

import dps
from dps.optimizers import Constant, Optimizer, Schedule

kept: list[Any] = []


class Keeps(Line):
    """A model that keeps what it is given; it is large, so that memory goes back to the system."""

    def __init__(self, n_features: int, n_outputs: int) -> None:
        super().__init__(n_features, n_outputs)
        self.layout["much"] = (2_000_000,)

    def init(self, rng: Any) -> Any:
        return {**super().init(rng), "much": 1.0}

    def loss_gradient(self, params: Any, batch: Any, out: Any) -> float:
        kept.append((params["much"], out["much"], batch))
        loss: float = super().loss_gradient(params, batch, out)
        return loss


@dataclass(frozen=True)
class KeepsAll(Optimizer):
    """An optimizer that keeps what it is given."""

    state_rows: ClassVar[int] = 1

    @property
    def default_schedule(self) -> Schedule:
        return Constant(0.01)

    def update(self, params: Any, grad: Any, state: Any, **rates: Any) -> bool:
        kept.append((params, grad, state))
        params -= rates["lr"] * grad
        return True


@pytest.mark.parametrize(
    "mode", ["sync", "async", "allreduce", dps.AllReduce(period=2), dps.Sync(backups=1)], ids=str
)
def test_a_model_may_keep_its_arrays(mode: Any) -> None:
    X = np.random.default_rng(0).normal(size=(60, 3))
    try:
        dps.ModelRegressor(Keeps, mode=mode, max_iter=2, tol=None, n_replicas=2).fit(X, X[:, 0])
        assert len(kept) >= 4
        for values, gradient, batch in kept:
            assert np.isfinite(values.sum())
            assert np.isfinite(gradient.sum())
            assert len(batch.X) == batch.rows
    finally:
        kept.clear()


@pytest.mark.parametrize("mode", ["sync", "allreduce"])
def test_an_optimizer_may_keep_its_arrays(mode: str) -> None:
    X = np.random.default_rng(0).normal(size=(60, 3))
    try:
        dps.ModelRegressor(
            Keeps, mode=mode, max_iter=2, tol=None, n_replicas=2, optimizer=KeepsAll()
        ).fit(X, X[:, 0])
        arrays = [array for given in kept for array in given if isinstance(array, np.ndarray)]
        assert len(arrays) > 8
        assert all(np.isfinite(array.sum()) for array in arrays)
    finally:
        kept.clear()
