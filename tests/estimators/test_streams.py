"""Streams that begin with rows that say little, beside scikit-learn's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import r2_score
from sklearn.neural_network import MLPClassifier

import dps

RNG = np.random.default_rng(3)
X = RNG.normal(size=(2000, 4))
RAW = X[:, 0] - 0.5 * X[:, 1] + 0.3 * RNG.normal(size=2000)
Y = (RAW > 0).astype(int)
BATCHES = [slice(first, first + 30) for first in range(600, 1200, 30)]
#: The first rows of a stream, by their numbers or as they are.
BEGINNINGS: dict[str, Any] = {
    "many rows": (X[:30], Y[:30]),
    "one row": (X[:1], Y[:1]),
    "rows one by one": None,
    "equal rows": (np.ones((10, 4)), Y[:10]),
    "zeros": (np.zeros((10, 4)), Y[:10]),
    "one class": (X[Y == 1][:50], Y[Y == 1][:50]),
}


def accuracy(model: Any, name: str) -> float:
    """After a beginning and twenty batches of thirty rows."""
    if BEGINNINGS[name] is None:
        for row in range(4):
            model.partial_fit(X[row : row + 1], Y[row : row + 1], classes=[0, 1])
    else:
        model.partial_fit(*BEGINNINGS[name], classes=[0, 1])
    for rows in BATCHES:
        model.partial_fit(X[rows], Y[rows])
    return float(model.score(X, Y))


@pytest.mark.parametrize("name", BEGINNINGS)
def test_classifiers_learn_as_scikit_learns_whatever_comes_first(name: str) -> None:
    peers = SGDClassifier(loss="log_loss", random_state=0), MLPClassifier(random_state=0)
    best = max(accuracy(peer, name) for peer in peers)
    for kind in (dps.LinearClassifier, dps.MLPClassifier, dps.FMClassifier):
        assert accuracy(kind(random_state=0), name) > best - 0.02, kind


@pytest.mark.parametrize("scale", [1e-3, 100.0])
def test_regressors_learn_though_y_does_not_vary_at_first(scale: float, tmp_path: Path) -> None:
    y = scale * (RAW + 10)
    for kind in (dps.LinearRegressor, dps.MLPRegressor, dps.FMRegressor):
        usual = kind(random_state=0).partial_fit(X[:30], y[:30])
        for first in (X[:1], y[:1]), (X[:10], np.full(10, y[0])):
            model = kind(random_state=0).partial_fit(*first)
            model.save(tmp_path / "model")  # so that a stream goes on tomorrow
            model = dps.load(tmp_path / "model")
            for rows in BATCHES:
                model.partial_fit(X[rows], y[rows])
            if first[1].size == 1:
                for rows in BATCHES:
                    usual.partial_fit(X[rows], y[rows])
            assert r2_score(y, model.predict(X)) > r2_score(y, usual.predict(X)) - 0.05, kind


def test_labels_and_frames_may_begin_alike() -> None:
    labels = np.c_[Y, RAW > 0.5].astype(int)
    one = dps.LinearClassifier(random_state=0).partial_fit(X[:1], labels[:1], classes=[0, 1])
    frame = pd.DataFrame(X, columns=list("abcd")).assign(e=np.where(X[:, 2] > 0, "p", "q"))
    other = dps.MLPClassifier(random_state=0).partial_fit(frame[:1], Y[:1], classes=[0, 1])
    for rows in BATCHES:
        one.partial_fit(X[rows], labels[rows])
        other.partial_fit(frame[rows], Y[rows])
    assert (one.predict(X) == labels).mean() > 0.85
    assert other.score(frame, Y) > 0.85


def test_a_model_of_ones_own_goes_on_though_y_does_not_vary() -> None:
    """It may learn from X alone."""

    class Means:
        layout: ClassVar = {"mean": (4,)}

        def init(self, rng: Any) -> dict[str, float]:
            return {"mean": 0.0}

        def raw(self, params: Any, batch: Any) -> Any:
            return np.zeros((batch.rows, 1))

        def loss_gradient(self, params: Any, batch: Any, out: Any) -> float:
            away = params["mean"] - batch.X
            out["mean"] += batch.weighted(away).sum(axis=0)
            return float(batch.weighted(away**2).sum() / 2)

    model = dps.ModelRegressor(Means(), optimizer="sgd", learning_rate=0.1, batch_size=50)
    far = []
    for _ in range(3):
        model.partial_fit(X[:50] + 1, np.zeros(50))
        far.append(np.abs(model.params_["mean"] - X[:50].mean(axis=0) - 1).max())
    assert far[2] < far[1] < far[0]
