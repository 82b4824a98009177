"""Numbers count as those of deviation one, whatever holds them; all other columns as they are."""

from __future__ import annotations

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from cases import pairs
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import dps
from dps.preprocessing import FrameEncoder

RNG = np.random.default_rng(0)
ROWS = 400
X = RNG.normal(size=(ROWS, 6)) * np.logspace(-3, 3, 6) + RNG.normal(size=6) * 100
Z = StandardScaler().fit_transform(X)
Y = (Z @ [2, -1, 0.5, 0, 0, 0] + RNG.logistic(size=ROWS) > 0).astype(int)
T = Z @ RNG.normal(size=6) + RNG.normal(size=ROWS)
WEIGHT = RNG.integers(0, 4, ROWS).astype(float)
FRAME = pd.DataFrame({
    "city": RNG.choice(["Bonn", "Oslo", "Rome"], ROWS, p=[0.9, 0.08, 0.02]),
    "size": 1000 + 50 * RNG.normal(size=ROWS), "rooms": RNG.integers(1, 6, ROWS),
})  # fmt: skip
PLACES = (FRAME["city"] == "Oslo") + (FRAME["size"] - 1000) / 50 + RNG.logistic(size=ROWS) > 0
#: Asked for beside the mode: L-BFGS, and each way of stochastic steps.
WAYS: dict[str, dict[str, Any]] = {
    "lbfgs": {},
    "scaled_adagrad": {"tol": None, "max_iter": 3},
    "sgd": {"optimizer": "sgd", "learning_rate": 0.05, "tol": None, "max_iter": 3},
    "adam": {"optimizer": "adam", "learning_rate": 0.05, "tol": None, "max_iter": 3},
    "mean": {"average": True, "tol": None, "max_iter": 3},
}


@pytest.mark.parametrize("mode", ["sync", "async", "allreduce"])
@pytest.mark.parametrize("penalty", ["l2", "l1", "elasticnet"])
def test_the_penalty_is_that_of_standardized_features(penalty: str, mode: str) -> None:
    options = {"penalty": penalty, "alpha": 0.02, "tol": 1e-7, "mode": mode, "random_state": 0}
    model = dps.LinearClassifier(**options, n_replicas=2).fit(X, Y)
    scaled = dps.LinearClassifier(**options, standardize=False).fit(Z, Y)
    np.testing.assert_allclose(model.coef_ * X.std(axis=0), scaled.coef_, rtol=2e-3, atol=2e-4)
    assert ((model.coef_ == 0) == (scaled.coef_ == 0)).all()


@pytest.mark.parametrize("kind", ["array", "chunks", "frame", "partitions"])
def test_a_pipeline_of_scikit_learn_ends_at_the_same_coefficients(kind: str) -> None:
    peer = Ridge(alpha=1.0).fit(Z, T)
    data: Any = {
        "array": X, "chunks": da.from_array(X, chunks=(90, 6)), "frame": pd.DataFrame(X),
        "partitions": dd.from_pandas(pd.DataFrame(X, columns=list("abcdef")), npartitions=5),
    }[kind]  # fmt: skip
    y = da.from_array(T, chunks=90) if kind == "chunks" else T
    if kind == "partitions":
        y = dd.from_pandas(pd.Series(T), npartitions=5)
    model = dps.LinearRegressor(tol=1e-9).fit(data, y)
    np.testing.assert_allclose(model.coef_ * X.std(axis=0), peer.coef_, rtol=1e-4, atol=1e-6)
    raw = dps.LinearRegressor(tol=1e-9, standardize=False).fit(Z * 100, T)
    np.testing.assert_allclose(raw.coef_, Ridge(alpha=1.0).fit(Z * 100, T).coef_, atol=1e-7)


@pytest.mark.parametrize("steps", [False, True], ids=["lbfgs", "steps"])
def test_categories_count_as_they_are(steps: bool) -> None:
    by_hand = make_column_transformer(
        (OneHotEncoder(), ["city"]),
        (StandardScaler(), make_column_selector(dtype_include="number")),
    )
    Z = by_hand.fit_transform(FRAME)
    peer = LogisticRegression(C=0.05, tol=1e-10, max_iter=10_000).fit(Z, PLACES)
    options: dict[str, Any] = {"tol": 1e-10}
    if steps:
        options = {"optimizer": "momentum", "learning_rate": 0.05, "max_iter": 2000, "tol": None,
                   "batch_size": ROWS}  # fmt: skip
    model = dps.LinearClassifier(alpha=1 / 0.05 / ROWS, random_state=0, **options)
    model.fit(FRAME, PLACES)
    scale = [1, 1, 1, FRAME["size"].std(ddof=0), FRAME["rooms"].std(ddof=0)]
    named = model.coefficients()[["city_Bonn", "city_Oslo", "city_Rome", "size", "rooms"]]
    np.testing.assert_allclose(named * scale, peer.coef_[0], atol=1e-4)
    # Sparse columns without a frame have no numbers.
    rows = scipy.sparse.csr_array(X)
    kept, plain = (
        dps.LinearClassifier(standardize=flag, random_state=0).fit(rows, Y)
        for flag in (True, False)
    )
    np.testing.assert_array_equal(kept.coef_, plain.coef_)


