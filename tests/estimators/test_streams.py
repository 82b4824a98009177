"""Streams that begin with rows that say little, beside scikit-learn's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from cases import slow
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss, r2_score
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


@pytest.mark.parametrize(
    "name", ["one row", "one class", *slow("many rows", "rows one by one", "equal rows", "zeros")]
)
def test_classifiers_learn_as_scikit_learns_whatever_comes_first(name: str) -> None:
    peers = SGDClassifier(loss="log_loss", random_state=0), MLPClassifier(random_state=0)
    best = max(accuracy(peer, name) for peer in peers)
    for kind in (dps.LinearClassifier, dps.MLPClassifier, dps.FMClassifier):
        assert accuracy(kind(random_state=0), name) > best - 0.02, kind


@pytest.mark.parametrize("scale", [100.0, *slow(1e-3)])
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


def words(rows: int, seed: int) -> tuple[Any, Any]:
    """Sparse rows of rare words, of which some say much of the label."""
    rng = np.random.default_rng(seed)
    at = rng.zipf(1.3, (rows, 20)) % 20_000
    score = np.random.default_rng(0).normal(size=20_000)[at].sum(axis=1) / 2
    starts = np.arange(0, 20 * rows + 1, 20)
    X = scipy.sparse.csr_array((np.ones(20 * rows), at.ravel(), starts), (rows, 20_000))
    return X, (score + rng.logistic(size=rows) > 0).astype(int)


@pytest.mark.parametrize("kind", [dps.LinearClassifier, dps.FMClassifier])
def test_a_stream_in_small_parts_learns_as_one_in_large_ones(kind: Any) -> None:
    """The penalty is one over all rows so far, not over the rows of a call."""
    X, y = words(6000, 1)
    losses = []
    for rows in (2000, 100):
        model = kind(random_state=0)
        for first in range(0, 4000, rows):
            part = slice(first, first + rows)
            model.partial_fit(X[part], y[part], classes=[0, 1])
        assert model.alpha_ == pytest.approx(1 / 4000)
        losses.append(log_loss(y[4000:], model.predict_proba(X[4000:])))
    assert losses[1] < 1.05 * losses[0]


@pytest.mark.parametrize("kind", [dps.LinearClassifier, dps.FMClassifier, dps.MLPClassifier])
def test_a_stream_goes_on_from_a_fit_with_its_penalty(kind: Any, tmp_path: Path) -> None:
    X, y = words(6000, 1)
    small = {"max_iter": 8, "hidden_layer_sizes": (16,)}
    options = small if kind is dps.MLPClassifier else {}
    model = kind(random_state=0, **options).fit(X[:2000], y[:2000])
    found, before = model.alpha_, log_loss(y[4000:], model.predict_proba(X[4000:]))
    model.save(tmp_path / "model")
    again = dps.load(tmp_path / "model")
    for first in range(2000, 4000, 500):
        part = slice(first, first + 500)
        for each in (model, again):
            each.partial_fit(X[part], y[part])
    # A network's decay is 300 / rows, and its fit holds some rows out.
    found *= 0.85 if kind is dps.MLPClassifier else 1.0
    assert model.alpha_ == again.alpha_ == pytest.approx(found / 2)
    after = log_loss(y[4000:], model.predict_proba(X[4000:]))
    np.testing.assert_array_equal(model.predict_proba(X[:99]), again.predict_proba(X[:99]))
    assert after < before


def test_a_penalty_by_folds_is_kept_by_a_stream() -> None:
    model = dps.LinearClassifier(alpha="cv", random_state=0).fit(X[:200], Y[:200])
    found, standardized = model.alpha_, model.standardize_
    assert model.partial_fit(X[200:400], Y[200:400]).alpha_ == pytest.approx(found / 2)
    assert model.standardize_ == standardized
    with pytest.raises(ValueError, match="partial_fit sees a part"):
        dps.LinearClassifier(alpha="cv").partial_fit(X, Y, classes=[0, 1])
