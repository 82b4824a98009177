"""Linear models end at the optimum, whatever the units of their columns."""

from __future__ import annotations

from functools import cache
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from cases import pairs
from scipy.optimize import linprog, minimize
from scipy.sparse import csr_array
from scipy.special import expit
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.linear_model import Lasso, LogisticRegression, QuantileRegressor, Ridge
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC, SVR
from versions import L1

import dps
from dps import LinearClassifier, LinearRegressor
from dps.preprocessing import FrameEncoder

NEAR = 1.001
PENALTIES = {"l2": 0.0, "l1": 1.0, "elasticnet": 0.15}
MODES = ["sync", "allreduce", "async"]
#: Each loss of z = y * raw or of the residual, and its slope.
MARGINS: dict[str, Any] = {
    "log_loss": lambda z: (np.logaddexp(0, -z), -expit(-z)),
    "squared_hinge": lambda z: (np.maximum(0, 1 - z) ** 2, -2 * np.maximum(0, 1 - z)),
    "modified_huber": lambda z: (
        np.where(z < -1, -4 * z, np.maximum(0, 1 - z) ** 2),
        np.where(z < -1, -4, -2 * np.maximum(0, 1 - z)),
    ),
    "hinge": lambda z: (np.maximum(0, 1 - z), np.where(z < 1, -1.0, 0.0)),
}
RESIDUALS: dict[str, Any] = {
    "squared_error": lambda r: (r**2 / 2, r),
    "huber": lambda r: (
        np.where(abs(r) < 0.1, r**2 / 2, 0.1 * abs(r) - 0.005),
        np.clip(r, -0.1, 0.1),
    ),
    "epsilon_insensitive": lambda r: (np.maximum(0, abs(r) - 0.1), np.sign(r) * (abs(r) > 0.1)),
    "quantile": lambda r: (abs(r) / 2, np.sign(r) / 2),
}


@cache
def classes(name: str) -> tuple[Any, Any]:
    if name == "breast cancer":
        X, y = load_breast_cancer(return_X_y=True)
        return StandardScaler().fit_transform(X), 2.0 * y - 1
    rng = np.random.default_rng(0)
    X, w = rng.normal(size=(3000, 20)), rng.normal(size=20) * (rng.random(20) < 0.4)
    return X, np.sign(X @ w + rng.logistic(size=3000))


@cache
def numbers(name: str) -> tuple[Any, Any]:
    if name == "diabetes":
        X, y = load_diabetes(return_X_y=True)
        return StandardScaler().fit_transform(X), y / y.std()
    rng = np.random.default_rng(1)
    X, w = rng.normal(size=(1000, 20)), rng.normal(size=20) * (rng.random(20) < 0.4)
    return X, X @ w + rng.standard_t(3, size=1000)


def objective(u: Any, X: Any, y: Any, loss: str, l1: float, l2: float) -> tuple[float, Any]:
    """The value at coefficients and an intercept, and the gradient without that of L1."""
    raw, w = X @ u[:-1] + u[-1], u[:-1]
    if loss in MARGINS:
        of_rows, slope = MARGINS[loss](y * raw)
        slope = y * slope
    else:
        of_rows, slope = RESIDUALS[loss](raw - y)
    value = of_rows.mean() + l2 / 2 * w @ w + l1 * abs(w).sum()
    return float(value), np.append(X.T @ slope / len(y) + l2 * w, slope.mean())


def least(X: Any, y: Any, loss: str, l1: float, l2: float) -> float:
    """The optimum of a smooth loss: coefficients are the difference of two that are positive."""
    n = X.shape[1]

    def split(v: Any) -> tuple[float, Any]:
        value, slope = objective(np.append(v[:n] - v[n:-1], v[-1]), X, y, loss, 0.0, l2)
        parts = np.concatenate([slope[:-1] + l1, l1 - slope[:-1], slope[-1:]])
        return value + l1 * v[:-1].sum(), parts

    best = minimize(
        split, np.zeros(2 * n + 1), jac=True, method="L-BFGS-B",
        bounds=[(0, None)] * (2 * n) + [(None, None)],
        options={"maxiter": 20_000, "maxfun": 10**6, "ftol": 1e-13, "gtol": 1e-8, "maxcor": 50},
    )  # fmt: skip
    return float(best.fun)


def value(model: Any, X: Any, y: Any, loss: str, l1: float, l2: float) -> float:
    u = np.append(np.ravel(model.coef_), np.ravel(model.intercept_))
    return objective(u, X, y, loss, l1, l2)[0]


def fit(loss: str, X: Any, y: Any, penalty: str | None, alpha: float, **options: Any) -> Any:
    kind = LinearClassifier if loss in MARGINS else LinearRegressor
    return kind(loss, penalty=penalty, alpha=alpha, random_state=0, **options).fit(X, y)