@pairs(
    way=WAYS,
    mode=["sync", "allreduce"],
    penalty=["l1", "l2", None],
    kind=["array", "columns", "frame", "wide frame"],
    dtype=[np.float32, np.float64],
)
def test_units_do_not_matter(way: str, mode: str, penalty: Any, kind: str, dtype: Any) -> None:
    """By powers of two, whose products are exact: bit for bit, by keys as well."""
    units = np.exp2([-8.0, 0.0, 5.0]).astype(dtype)
    numbers = RNG.normal(size=(ROWS, 3)).astype(dtype) + dtype(3.0)
    y = numbers[:, 0] - numbers[:, 1] + RNG.logistic(size=ROWS) > 0
    words = RNG.choice([f"w{i}" for i in range(200)], ROWS)

    def data(values: Any) -> Any:
        if kind == "array":
            return values
        frame = pd.DataFrame(values, columns=list("abc"))
        if kind == "columns":
            return frame
        return frame.assign(word=words if kind == "wide frame" else np.where(y, "yes", "no"))

    options = {"alpha": 0.01, "mode": mode, "penalty": penalty, "n_replicas": 2, "batch_size": 32}
    if kind == "wide frame":  # of which steps go by keys
        options["encoder"] = FrameEncoder(n_buckets=4096)
    if way == "lbfgs":
        del options["batch_size"]
    one, other = (
        dps.LinearClassifier(random_state=0, **options, **WAYS[way]).fit(data(values), y)
        for values in (numbers, numbers * units)
    )
    names = ["x0", "x1", "x2"] if kind == "array" else list("abc")
    np.testing.assert_array_equal(one.coefficients()[names], other.coefficients()[names] * units)
    np.testing.assert_array_equal(one.intercept_, other.intercept_)


def test_a_weight_is_a_row_that_is_repeated() -> None:
    weighted = dps.LinearRegressor(alpha=0.1, tol=1e-9).fit(X, T, WEIGHT)
    again = np.repeat(np.arange(ROWS), WEIGHT.astype(int))
    repeated = dps.LinearRegressor(alpha=0.1, tol=1e-9).fit(X[again], T[again])
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-6)


@pytest.mark.parametrize("value", [0.0, 7.0, 1e-300, 1e10])
def test_columns_that_do_not_vary_or_vary_beyond_squares_are_no_obstacle(value: float) -> None:
    far = np.c_[Z[:, :2], np.full(ROWS, value)]
    model = dps.LinearRegressor(random_state=0).fit(far, T)
    plain = dps.LinearRegressor(random_state=0).fit(far[:, :2], T)
    np.testing.assert_allclose(model.predict(far), plain.predict(far[:, :2]), atol=0.02)
    tiny = np.c_[Z[:, :2], np.where(Y, 1e-200, 0.0)]
    assert np.isfinite(dps.LinearRegressor(random_state=0).fit(tiny, T).coef_).all()


@pytest.mark.parametrize("optimizer", ["scaled_adagrad", "sgd"])
def test_partial_fit_keeps_what_it_saw_first(optimizer: str, tmp_path: Any) -> None:
    options: dict[str, Any] = {
        "optimizer": optimizer, "learning_rate": 0.1, "alpha": 0.01, "shuffle": False,
        "n_replicas": 1, "random_state": 0, "batch_size": 64,
    }  # fmt: skip
    whole = dps.LinearClassifier(max_iter=3, tol=None, **options).fit(X, Y)
    steps = dps.LinearClassifier(**options)
    for _ in range(3):
        steps.partial_fit(X, Y, classes=[0, 1])
        steps.save(tmp_path / str(steps.n_iter_))
        steps = dps.load(tmp_path / str(steps.n_iter_))
    np.testing.assert_allclose(steps.coef_, whole.coef_, rtol=1e-10)
    # Rows of another kind are counted in the units of the first.
    assert np.isfinite(steps.partial_fit(X[:50] * 2, Y[:50]).coef_).all()


def test_a_warm_start_counts_in_the_units_of_its_own_rows() -> None:
    warm = dps.LinearRegressor(alpha=0.1, warm_start=True, tol=1e-9).fit(X * 3 + 1, T).fit(X, T)
    alone = dps.LinearRegressor(alpha=0.1, tol=1e-9).fit(X, T)
    np.testing.assert_allclose(warm.coef_, alone.coef_, rtol=1e-4, atol=1e-9)
