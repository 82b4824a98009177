"""Estimators for users: containers, lazy predictions, labels, copies, and honoured parameters."""

from __future__ import annotations

import ast
import dataclasses
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import joblib
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from cases import slow
from sklearn.base import clone
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV

import dps

ROWS, FEATURES = 600, 5
RNG = np.random.default_rng(0)
X = np.where(RNG.random((ROWS, FEATURES)) < 0.6, RNG.integers(-3, 4, (ROWS, FEATURES)), 0.0)
Y = (X @ RNG.normal(size=FEATURES) + RNG.logistic(size=ROWS) > 0).astype(int)
FRAME = pd.DataFrame(X, columns=list("abcde"), index=np.arange(ROWS) * 2)
BLOCKS = da.from_array(X, chunks=(100, FEATURES))
LABELS = da.from_array(Y, chunks=100)


def classifier(**options: Any) -> dps.LinearClassifier:
    return dps.LinearClassifier(
        **{"max_iter": 5, "tol": None, "shuffle": False, "n_replicas": 1, **options}
    )


EXPECTED = classifier().fit(X, Y)
UNKNOWN = BLOCKS.map_blocks(lambda block: block, chunks=((np.nan,) * 6, (FEATURES,)))
CONTAINERS = {
    "pandas": (FRAME, Y),
    "csr": (scipy.sparse.csr_matrix(X), Y),
    "csr array": (scipy.sparse.csr_array(X), Y),
    "csc": (scipy.sparse.csc_matrix(X), Y),
    "coo": (scipy.sparse.coo_matrix(X), Y),
    "fortran": (np.asfortranarray(X), Y),
    "int8": (X.astype(np.int8), Y),
    "dask int8": (BLOCKS.astype(np.int8), LABELS),
    "dataframe of small numbers": (dd.from_pandas(FRAME.astype("int8"), npartitions=6), LABELS),
}


@pytest.mark.parametrize("name", list(CONTAINERS))
def test_every_container_gives_the_same_model(name: str) -> None:
    data, labels = CONTAINERS[name]
    # Columns of sparse rows count as they are.
    model, expected = (classifier(standardize=False).fit(*d) for d in ((data, labels), (X, Y)))
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-6)
    assert model.coef_.dtype == np.float64
    assert model.history_[-1]["rows"] == ROWS


def test_float32_stays_float32() -> None:
    model = classifier().fit(X.astype(np.float32), Y)
    assert model.coef_.dtype == np.float32
    np.testing.assert_allclose(model.coef_, EXPECTED.coef_, rtol=1e-3)


def test_several_chunks_of_columns_are_joined_with_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"cut in 2 chunks of columns.*X.rechunk\(\{1: -1\}\)"):
        model = classifier().fit(BLOCKS.rechunk((100, 3)), LABELS)
    np.testing.assert_allclose(model.coef_, EXPECTED.coef_)


@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function"])
@pytest.mark.parametrize("classes", [2, 3])
def test_predictions_are_lazy_and_keep_chunks_and_index(method: str, classes: int) -> None:
    labels = np.array(["no", "yes", "maybe"])[(np.arange(ROWS) % 3 if classes == 3 else Y)]
    model = classifier(max_iter=2).fit(X, labels)
    expected = getattr(model, method)(X)
    for data in (BLOCKS, UNKNOWN, BLOCKS.map_blocks(scipy.sparse.csr_matrix)):
        lazy = getattr(model, method)(data)
        assert lazy.dtype == expected.dtype
        assert str(lazy.chunks[0]) == str(data.chunks[0])
        np.testing.assert_array_equal(lazy.compute().shape, expected.shape)
        assert (lazy.compute() == expected).all() or np.allclose(lazy.compute(), expected)
    frame = dd.from_pandas(FRAME, npartitions=4)
    model = classifier(max_iter=2).fit(
        frame, dd.from_pandas(pd.Series(labels, FRAME.index), npartitions=4)
    )
    lazy = getattr(model, method)(frame)
    assert lazy.divisions == frame.divisions
    computed = lazy.compute()
    assert computed.index.equals(FRAME.index)
    if computed.ndim == 2:
        assert list(computed.columns) == list(model.classes_)
    assert type(lazy._meta) is type(computed)
    local = getattr(model, method)(FRAME)
    assert (computed.to_numpy() == local).all() or np.allclose(computed.to_numpy(), local)