@pairs(
    loss=["log_loss", "squared_hinge", "modified_huber"],
    name=["breast cancer", "made"],
    penalty=PENALTIES,
)
def test_smooth_losses_of_classes(loss: str, name: str, penalty: str) -> None:
    X, y = classes(name)
    alpha, share = 1e-3, PENALTIES[penalty]
    best = least(X, y, loss, alpha * share, alpha * (1 - share))
    for mode in MODES:
        model = fit(loss, X, y, penalty, alpha, mode=mode)
        assert value(model, X, y, loss, alpha * share, alpha * (1 - share)) <= NEAR * best, mode


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("name", ["diabetes", "made"])
@pytest.mark.parametrize("loss", ["squared_error", "huber"])
def test_smooth_losses_of_numbers(loss: str, name: str, penalty: str) -> None:
    X, y = numbers(name)
    alpha, share = 3e-3, PENALTIES[penalty]
    best = least(X, y, loss, alpha * share, alpha * (1 - share))
    for mode in MODES:
        model = fit(loss, X, y, penalty, alpha, mode=mode)
        assert value(model, X, y, loss, alpha * share, alpha * (1 - share)) <= NEAR * best, mode


@pytest.mark.parametrize(("name", "alpha"), [("breast cancer", 1e-3), ("made", 1e-2)])
def test_hinge_with_l2_ends_where_libsvm_does(name: str, alpha: float) -> None:
    X, y = classes(name)
    peer = SVC(kernel="linear", C=1 / (alpha * len(y)), tol=1e-5).fit(X, y)
    best = value(peer, X, y, "hinge", 0, alpha)
    for mode in MODES:
        model = fit("hinge", X, y, "l2", alpha, mode=mode)
        assert value(model, X, y, "hinge", 0, alpha) <= NEAR * best, mode
        assert model.loss_ == pytest.approx(objective_of_rows(model, X, y, "hinge"))


def objective_of_rows(model: Any, X: Any, y: Any, loss: str) -> float:
    return value(model, X, y, loss, 0.0, 0.0)


@pytest.mark.parametrize("name", ["diabetes", "made"])
def test_epsilon_insensitive_with_l2_ends_where_libsvm_does(name: str) -> None:
    X, y = numbers(name)
    peer = SVR(kernel="linear", C=1 / (0.01 * len(y)), epsilon=0.1, tol=1e-5).fit(X, y)
    best = value(peer, X, y, "epsilon_insensitive", 0, 0.01)
    for mode in MODES:
        model = fit("epsilon_insensitive", X, y, "l2", 0.01, mode=mode)
        assert value(model, X, y, "epsilon_insensitive", 0, 0.01) <= NEAR * best, mode


@pytest.mark.parametrize(("name", "alpha"), [("breast cancer", 1e-2), ("made", 1e-3)])
def test_hinge_with_l1_ends_where_a_linear_program_does(name: str, alpha: float) -> None:
    X, y = classes(name)
    n, k = X.shape
    Z = y[:, None] * X
    best = linprog(  # of w+, w-, the intercept and what each row lacks
        np.concatenate([np.full(2 * k, alpha), [0.0], np.full(n, 1 / n)]),
        A_ub=-np.hstack([Z, -Z, y[:, None], np.eye(n)]), b_ub=-np.ones(n),
        bounds=[(0, None)] * (2 * k) + [(None, None)] + [(0, None)] * n, method="highs",
    )  # fmt: skip
    zeros = np.abs(best.x[:k] - best.x[k : 2 * k]) < 1e-9
    for mode in MODES:
        model = fit("hinge", X, y, "l1", alpha, mode=mode)
        assert value(model, X, y, "hinge", alpha, 0) <= NEAR * best.fun, mode
        assert (zeros != (model.coef_[0] == 0)).sum() <= 1


@pytest.mark.parametrize("alpha", [0.0, 1e-2])
@pytest.mark.parametrize("name", ["diabetes", "made"])
def test_quantiles_with_l1_end_where_a_linear_program_does(name: str, alpha: float) -> None:
    X, y = numbers(name)
    peer = QuantileRegressor(quantile=0.5, alpha=alpha, solver="highs").fit(X, y)
    best = value(peer, X, y, "quantile", alpha, 0)
    for mode in MODES:
        model = fit("quantile", X, y, "l1", alpha, mode=mode)
        assert value(model, X, y, "quantile", alpha, 0) <= NEAR * best, mode
        assert ((np.abs(peer.coef_) < 1e-9) != (model.coef_ == 0)).sum() <= 1


