"""A row may have several labels: y has a column of 0 and 1 for each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import sklearn.metrics
import sklearn.neural_network
from configure import configure
from distributed import Client
from hypothesis import given, strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from own_models import Softmax

import dps
from dps.losses.classification import MarginLoss, Multilabel
from dps.losses.names import LOSSES
from dps.metrics import RowScore
from dps.model_selection import GridSearchCV

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(800, 6))
Y = (X @ RNG.normal(size=(6, 3)) + RNG.logistic(size=(800, 3)) > [-1.0, 0.0, 1.0]).astype(int)
WEIGHT = RNG.uniform(0.5, 2, len(X))
EXACT: dict[str, Any] = {"tol": 1e-10, "random_state": 0, "alpha": 0.01}
MARGINS = [name for name, kind in LOSSES.items() if issubclass(kind, MarginLoss)]


def network(**options: Any) -> dps.MLPClassifier:
    return dps.MLPClassifier((16,), **{"max_iter": 8, "random_state": 0} | options)


@pytest.mark.parametrize("loss", MARGINS)
@pytest.mark.parametrize("mode", ["sync", "allreduce"])
def test_a_linear_model_of_all_labels_is_one_of_each(loss: str, mode: str) -> None:
    options = EXACT | {"loss": loss, "mode": mode, "n_replicas": 2}
    model = dps.LinearClassifier(**options).fit(X, Y, WEIGHT)
    each = [dps.LinearClassifier(**options).fit(X, y, WEIGHT) for y in Y.T]
    assert_allclose(model.coef_, np.vstack([one.coef_ for one in each]), atol=5e-3)
    agree = model.predict(X) == np.stack([one.predict(X) for one in each], axis=1)
    assert agree.mean() > 0.99
    assert model.decision_function(X).shape == (len(X), 3)


@given(st.integers(0, 2**32), st.sampled_from(MARGINS), st.sampled_from(["f4", "f8"]))
def test_the_loss_is_the_sum_of_binary_ones(seed: int, name: str, dtype: str) -> None:
    rng = np.random.default_rng(seed)
    n, k = rng.integers(1, 9), rng.integers(2, 5)
    raw = rng.normal(size=(n, k)).astype(dtype)
    y, weight = rng.integers(2, size=(n, k)).astype(dtype), rng.uniform(size=n).astype(dtype)
    base: Any = LOSSES[name]()
    slope, columns, total = np.empty_like(raw), np.empty_like(raw), 0.0
    loss = Multilabel(base)
    found = loss.evaluate(loss.targets(y), raw, weight, slope)
    for j in range(k):
        column = np.empty((n, 1), dtype)
        total += base.evaluate(base.targets(y[:, j]), raw[:, [j]].copy(), weight, column)
        columns[:, j] = column[:, 0]
    assert_allclose(found, total, rtol=1e-5)
    assert_allclose(slope, columns, rtol=1e-5, atol=1e-7)


def test_a_network_reports_the_loss_of_scikit_learn() -> None:
    model = network(early_stopping=True).fit(X, Y, X_val=X, y_val=Y)
    chances = model.predict_proba(X)
    binary = sum(sklearn.metrics.log_loss(y, p) for y, p in zip(Y.T, chances.T, strict=True))
    assert min(e["validation_loss"] for e in model.history_) == pytest.approx(binary, rel=1e-4)
    assert (model.out_activation_, model.n_outputs_) == ("logistic", 3)
    peer = sklearn.neural_network.MLPClassifier((16,), max_iter=200, random_state=0).fit(X, Y)
    assert model.score(X, Y) > peer.score(X, Y) - 0.1
    assert_array_equal(model.classes_, peer.classes_)


@pytest.mark.parametrize("kind", [dps.LinearClassifier, network])
def test_as_scikit_learns_own_it_predicts_the_same(kind: Any, tmp_path: Path) -> None:
    model = kind(random_state=0).fit(X, Y)
    plain = model.to_sklearn()
    assert_array_equal(plain.predict(X), model.predict(X))
    assert_allclose(plain.predict_proba(X), model.predict_proba(X), rtol=1e-5)
    assert plain.score(X, Y) == model.score(X, Y) == (model.predict(X) == Y).all(axis=1).mean()
    model.save(tmp_path / "model")
    again = dps.load(tmp_path / "model")
    assert_array_equal(again.predict(X), model.predict(X))
    assert_array_equal(again.partial_fit(X, Y).predict(X), model.partial_fit(X, Y).predict(X))


@pytest.mark.parametrize(
    ("of_y", "on_cluster"),
    [
        ("numpy", True), ("bool", False), ("csr", False), ("pandas", False), ("array", False),
        ("frame", True), ("blocks", True),
    ],
)  # fmt: skip
def test_containers(of_y: str, on_cluster: bool, client: Client) -> None:
    frame = pd.DataFrame(Y, columns=["a", "b", "c"])
    chunks = (300, 300, 200)
    lazy = da.from_array(Y, chunks=(chunks, 1))
    made: dict[str, Any] = {
        "numpy": Y,
        "bool": Y.astype(bool),
        "csr": scipy.sparse.csr_array(Y),
        "pandas": frame,
        "array": lazy,
        "frame": dd.concat(
            [dd.from_pandas(frame[a:b], 1) for a, b in ((0, 300), (300, 600), (600, 800))]
        ),
        "blocks": lazy.rechunk({1: 3}).map_blocks(
            scipy.sparse.csr_array, meta=scipy.sparse.csr_array((1, 1))
        ),
    }
    expected = dps.LinearClassifier(**EXACT).fit(X, Y)
    for data in (X, da.from_array(X, chunks=(chunks, 6))):
        model = dps.LinearClassifier(client=client if on_cluster else None, **EXACT)
        if data is X and of_y == "blocks":
            continue
        model.fit(data, made[of_y])
        assert_allclose(model.coef_, expected.coef_, atol=1e-4)
        predicted = model.predict(data)
        assert predicted.shape == (800, 3)
        assert_array_equal(np.asarray(predicted), expected.predict(X))
        if of_y not in ("csr", "blocks"):
            assert model.score(data, made[of_y]) == expected.score(X, Y)


def test_a_frame_is_predicted_as_a_frame() -> None:
    frame = dd.from_pandas(pd.DataFrame(X, columns=list("abcdef")), npartitions=3)
    model = dps.LinearClassifier(**EXACT).fit(frame, dd.from_pandas(pd.DataFrame(Y), npartitions=3))
    assert list(model.predict(frame).columns) == [0, 1, 2]
    assert_array_equal(model.predict(frame).compute(), model.predict(frame.compute()))


def test_stochastic_steps_streams_scores_and_searches() -> None:
    lazy = da.from_array(X, chunks=(400, 6)), da.from_array(Y, chunks=(400, 3))
    configure(cache="disk")
    model = network(scoring="accuracy", n_replicas=2).fit(*lazy, X_val=X, y_val=Y)
    best = max(epoch["validation_score"] for epoch in model.history_)
    assert best == pytest.approx(model.score(X, Y))
    several = RowScore(lambda y_true, y_pred: (y_true == y_pred).sum(axis=1))
    model = dps.LinearClassifier(optimizer="adam", early_stopping=True, scoring=several).fit(X, Y)
    assert 2 < model.history_[-1]["validation_score"] < 3
    search = GridSearchCV(dps.LinearClassifier(), {"alpha": [1e-3, 10.0]}, cv=2).fit(*lazy)
    assert search.best_params_ == {"alpha": 1e-3}


def test_labels_that_no_row_has_or_all_have() -> None:
    y = np.hstack([Y, np.zeros((800, 1), int), np.ones((800, 1), int)])
    for model in (dps.LinearClassifier(), network()):
        assert_array_equal(model.fit(X, y).predict(X)[:, 3:], y[:, 3:])


def test_one_column_is_a_vector_of_labels() -> None:
    with pytest.warns(match="column-vector"):
        model = dps.LinearClassifier().fit(X, Y[:, :1])
    assert not model.multilabel_
    assert model.predict(X).shape == (800,)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("y", "options", "message"),
    [
        (Y + 1, {}, "of several columns of y each says of one label whether a row has it"),
        (Y + 0.5, {}, "holds 1.5, in row 0: of"),
        (np.where(Y, "yes", "no"), {}, "3 columns of dtype"),
        (Y, {"class_weight": "balanced"}, "give sample_weight"),
    ],
)
def test_what_is_wrong_is_said(y: Any, options: Any, message: str, lazy: bool) -> None:
    data, target = (X, y) if not lazy else (da.from_array(X), da.from_array(y))
    with pytest.raises(ValueError, match=message):
        dps.LinearClassifier(**options).fit(data, target)


@dataclass(frozen=True)
class _Own(MarginLoss):
    name: ClassVar[str] = "own"

    def evaluate(self, y: Any, raw: Any, weight: Any, out: Any) -> float:
        raise NotImplementedError


def test_losses_and_models_of_ones_own_learn_one_column() -> None:
    for model in (dps.LinearClassifier(loss=_Own()), dps.ModelClassifier(Softmax)):
        with pytest.raises(ValueError, match="take a binary loss of dps for each"):
            model.fit(X, Y)


def test_training_goes_on_with_labels_of_the_same_kind_only() -> None:
    model = network().partial_fit(X, Y, classes=range(3))
    with pytest.raises(ValueError, match="one column of labels, and had a column for each"):
        model.partial_fit(X, Y.sum(axis=1) % 3)
    with pytest.raises(ValueError, match=r"give classes=range\(2\)"):
        model.partial_fit(X, Y[:, :2])
    with pytest.raises(ValueError, match="y_val has 1 column, and y has 3"):
        network().fit(X, Y, X_val=X, y_val=Y[:, 0])


@pytest.mark.filterwarnings("ignore:The y_prob values do not sum to one")
def test_the_log_loss_of_labels_is_a_score_wherever_they_are() -> None:
    X = np.random.default_rng(0).normal(size=(300, 4))
    labels = np.c_[X[:, 0] > 0, X[:, 1] > 1].astype(int)
    parts = da.from_array(X, chunks=(100, 4)), da.from_array(labels, chunks=(100, 2))
    model = dps.LinearClassifier().fit(X, labels)
    expected = -sklearn.metrics.log_loss(labels, model.predict_proba(X))
    scorer = dps.metrics.get_scorer("neg_log_loss")
    assert scorer(model, X, labels) == pytest.approx(expected)
    assert scorer(model, *parts) == pytest.approx(expected)
    found = dps.model_selection.cross_val_score(model, *parts, cv=3, scoring="neg_log_loss")
    assert (found < 0).all()
