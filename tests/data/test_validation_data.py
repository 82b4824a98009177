"""Validation data that users give: it decides and is recorded, and is never trained on."""

from __future__ import annotations

import re
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import sklearn
from configure import configure
from dask import delayed
from distributed import Client
from sklearn.metrics import log_loss, mean_squared_error
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

import dps
from dps.data.collections.partitions import Piece
from dps.model_selection import GridSearchCV, train_test_split
from dps.modes import Sync
from dps.training.plan.plan import Plan, RankPlan, validating

RNG = np.random.default_rng(0)
X, X_VAL = RNG.normal(size=(900, 5)), RNG.normal(size=(300, 5))
Y, Y_VAL = (
    (each @ np.arange(5) + RNG.normal(size=len(each)) > 0).astype(int) for each in (X, X_VAL)
)
WEIGHT, WEIGHT_VAL = RNG.uniform(0.5, 2, len(X)), RNG.uniform(0.5, 2, len(X_VAL))
VALIDATION: dict[str, Any] = {"X_val": X_VAL, "y_val": Y_VAL, "sample_weight_val": WEIGHT_VAL}
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
MODES = ("sync", "async", "allreduce")


def classifier(**options: Any) -> dps.LinearClassifier:
    return dps.LinearClassifier(**{"random_state": 0, "n_replicas": 2, "max_iter": 6} | options)


def validation_loss(model: Any) -> float:
    return float(log_loss(Y_VAL, model.predict_proba(X_VAL), sample_weight=WEIGHT_VAL))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("optimizer", ["lbfgs", "adam", "auto"])
def test_the_loss_of_each_epoch_is_that_of_the_given_rows(mode: str, optimizer: str) -> None:
    model = classifier(mode=mode, optimizer=optimizer).fit(X, Y, WEIGHT, **VALIDATION)
    last = model.history_[-1]
    assert last["validation_loss"] == pytest.approx(validation_loss(model), rel=1e-6)
    assert last["rows"] == len(X)


@pytest.mark.parametrize("shuffle", [True, False, "global"])
@pytest.mark.parametrize("optimizer", ["lbfgs", "adam"])
@pytest.mark.parametrize(("mode", "replicas"), [("sync", 1), ("sync", 3), ("allreduce", 3)])
def test_training_does_not_know_of_them(
    shuffle: Any, optimizer: str, mode: str, replicas: int
) -> None:
    options = {"shuffle": shuffle, "optimizer": optimizer, "n_replicas": replicas, "mode": mode}
    one, other = (
        classifier(**options).fit(X, Y, **given) for given in ({}, {"X_val": X_VAL, "y_val": Y_VAL})
    )
    np.testing.assert_array_equal(one.coef_, other.coef_)
    assert np.isnan(one.history_[-1]["validation_loss"])
    assert not np.isnan(other.history_[-1]["validation_loss"])


@pytest.mark.parametrize("mode", MODES)
def test_early_stopping_keeps_the_best_epoch_on_them(mode: str) -> None:
    wrong = 1 - Y  # the more a model learns of them, the worse it is: an early epoch is the best
    model = dps.MLPClassifier(
        (8,), mode=mode, n_replicas=2, max_iter=25, n_iter_no_change=25, random_state=0
    ).fit(X, wrong, **VALIDATION)
    losses = [epoch["validation_loss"] for epoch in model.history_]
    assert min(losses) < losses[-1]
    assert validation_loss(model) == pytest.approx(min(losses), rel=1e-5)
    assert model.best_loss_ == min(losses)
    assert model.history_[0]["rows"] == len(X)


def test_without_early_stopping_they_decide_nothing() -> None:
    options = {"early_stopping": False, "max_iter": 5, "random_state": 0}
    model = dps.MLPRegressor(hidden_layer_sizes=(8,), **options).fit(
        X, X[:, 0], X_val=X_VAL, y_val=X_VAL[:, 0]
    )
    plain = dps.MLPRegressor(hidden_layer_sizes=(8,), **options).fit(X, X[:, 0])
    np.testing.assert_array_equal(model.predict(X_VAL), plain.predict(X_VAL))
    error = mean_squared_error(X_VAL[:, 0], model.predict(X_VAL)) / 2
    assert model.history_[-1]["validation_loss"] == pytest.approx(error, rel=1e-4)
    assert model.best_loss_ == min(model.loss_curve_)