def test_scores_are_computed_where_the_data_lies() -> None:
    weight = RNG.random(ROWS)
    lazy = da.from_array(weight, chunks=100)
    assert EXPECTED.score(BLOCKS, LABELS) == pytest.approx(EXPECTED.score(X, Y))
    assert EXPECTED.score(BLOCKS, LABELS, lazy) == pytest.approx(EXPECTED.score(X, Y, weight))
    model = dps.LinearRegressor(max_iter=5, tol=None, n_replicas=1).fit(X, X[:, 0] * 2 + 1)
    y = BLOCKS[:, 0] * 2 + 1
    expected = model.score(X, y.compute(), weight)
    assert model.score(BLOCKS, y, lazy) == pytest.approx(expected)


@pytest.mark.parametrize(
    "labels",
    [["b", "a", "c"], [False, True, True], [7, -1, 3], list(pd.Categorical(["x", "y", "z"]))],
    ids=["str", "bool", "int", "category"],
)
def test_labels_of_any_type_with_classes_missing_from_partitions(labels: list[Any]) -> None:
    # Sorted by label: no partition holds them all.
    y = np.array(labels)[np.sort(np.arange(ROWS) % 3)]
    model = classifier().fit(BLOCKS, da.from_array(y, chunks=100))
    assert model.classes_.tolist() == sorted(set(labels))
    assert set(model.predict(X)) <= set(labels)


def test_copies_share_the_client_and_pickles_leave_it_out() -> None:
    class Client:
        def __reduce__(self) -> Any:
            raise TypeError("a client was pickled")

    client = Client()
    model = dps.LinearClassifier(client=client, alpha=0.5)
    assert clone(model).client is client
    assert clone(model).alpha == 0.5
    EXPECTED.client = client
    try:
        copy = pickle.loads(pickle.dumps(EXPECTED))
    finally:
        EXPECTED.client = None
    assert copy.client is None
    assert np.array_equal(copy.predict(X), EXPECTED.predict(X))


def test_grid_search() -> None:
    search = GridSearchCV(classifier(), {"alpha": [1e-3, 10.0]}, cv=3, n_jobs=2).fit(X, Y)
    assert search.best_params_ == {"alpha": 1e-3}


def test_joblib_files_hold_a_fitted_estimator(tmp_path: Path) -> None:
    joblib.dump(EXPECTED, tmp_path / "model.joblib")
    loaded = joblib.load(tmp_path / "model.joblib")
    assert np.array_equal(loaded.predict_proba(X), EXPECTED.predict_proba(X))


@pytest.mark.parametrize("mode", ["sync", "allreduce", "async"])
def test_partial_fit_carries_on_where_it_was(mode: str) -> None:
    options = {"optimizer": "adam", "learning_rate": "invscaling", "batch_size": 50, "mode": mode}
    options["alpha"] = 1 / ROWS  # "auto" takes the rows of each call for new ones
    whole = classifier(**options, max_iter=3).fit(X, Y)
    model = classifier(**options)
    for _ in range(3):
        model.partial_fit(X, Y, classes=[0, 1])
    assert np.array_equal(model.coef_, whole.coef_)
    copy = pickle.loads(pickle.dumps(model)).partial_fit(X, Y)
    assert np.array_equal(copy.coef_, model.partial_fit(X, Y).coef_)


def test_partial_fit_carries_on_with_an_average() -> None:
    options = {"optimizer": "sgd", "learning_rate": 0.1, "batch_size": 50, "average": True}
    options["alpha"] = 1 / ROWS
    whole = classifier(**options, max_iter=3).fit(X, Y)
    model = classifier(**options)
    for _ in range(3):
        model.partial_fit(X, Y, classes=[0, 1])
    assert np.array_equal(model.coef_, whole.coef_)


