"""Defaults end within a thousandth of the optimum, whatever the loss, the penalty and the mode.

The objective is written again here. Its optimum is that of solvers which know nothing of dps:
L-BFGS-B on split variables, libsvm, and linear programs by HiGHS. The zeros of L1 are those of
saga and of coordinate descent.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog, minimize
from scipy.sparse import csr_array
from scipy.special import expit
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.linear_model import Lasso, LogisticRegression, QuantileRegressor, Ridge
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR
from versions import L1

import dps
from dps import LinearClassifier, LinearRegressor

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


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("name", ["breast cancer", "made"])
@pytest.mark.parametrize("loss", ["log_loss", "squared_hinge", "modified_huber"])
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


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("alpha", [1e-3, 1e-2])
@pytest.mark.parametrize("name", ["breast cancer", "made"])
def test_hinge_with_l2_ends_where_libsvm_does(name: str, alpha: float, mode: str) -> None:
    X, y = classes(name)
    peer = SVC(kernel="linear", C=1 / (alpha * len(y)), tol=1e-5).fit(X, y)
    model = fit("hinge", X, y, "l2", alpha, mode=mode)
    assert value(model, X, y, "hinge", 0, alpha) <= NEAR * value(peer, X, y, "hinge", 0, alpha)
    assert model.loss_ == pytest.approx(objective_of_rows(model, X, y, "hinge"))


def objective_of_rows(model: Any, X: Any, y: Any, loss: str) -> float:
    return value(model, X, y, loss, 0.0, 0.0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["diabetes", "made"])
def test_epsilon_insensitive_with_l2_ends_where_libsvm_does(name: str, mode: str) -> None:
    X, y = numbers(name)
    peer = SVR(kernel="linear", C=1 / (0.01 * len(y)), epsilon=0.1, tol=1e-5).fit(X, y)
    model = fit("epsilon_insensitive", X, y, "l2", 0.01, mode=mode)
    best = value(peer, X, y, "epsilon_insensitive", 0, 0.01)
    assert value(model, X, y, "epsilon_insensitive", 0, 0.01) <= NEAR * best


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("alpha", [1e-3, 1e-2])
@pytest.mark.parametrize("name", ["breast cancer", "made"])
def test_hinge_with_l1_ends_where_a_linear_program_does(name: str, alpha: float, mode: str) -> None:
    X, y = classes(name)
    n, k = X.shape
    Z = y[:, None] * X
    best = linprog(  # of w+, w-, the intercept and what each row lacks
        np.concatenate([np.full(2 * k, alpha), [0.0], np.full(n, 1 / n)]),
        A_ub=-np.hstack([Z, -Z, y[:, None], np.eye(n)]), b_ub=-np.ones(n),
        bounds=[(0, None)] * (2 * k) + [(None, None)] + [(0, None)] * n, method="highs",
    )  # fmt: skip
    model = fit("hinge", X, y, "l1", alpha, mode=mode)
    assert value(model, X, y, "hinge", alpha, 0) <= NEAR * best.fun
    zeros = np.abs(best.x[:k] - best.x[k : 2 * k]) < 1e-9
    assert (zeros != (model.coef_[0] == 0)).sum() <= 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("alpha", [0.0, 1e-2])
@pytest.mark.parametrize("name", ["diabetes", "made"])
def test_quantiles_with_l1_end_where_a_linear_program_does(
    name: str, alpha: float, mode: str
) -> None:
    X, y = numbers(name)
    peer = QuantileRegressor(quantile=0.5, alpha=alpha, solver="highs").fit(X, y)
    model = fit("quantile", X, y, "l1", alpha, mode=mode)
    best = value(peer, X, y, "quantile", alpha, 0)
    assert value(model, X, y, "quantile", alpha, 0) <= NEAR * best
    assert ((np.abs(peer.coef_) < 1e-9) != (model.coef_ == 0)).sum() <= 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["breast cancer", "made"])
def test_zeros_of_l1_are_those_of_saga(name: str, mode: str) -> None:
    X, y = classes(name)
    peer = LogisticRegression(
        **L1, C=1 / (0.01 * len(y)), solver="saga", tol=1e-9, max_iter=100_000
    ).fit(X, y)
    model = fit("log_loss", X, y, "l1", 0.01, mode=mode)
    zeros = peer.coef_ == 0
    assert zeros.any()
    assert not zeros.all()
    assert (zeros != (model.coef_ == 0)).sum() <= 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_zeros_of_l1_are_those_of_coordinate_descent_on_features_of_any_scale(
    dtype: Any, mode: str
) -> None:
    X, y = numbers("made")
    X = (X * np.geomspace(1e-2, 1e3, 20) + 5).astype(dtype)
    scaled = StandardScaler().fit_transform(X.astype(float))
    peer = Lasso(alpha=0.05, tol=1e-12, max_iter=10**6).fit(scaled, y)
    model = fit("squared_error", X, y, "l1", 0.05, mode=mode)
    assert (peer.coef_ == 0).sum() >= 5
    assert ((peer.coef_ == 0) != (model.coef_ == 0)).sum() <= 1


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