def containers(X: Any, y: Any, parts: int) -> dict[str, tuple[Any, Any]]:
    frame, series = pd.DataFrame(X, columns=list("abcde")), pd.Series(y)
    size = -(-len(X) // parts)
    lazy, target = da.from_array(X, chunks=(size, -1)), da.from_array(y, chunks=size)
    sparse = lazy.map_blocks(scipy.sparse.csr_array, meta=scipy.sparse.csr_array((1, 1)))
    unknown = dd.from_pandas(frame, npartitions=parts), dd.from_pandas(series, npartitions=parts)
    return {
        "numpy": (X, y),
        "csr": (scipy.sparse.csr_array(X), y),
        "pandas": (frame, series),
        "array": (lazy, target),
        "sparse blocks": (sparse, target),
        "frame": unknown,
        "list": (
            [delayed(X[at : at + size]) for at in range(0, len(X), size)],
            [delayed(y[at : at + size]) for at in range(0, len(X), size)],
        ),
    }


PAIRS = [
    ("numpy", "numpy"), ("numpy", "csr"), ("csr", "numpy"), ("pandas", "frame"), ("numpy", "array"),
    ("array", "numpy"), ("array", "sparse blocks"), ("sparse blocks", "csr"), ("frame", "pandas"),
    ("sparse blocks", "array"), ("frame", "frame"), ("list", "list"), ("list", "numpy"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("of_X", "of_val", "on_cluster"), [(*pair, at % 2 > 0) for at, pair in enumerate(PAIRS)]
)
def test_containers_may_be_mixed(of_X: str, of_val: str, on_cluster: bool, client: Client) -> None:
    (train, y), (val, y_val) = (
        containers(*data, parts)[name]
        for data, parts, name in (((X, Y), 3, of_X), ((X_VAL, Y_VAL), 2, of_val))
    )
    model = classifier(optimizer="lbfgs", max_iter=100, client=client if on_cluster else None)
    model.fit(train, y, X_val=val, y_val=y_val)
    of_numpy = log_loss(
        Y_VAL, classifier(optimizer="lbfgs", max_iter=100).fit(X, Y).predict_proba(X_VAL)
    )
    assert model.history_[-1]["validation_loss"] == pytest.approx(of_numpy, rel=1e-3)
    assert model.history_[-1]["rows"] == len(X)
    validated = {piece.partition for rank in model.plan_.ranks for piece in rank.pieces}
    assert len(validated) >= 2


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("local_val", [True, False])
def test_an_encoder_does_not_learn_from_them(local: bool, local_val: bool) -> None:
    rng = np.random.default_rng(1)
    town = rng.choice(["ulm", "bonn"], 600)
    frame = pd.DataFrame({"town": town, "size": rng.normal(size=600)})
    y = pd.Series((town == "ulm").astype(int))
    val = frame[:100].copy()
    val.loc[:9, "town"] = "trier"
    given = (frame, y) if local else (dd.from_pandas(frame, 3), dd.from_pandas(y, 3))
    aside = (val, y[:100]) if local_val else (dd.from_pandas(val, 2), dd.from_pandas(y[:100], 2))
    model = classifier().fit(*given, X_val=aside[0][["size", "town"]], y_val=aside[1])
    assert list(model.encoder_.get_feature_names_out()) == ["town_bonn", "town_ulm", "size"]
    expected = log_loss(y[:100], model.predict_proba(val))
    assert model.history_[-1]["validation_loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("cache", ["disk", None])
@pytest.mark.parametrize(
    "options", [{"optimizer": "adam", "shuffle": False}, {"optimizer": "lbfgs"}]
)
def test_they_are_streamed_too(cache: str | None, options: Any) -> None:
    ((train, y), (val, y_val)) = (
        containers(*data, 3)["array"] for data in ((X, Y), (X_VAL, Y_VAL))
    )
    models = []
    for kept in ("memory", cache):
        configure(cache=kept)
        model = classifier(tol=None, **options)
        models.append(model.fit(train, y, X_val=val, y_val=y_val))
    one, other = models
    assert [epoch["validation_loss"] for epoch in other.history_] == pytest.approx(
        [epoch["validation_loss"] for epoch in one.history_]
    )


def test_they_may_be_split_from_what_is_streamed(client: Client) -> None:
    data = dd.from_pandas(pd.DataFrame(X, columns=list("abcde")).assign(y=Y), npartitions=3)
    train, val = train_test_split(data, test_size=0.25, random_state=0)
    given = {"X_val": val[list("abcde")], "y_val": val["y"]}
    for over in (None, client):  # a warning says where nothing can be computed again
        configure(cache=None)
        model = classifier(client=over, optimizer="lbfgs")
        model.fit(train[list("abcde")], train["y"], **given)
        expected = log_loss(val["y"].compute(), model.predict_proba(given["X_val"]).compute())
        assert model.history_[-1]["validation_loss"] == pytest.approx(expected)


def test_columns_that_do_not_occur_are_left_out_of_both() -> None:
    rng = np.random.default_rng(2)
    train, val = (scipy.sparse.random(200, 9000, 1e-3, "csr", random_state=rng) for _ in range(2))
    y, y_val = rng.integers(2, size=(2, 200))
    model = classifier(max_iter=3, alpha=0.1).fit(train, y, X_val=val, y_val=y_val)
    expected = log_loss(y_val, model.predict_proba(val))
    assert model.history_[-1]["validation_loss"] == pytest.approx(expected)


def test_rows_of_a_worker_that_does_not_train_go_to_those_that_do(client: Client) -> None:
    first, second = sorted(client.scheduler_info()["workers"])
    (train, y), (val, y_val) = (containers(*data, 2)["array"] for data in ((X, Y), (X_VAL, Y_VAL)))
    train, y = client.persist([train, y], workers=[first])
    val, y_val = client.persist([val, y_val], workers=[second])
    configure(rebalance=False)
    model = classifier(client=client, n_replicas="auto")
    model.fit(train, y, X_val=val, y_val=y_val)
    assert model.plan_.workers == [first]
    moved = [piece.rows for rank in model.plan_.ranks for piece in rank.pieces if piece.moved]
    assert sum(moved) == len(X_VAL)
    expected = log_loss(Y_VAL, model.predict_proba(X_VAL))
    assert model.history_[-1]["validation_loss"] == pytest.approx(expected)


@pytest.mark.parametrize("options", [{"shuffle": "global"}, {}])
@pytest.mark.parametrize("kind", ["array", "numpy"])
def test_rows_that_move_leave_them_where_they_are(
    options: dict[str, Any], kind: str, client: Client
) -> None:
    (train, y), (val, y_val) = (containers(*data, 2)[kind] for data in ((X, Y), (X_VAL, Y_VAL)))
    first, second = sorted(client.scheduler_info()["workers"])
    if kind == "array":
        train, y = client.persist([train, y], workers=[first])
        val, y_val = client.persist([val, y_val], workers=[second])
    configure(rebalance=not options or "auto")
    model = classifier(client=client, optimizer="adam", n_replicas=4, **options)
    model.fit(train, y, WEIGHT, X_val=val, y_val=y_val, sample_weight_val=WEIGHT_VAL)
    assert len({rank.worker for rank in model.plan_.ranks}) == 2
    assert model.history_[-1]["rows"] == len(X)
    assert model.history_[-1]["validation_loss"] == pytest.approx(validation_loss(model))


def test_a_replica_may_have_none_of_them() -> None:
    model = classifier(n_replicas=3, mode="async").fit(X, Y, X_val=X_VAL[:2], y_val=Y_VAL[:2])
    expected = log_loss(Y_VAL[:2], model.predict_proba(X_VAL[:2]), labels=[0, 1])
    assert model.history_[-1]["validation_loss"] == pytest.approx(expected)


def _broken() -> Any:
    raise OSError("the disk is gone")


def test_a_partition_that_cannot_be_computed_is_named(client: Client) -> None:
    train, y = containers(X, Y, 2)["list"]
    val, y_val = containers(X_VAL, Y_VAL, 2)["list"]
    val[1] = delayed(_broken)()
    with pytest.raises(OSError, match="the disk is gone") as caught:
        classifier(client=client).fit(train, y, X_val=val, y_val=y_val)
    assert any("partition 1 of X_val" in note for note in caught.value.__notes__)


def test_a_search_gives_them_to_each_fit_as_they_are() -> None:
    train, y = containers(X, Y, 3)["array"]
    search = GridSearchCV(classifier(early_stopping=True), {"alpha": [1e-3, 1e-2]}, cv=2)
    search.fit(train, y, X_val=X_VAL, y_val=Y_VAL)
    best = search.best_estimator_
    expected = log_loss(Y_VAL, best.predict_proba(X_VAL))
    losses = [epoch["validation_loss"] for epoch in best.history_]
    assert min(losses) == pytest.approx(expected)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_pipeline_transforms_them_as_it_does_rows_to_train_on(sparse: bool) -> None:
    with sklearn.config_context(enable_metadata_routing=True):
        model = classifier().set_fit_request(X_val=True, y_val=True)
        scaler = StandardScaler(with_mean=not sparse)
        chain = Pipeline([("scale", scaler), ("model", model)], transform_input=["X_val"])
        make = scipy.sparse.csr_array if sparse else np.asarray
        model = chain.fit(make(100 * X), Y, X_val=make(100 * X_VAL), y_val=Y_VAL)[-1]
        expected = log_loss(Y_VAL, chain.predict_proba(make(100 * X_VAL)))
    assert model.history_[-1]["validation_loss"] == pytest.approx(expected)


def test_steps_by_keys_look_at_them_too() -> None:
    rng = np.random.default_rng(3)
    train, val = (scipy.sparse.random(600, 20_000, 5e-4, "csr", random_state=rng) for _ in range(2))
    y, y_val = rng.integers(2, size=(2, 600))
    for mode in MODES:
        model = classifier(optimizer="adagrad", mode=mode, batch_size=16, penalty="l1")
        model.fit(train, y, X_val=val, y_val=y_val)
        expected = log_loss(y_val, model.predict_proba(val))
        assert model.history_[-1]["validation_loss"] == pytest.approx(expected)


def test_each_row_is_given_to_one_replica_near_it() -> None:
    ranks = tuple(
        RankPlan(worker, (Piece(n, 0, 10),), 10, 1) for n, worker in enumerate(["a", "a", "b"])
    )
    plan = Plan(Sync(), 5, 30, ranks, ("a",))
    rows, holders = [7, 0, 4, 5], ["a", "a", "b", *("a", "b", "b", "c")]
    pieces = [
        piece for rank in validating(plan, rows, holders).ranks for piece in rank.pieces
        if piece.partition >= 3
    ]  # fmt: skip
    given = [(p.partition, row) for p in pieces for row in range(p.start, p.stop)]
    assert sorted(given) == [(3 + n, row) for n in range(4) for row in range(rows[n])]
    assert {p.partition for p in pieces if p.moved} == {6}


@pytest.mark.parametrize("on_cluster", [False, True])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"X_val": X_VAL}, "X_val was given without y_val"),
        ({"y_val": Y_VAL}, "y_val was given without X_val"),
        ({"sample_weight_val": Y_VAL}, "sample_weight_val was given without X_val"),
        ({"X_val": X_VAL, "y_val": Y_VAL + 1}, "y_val holds labels [2], which y does not: [0, 1]"),
        ({"X_val": X_VAL[:, :3], "y_val": Y_VAL}, "(X_val, y_val, sample_weight_val): X has 3"),
        (
            {"X_val": X_VAL, "y_val": Y_VAL[:5]},
            "(X_val, y_val, sample_weight_val): Found input",
        ),
        ({"X_val": np.where(X_VAL > 2, np.nan, X_VAL), "y_val": Y_VAL}, "X_val holds NaN"),
        (VALIDATION | {"sample_weight_val": 0 * WEIGHT_VAL}, "no row of X_val counts"),
        (
            {"X_val": da.from_array(X_VAL[:, :3]), "y_val": da.from_array(Y_VAL)},
            "X has 3 features, but LinearClassifier is expecting 5",
        ),
    ],
)
def test_what_is_wrong_with_them_is_said(
    given: Any, message: str, on_cluster: bool, client: Client
) -> None:
    lazy = da.from_array(X, chunks=(450, -1)), da.from_array(Y, chunks=450)
    for data in ((X, Y), lazy):
        with pytest.raises(ValueError, match=re.escape(message)):
            classifier(client=client if on_cluster else None).fit(*data, **given)
