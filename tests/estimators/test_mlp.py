"""Perceptrons: what their users are promised, on small data and on that which the bars are of."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from cases import slow
from configure import placed
from dask.distributed import Client
from inside import params_of
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, make_friedman1
from sklearn.metrics import accuracy_score, log_loss, root_mean_squared_error
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.utils import check_random_state

import dps
from dps.data.feed.held_out import HeldOut
from dps.optimizers import AdamW, Constant
from memory import measure_network
from public_data import DATA

X, Y = make_friedman1(600, n_features=6, noise=0.3, random_state=0)
LABELS = np.where(np.median(Y) < Y, "high", "low")
QUICK: dict[str, Any] = {"max_iter": 8, "random_state": 0, "hidden_layer_sizes": (16, 8)}


def bits(model: Any) -> bytes:
    made: bytes = params_of(model).tobytes()
    return made


def test_all_ways_to_train_in_step_give_the_same_bits(client: Client) -> None:
    data = da.from_array(X, chunks=(97, 6)), da.from_array(Y, chunks=97)
    ways = [
        {"mode": mode, "n_shards": shards, "client": client, "n_replicas": 2}
        for mode, shards in (
            ("sync", 1), ("sync", 3), ("allreduce", 2), (dps.Sync(access="stream"), 2),
        )
    ]  # fmt: skip
    made = [bits(dps.MLPRegressor(**QUICK, **placed(way)).fit(*data)) for way in ways]
    assert made == made[:1] * len(made)


def test_async_ends_near_what_sync_ends_with() -> None:
    losses = [
        dps.MLPRegressor(mode=mode, n_replicas=2, random_state=0).fit(X, Y).score(X, Y)
        for mode in ("sync", "async")
    ]
    assert min(losses) > 0.9
    assert losses[0] == pytest.approx(losses[1], abs=0.03)


@pytest.mark.parametrize(
    "container",
    [
        lambda: X,
        lambda: np.asfortranarray(X),
        lambda: X[::-1][::-1],
        lambda: pd.DataFrame(X).to_numpy(),
        lambda: scipy.sparse.csr_array(X),
        lambda: scipy.sparse.csc_array(X),
    ],
    ids=["dense", "fortran", "strided", "frame", "csr", "csc"],
)
def test_any_container_gives_the_same_network(container: Any) -> None:
    expected = dps.MLPClassifier(**QUICK).fit(X, LABELS)
    model = dps.MLPClassifier(**QUICK).fit(container(), LABELS)
    assert bits(model) == bits(expected)
    np.testing.assert_allclose(
        model.predict_proba(container()), expected.predict_proba(X), rtol=1e-12
    )


def test_features_of_any_size_give_about_the_same_predictions() -> None:
    factors, shift = np.logspace(-6, 6, 6), np.array([0, 0, 0, 1e3, 1e9, -1e5])
    expected = dps.MLPRegressor(random_state=0).fit(X, Y)
    scaled = dps.MLPRegressor(random_state=0).fit(X * factors + shift, Y * 1e4 - 7e4)
    assert expected.score(X, Y) > 0.9
    assert scaled.score(X * factors + shift, Y * 1e4 - 7e4) > 0.9


def test_columns_that_say_nothing_and_heavy_tails_do_no_harm() -> None:
    rng = np.random.default_rng(0)
    odd = np.c_[
        X, np.full(600, 7.0), rng.standard_cauchy(600) * 1e6, np.exp(10 * rng.normal(size=600))
    ]
    model = dps.MLPRegressor(random_state=0).fit(odd, Y)
    assert model.score(odd, Y) > 0.85


def test_the_best_epoch_is_kept() -> None:
    options = {
        **QUICK, "learning_rate": Constant(0.05), "dropout": 0.0, "early_stopping": True,
        "n_iter_no_change": 60,
    }  # fmt: skip
    long = dps.MLPRegressor(**{**options, "max_iter": 60}).fit(X[:100], Y[:100])
    losses = [epoch["validation_loss"] for epoch in long.history_]
    best = int(np.argmin(losses)) + 1
    assert 1 < best < 60
    assert long.best_loss_ == min(losses)
    short = dps.MLPRegressor(**{**options, "max_iter": best}).fit(X[:100], Y[:100])
    assert bits(short) == bits(long)


@pytest.mark.parametrize("mode", ["sync", "async", "allreduce"])
def test_the_loss_that_is_monitored_is_that_of_what_is_reported(mode: str) -> None:
    model = dps.MLPRegressor(**QUICK, mode=mode, early_stopping=True, n_replicas=2)
    model.fit(X, Y)
    seed = int(check_random_state(0).randint(2**31 - 1))
    held = HeldOut(seed, model.validation_fraction).rows(0, len(X))
    found = np.mean((Y[held] - model.predict(X[held])) ** 2) / 2
    assert model.best_loss_ == pytest.approx(found, rel=1e-5)


def test_a_class_weight_is_a_weight_of_its_rows() -> None:
    weights = np.where(LABELS == "low", 3.0, 1.0)
    by_class = dps.MLPClassifier(**QUICK, class_weight={"low": 3.0, "high": 1.0}).fit(X, LABELS)
    by_row = dps.MLPClassifier(**QUICK).fit(X, LABELS, weights)
    plain = dps.MLPClassifier(**QUICK).fit(X, LABELS)
    np.testing.assert_allclose(by_class.predict_proba(X), by_row.predict_proba(X), rtol=1e-4)
    assert (by_class.predict(X) == "low").sum() > (plain.predict(X) == "low").sum()


def test_rows_without_weight_do_not_count() -> None:
    wrong = np.where(np.arange(600) % 2, Y, 1e3)
    model = dps.MLPRegressor(random_state=0).fit(X, wrong, np.arange(600) % 2)
    assert model.score(X[1::2], Y[1::2]) > 0.85


def test_several_outputs_and_classes() -> None:
    several = dps.MLPRegressor(random_state=0).fit(X, np.c_[Y, -2 * Y + 5])
    assert several.predict(X).shape == (600, 2)
    assert several.score(X, np.c_[Y, -2 * Y + 5]) > 0.9
    digits, labels = load_digits(return_X_y=True)
    model = dps.MLPClassifier(random_state=0, max_iter=40).fit(digits[::2], labels[::2])
    assert model.score(digits[1::2], labels[1::2]) > 0.95
    assert model.n_outputs_ == 10
    assert model.out_activation_ == "softmax"
    assert [w.shape for w in model.coefs_][1:] == [(128, 128), (128, 10)]
    assert model.n_layers_ == 4


@pytest.mark.parametrize(
    ("loss", "lowest"),
    [
        ("quantile", 0.9), ("gamma", 0.9),
        *slow(("huber", 0.9), ("epsilon_insensitive", 0.9), ("poisson", 0.9)),
    ],
)  # fmt: skip
def test_losses_of_regressions(loss: str, lowest: float) -> None:
    positive = Y - Y.min() + 1
    model = dps.MLPRegressor(loss=loss, random_state=0)
    assert model.fit(X, positive).score(X, positive) > lowest


@pytest.mark.parametrize(
    ("optimizer", "activation"),
    [
        ("adam", "silu"), ("sgd", "tanh"), ("momentum", "relu"), ("adagrad", "logistic"),
        ("adamw", "identity"),
    ],
)  # fmt: skip
def test_optimizers_and_activations_learn(optimizer: str, activation: str) -> None:
    model = dps.MLPRegressor(
        optimizer=optimizer, activation=activation, alpha=0.0, random_state=0, max_iter=80
    ).fit(X, Y)
    assert model.score(X, Y) > 0.7


def test_partial_fit_goes_on_and_warm_start_begins_where_the_last_fit_ended() -> None:
    model = dps.MLPRegressor(random_state=0)
    scores = []
    for _ in range(15):
        model.partial_fit(X, Y)
        scores.append(model.score(X, Y))
    assert scores[-1] > 0.85 > scores[0]
    assert len(model.history_) == 1
    warm = dps.MLPRegressor(**QUICK, warm_start=True).fit(X, Y)
    first = warm.loss_curve_
    warm.fit(X, Y)
    assert warm.loss_curve_[0] < first[0]
    with pytest.raises(ValueError, match="the number of features was 6 and is now 3"):
        warm.fit(X[:, :3], Y)


def test_partial_fit_takes_each_row_once_and_holds_none_out() -> None:
    model = dps.MLPClassifier(random_state=0).partial_fit(X, LABELS, classes=["high", "low"])
    assert model.history_[0]["rows"] == 600


def test_frames_of_categories_lazy_predictions_and_searches() -> None:
    rng = np.random.default_rng(0)
    kind, size = rng.choice(["a", "b", "c"], 600), rng.normal(size=600) * 1e4
    wanted = np.where((kind == "a") ^ (size > 0), "yes", "no")
    frame = pd.DataFrame({"kind": kind, "size": size})
    lazy = dd.from_pandas(frame, npartitions=3)
    model = dps.MLPClassifier(random_state=0)
    model.fit(lazy, dd.from_pandas(pd.Series(wanted), npartitions=3))
    assert model.score(frame, wanted) > 0.97
    assert (model.predict(lazy).compute() == model.predict(frame)).all()
    assert model.encoder_ is not None
    search = GridSearchCV(dps.MLPClassifier(random_state=0, max_iter=12), {"dropout": [0.0, 0.5]})
    assert search.fit(frame, wanted).best_score_ > 0.9


def test_wide_sparse_rows_go_in_as_they_are() -> None:
    words = scipy.sparse.random_array((4000, 1000), density=0.02, format="csr", random_state=1)
    meaning = words @ np.random.default_rng(0).normal(size=1000)
    model = dps.MLPClassifier(random_state=0)
    model.fit(words[:3000], meaning[:3000] > 0)
    assert model.score(words[3000:], meaning[3000:] > 0) > 0.8
    dense = model.predict_proba(words[:50].toarray())
    np.testing.assert_allclose(dense, model.predict_proba(words[:50]), rtol=1e-6)


def test_it_is_pickled_and_predicts_in_the_precision_that_it_is_given() -> None:
    model = dps.MLPRegressor(**QUICK).fit(X, Y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert model.predict(X).dtype == np.float64
    assert model.predict(X.astype(np.float32)).dtype == np.float32


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"activation": "gelu"}, "'activation' parameter"),
        (
            {"learning_rate": "adaptive"},
            "'learning_rate' parameter must be a float, a Schedule or a str",
        ),
        ({"optimizer": "newton"}, "'optimizer' parameter must be"),
        ({"dropout": 1.0}, "'dropout' parameter"),
        ({"hidden_layer_sizes": (8, 0)}, "hidden_layer_sizes must be numbers above 0"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        dps.MLPRegressor(**options).fit(X, Y)


def test_tiny_data_trains() -> None:
    iris, species = load_iris(return_X_y=True)
    for rows in (6, 30, 150):
        picks = np.random.default_rng(0).permutation(150)[:rows]
        model = dps.MLPClassifier(random_state=0).fit(iris[picks], species[picks])
        assert np.isfinite(model.predict_proba(iris)).all()
    assert model.score(iris, species) > 0.95


@pytest.mark.slow
@pytest.mark.skipif(not DATA.exists(), reason="the data is not here")
def test_adult_and_california_without_tuning() -> None:
    frame = pd.read_parquet(DATA / "adult.parquet")
    income, test = frame.pop("income"), np.arange(len(frame)) % 5 == 0
    model = dps.MLPClassifier(random_state=0).fit(frame[~test], income[~test])
    assert log_loss(income[test], model.predict_proba(frame[test])) < 0.285
    assert accuracy_score(income[test], model.predict(frame[test])) > 0.870
    frame = pd.read_parquet(DATA / "california-housing.parquet")
    value, test = frame.pop("MedHouseVal"), np.arange(len(frame)) % 5 == 0
    houses = dps.MLPRegressor(random_state=0).fit(frame[~test], value[~test])
    assert root_mean_squared_error(value[test], houses.predict(frame[test])) < 0.45


def test_columns_beyond_single_precision_train() -> None:
    for factor in (1e-50, 1e39, 1e-310):
        model = dps.MLPRegressor(**QUICK).fit(X * factor, Y)
        assert np.isfinite(model.predict(X * factor)).all()


def test_layers_of_other_sizes_are_no_start_though_they_have_as_many_parameters() -> None:
    options = {**QUICK, "embedding_size": 0, "warm_start": True}
    few = dps.MLPRegressor(**{**options, "hidden_layer_sizes": (5,)}).fit(X[:, :3], Y)
    few.set_params(hidden_layer_sizes=(4,))
    with pytest.raises(ValueError, match=r"hidden_layer_sizes was \(5,\) and is now \(4,\)"):
        few.fit(X[:, :3], np.c_[Y, Y])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Linux says what a process takes")
def test_a_large_network_takes_a_few_times_its_weights() -> None:
    weights, taken = measure_network("two replicas", 3000)
    assert taken / weights < 12.5


def test_a_network_of_few_rows_is_not_over_confident() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    losses = []
    for seed in range(2):
        train, test, y_train, y_test = train_test_split(X, y, random_state=seed)
        model = dps.MLPClassifier(random_state=seed).fit(train, y_train)
        losses.append(log_loss(y_test, model.predict_proba(test)))
    assert np.mean(losses) < 0.13


def test_the_decay_follows_from_the_rows_of_labels() -> None:
    def close(make: Any, fit: Callable[[Any], Any], decay: float) -> bool:
        """True if a default fit has that decay, to the epsilon of its AdamW."""
        given = [AdamW(beta2=0.95, weight_decay=factor * decay) for factor in (1, 1.05)]
        models = [fit(make(**QUICK, optimizer=each)) for each in ("auto", *given)]
        auto, same, other = (np.concatenate([w.ravel() for w in m.coefs_]) for m in models)
        return bool(100 * np.abs(auto - same).max() < np.abs(auto - other).max())

    noisy = np.where(np.random.default_rng(0).random(len(X)) < 0.3, LABELS[::-1], LABELS)
    for rows in (60, 600):  # of which 60 are all trained on
        data, trained = (X[:rows], noisy[:rows]), rows if rows < 100 else 510
        assert close(dps.MLPClassifier, lambda m, data=data: m.fit(*data), min(0.7, 300 / trained))
    names = ["high", "low"]
    few = X[:60], LABELS[:60]
    assert close(dps.MLPClassifier, lambda model: model.partial_fit(*few, classes=names), 0.02)
    assert close(dps.MLPRegressor, lambda model: model.fit(X, Y), 0.02)


@pytest.mark.parametrize("optimizer", ["auto", "adam", "adamw", "sgd"])
@pytest.mark.parametrize("rows", [200, 400])
def test_alpha_is_the_l2_penalty_of_a_row_whatever_the_optimizer(optimizer: str, rows: int) -> None:
    """At the optimum of a network without hidden layers, which is a ridge regression."""
    alpha, data = 0.5, (X[:rows], Y[:rows])
    options: dict[str, Any] = {
        "hidden_layer_sizes": (), "embedding_size": 0, "early_stopping": False, "tol": None,
        "dropout": 0.0, "max_iter": 300, "random_state": 0,
    }  # fmt: skip
    exact = dps.MLPRegressor(**options | {"optimizer": "lbfgs", "alpha": alpha}).fit(*data)
    free = dps.MLPRegressor(**options | {"optimizer": "lbfgs", "alpha": 0.0}).fit(*data)
    model = dps.MLPRegressor(**options, optimizer=optimizer, alpha=alpha).fit(*data)
    assert np.linalg.norm(exact.coefs_[0]) < 0.8 * np.linalg.norm(free.coefs_[0])
    np.testing.assert_allclose(model.coefs_[0], exact.coefs_[0], atol=0.02)


@pytest.mark.parametrize("optimizer", ["auto", *slow("adam", "adamw")])
def test_the_l2_penalty_does_not_end_units_without_a_gradient(optimizer: str) -> None:
    X, y = load_breast_cancer(return_X_y=True)
    model = dps.MLPClassifier(optimizer=optimizer, alpha=1e-4, random_state=0).fit(X, y)
    assert model.loss_ < 0.1  # of which a constant has 0.66


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_plain_steps_train_networks_at_their_defaults(optimizer: str) -> None:
    some = X[:300], LABELS[:300]
    assert dps.MLPClassifier(optimizer=optimizer, random_state=0).fit(*some).score(*some) > 0.8