def test_a_warm_start_starts_from_the_coefficients() -> None:
    model = classifier(max_iter=50).fit(X, Y)
    before = log_loss(Y, model.predict_proba(X))
    model.set_params(warm_start=True, max_iter=1, learning_rate=1e-12)
    assert model.fit(X, Y).loss_ == pytest.approx(before, rel=1e-6)
    constant = log_loss(Y, np.full(len(Y), Y.mean()))
    assert model.set_params(warm_start=False).fit(X, Y).loss_ == pytest.approx(constant, rel=1e-6)


def test_averaging_is_the_mean_over_updates() -> None:
    options = {"optimizer": "sgd", "learning_rate": 0.1, "batch_size": ROWS}
    steps = [classifier(**options, max_iter=n).fit(X, Y).coef_ for n in (1, 2, 3)]
    average = classifier(**options, max_iter=3, average=True).fit(X, Y)
    np.testing.assert_allclose(average.coef_, np.mean(steps, axis=0))
    late = classifier(**options, max_iter=3, average=ROWS + 1).fit(X, Y)
    np.testing.assert_allclose(late.coef_, np.mean(steps[1:], axis=0))


def test_class_weights_are_sample_weights() -> None:
    weights = {0: 1.0, 1: 3.0}
    by_row = np.where(Y == 1, 3.0, 1.0)
    # By how much numbers vary does not depend on classes.
    a = classifier(class_weight=weights, standardize=False).fit(X, Y)
    b = classifier(standardize=False).fit(X, Y, by_row)
    np.testing.assert_allclose(a.coef_, b.coef_)


@pytest.mark.parametrize("mode", ["sync", *slow("async", "allreduce")])
def test_early_stopping_holds_rows_out(mode: str) -> None:
    model = dps.LinearClassifier(
        early_stopping=True, validation_fraction=0.25, mode=mode, n_replicas=2, random_state=0
    ).fit(BLOCKS, LABELS)
    trained = model.history_[0]["rows"]
    assert 0.65 * ROWS < trained < 0.85 * ROWS
    assert all(record["rows"] == trained for record in model.history_)
    assert all(0 < record["validation_loss"] < 1 for record in model.history_)
    assert sum(rank.rows for rank in model.plan_.ranks) == trained


def test_the_loss_of_an_epoch_is_the_mean_loss_seen() -> None:
    model = classifier(max_iter=1, learning_rate=1e-12).fit(X, Y)
    constant = log_loss(Y, np.full(len(Y), Y.mean()))
    assert model.loss_ == pytest.approx(constant, rel=1e-6)


@pytest.mark.parametrize(
    "use", ["pass", "dps.LinearClassifier().fit([[0.0], [1.0]] * 9, [0, 1] * 9)"]
)
def test_importing_dps_and_fitting_arrays_imports_no_dask(use: str) -> None:
    code = f"import sys, dps; {use}; assert not {{'dask', 'distributed'}} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    "name", [name for name in dps.__all__ if name.endswith(("ifier", "ressor"))]
)
def test_docstrings_state_the_defaults_that_there_are(name: str) -> None:
    cls = getattr(dps, name)
    stated = {}
    for names, value in re.findall(r"^(\w[\w, ]*) : .*default=(.*)$", cls.__doc__, re.MULTILINE):
        stated |= dict.fromkeys(names.split(", "), ast.literal_eval(value))
    assert stated == {
        each.name: each.default
        for each in dataclasses.fields(cls)
        if each.default is not dataclasses.MISSING
    }


def test_positional_parameters_are_the_same_of_classifiers_and_regressors() -> None:
    for name in ("Linear", "MLP", "FM", "Model"):
        classifier, regressor = getattr(dps, f"{name}Classifier"), getattr(dps, f"{name}Regressor")
        first = [each.name for each in dataclasses.fields(classifier) if not each.kw_only]
        assert first == [each.name for each in dataclasses.fields(regressor) if not each.kw_only]
        assert first


def test_the_best_loss_is_that_which_the_fit_looked_at() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    y = (X[:, 0] + rng.normal(size=300) > 0).astype(int)
    model = dps.MLPClassifier((8,), max_iter=5, random_state=0).fit(X, y)
    best = model.best_loss_
    assert best == min(epoch["validation_loss"] for epoch in model.history_)
    assert model.set_params(early_stopping=False).best_loss_ == best
    assert model.fit(X, y).best_loss_ == min(epoch["loss"] for epoch in model.history_)