@pytest.mark.parametrize("name", ["breast cancer", "made"])
def test_zeros_of_l1_are_those_of_saga(name: str) -> None:
    X, y = classes(name)
    peer = LogisticRegression(
        **L1, C=1 / (0.01 * len(y)), solver="saga", tol=1e-9, max_iter=100_000
    ).fit(X, y)
    zeros = peer.coef_ == 0
    assert zeros.any()
    assert not zeros.all()
    for mode in MODES:
        model = fit("log_loss", X, y, "l1", 0.01, mode=mode)
        assert (zeros != (model.coef_ == 0)).sum() <= 1, mode


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_zeros_of_l1_are_those_of_coordinate_descent_on_features_of_any_scale(dtype: Any) -> None:
    X, y = numbers("made")
    X = (X * np.geomspace(1e-2, 1e3, 20) + 5).astype(dtype)
    scaled = StandardScaler().fit_transform(X.astype(float))
    peer = Lasso(alpha=0.05, tol=1e-12, max_iter=10**6).fit(scaled, y)
    assert (peer.coef_ == 0).sum() >= 5
    for mode in MODES:
        model = fit("squared_error", X, y, "l1", 0.05, mode=mode)
        assert ((peer.coef_ == 0) != (model.coef_ == 0)).sum() <= 1, mode


def test_several_classes_and_sparse_rows_have_the_zeros_of_saga() -> None:
    X, y = load_iris(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    peer = LogisticRegression(
        **L1, C=1 / (0.01 * len(y)), solver="saga", tol=1e-10, max_iter=100_000
    ).fit(X, y)
    for rows in (X, csr_array(X)):
        model = LinearClassifier(penalty="l1", alpha=0.01).fit(rows, y)
        assert ((peer.coef_ == 0) != (model.coef_ == 0)).sum() <= 1
        assert np.abs(model.coef_ - peer.coef_).max() < 1e-3


def test_async_says_when_replicas_train_in_step() -> None:
    X, y = classes("made")
    model = LinearClassifier(mode="async", n_replicas=2, random_state=0).fit(X, y)
    passes = [epoch["full_batch"] for epoch in model.history_]
    first = passes.index(True)
    assert first > 0
    assert all(passes[first:])
    assert f"{first} epochs, then in step by L-BFGS" in str(model.fit_report_)
    assert {epoch["rows"] for epoch in model.history_} == {3000}
    assert not any(epoch["staleness_max"] for epoch in model.history_[first:])


@pytest.mark.parametrize(
    "options",
    [{"tol": None, "max_iter": 5}, {"learning_rate": 0.1}, {"optimizer": "adagrad"}],
    ids=["epochs", "a rate", "an optimizer"],
)
def test_async_takes_steps_alone_where_these_were_asked_for(options: dict[str, Any]) -> None:
    X, y = classes("made")
    model = LinearClassifier(mode="async", random_state=0, **options).fit(X, y)
    assert not any(epoch["full_batch"] for epoch in model.history_)


def test_async_by_keys_ends_at_the_optimum_too() -> None:
    rng = np.random.default_rng(2)
    at = np.c_[rng.integers(1000, size=6000), 1000 + rng.integers(1000, size=6000)]
    X = csr_array((np.ones(12_000), at.ravel(), np.arange(0, 12_001, 2)), (6000, 2000))
    raw = rng.normal(size=2000)[at].sum(axis=1)
    y = np.where(raw + rng.logistic(size=6000) > 0, 1.0, -1.0)
    options = {"alpha": 1e-3, "penalty": "l2", "random_state": 0}
    steps = LinearClassifier(mode="async", n_replicas=2, **options).fit(X, y)
    peer = LinearClassifier(tol=1e-9, **options).fit(X, y)
    best = value(peer, X, y, "log_loss", 0, 1e-3)
    assert any(epoch["full_batch"] for epoch in steps.history_)
    assert value(steps, X, y, "log_loss", 0, 1e-3) <= NEAR * best


def test_a_fit_that_finished_in_step_can_go_on() -> None:
    X, y = classes("made")
    model = LinearClassifier(mode="async", random_state=0).fit(X, y)
    before = value(model, X, y, "log_loss", 0, 1 / len(y))
    model.partial_fit(X, y)
    assert value(model, X, y, "log_loss", 0, 1 / len(y)) < 1.05 * before
    assert isinstance(dps.LinearClassifier(mode="async").fit(X, y), LinearClassifier)


def test_a_wide_regression_that_is_hardly_penalised_ends_near_its_optimum() -> None:
    """Its loss is tiny beside the variance of y."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(11, 20))
    y, alpha = X[:, :3].sum(axis=1) + rng.normal(size=11), 1e-3 / 11

    def objective(model: Any) -> Any:
        coef = np.ravel(model.coef_)
        return np.mean((model.predict(X) - y) ** 2) / 2 + alpha / 2 * coef @ coef

    model = LinearRegressor(alpha=alpha, standardize=False).fit(X, y)
    assert objective(model) < 1.03 * objective(Ridge(alpha=1e-3, solver="svd").fit(X, y))


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
