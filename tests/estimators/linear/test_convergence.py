"""Every loss, penalty and optimizer ends at the optimum of the stated objective.

The objective is written again here, and its optimum found by solvers that know nothing
of dps: L-BFGS-B on split variables for smooth losses, a linear or quadratic program by
SLSQP for the others.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from cases import pairs
from scipy.optimize import minimize
from scipy.sparse import csr_array
from scipy.special import expit, xlogy
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler

import dps
from dps.losses.names import LOSSES
from dps.optimizers import OPTIMIZERS, Constant, Momentum, Optimizer, Schedule
from dps.training.lbfgs import full_batch

ALPHA, L1_RATIO, EPSILON = 0.02, 0.4, 0.1
ROWS, FEATURES = 60, 3
NAMES = [name for name in LOSSES if name != "softmax"]
#: Weight decay, which AdamW adds to Adam, is not part of the objective.
EVERY_OPTIMIZER = [
    *(kind() for name, kind in OPTIMIZERS.items() if name != "adamw"), Momentum(nesterov=True),
]  # fmt: skip
RATES = {"SGD": 0.3, "Momentum": 0.05, "Adagrad": 0.5, "ScaledAdagrad": 0.5, "Adam": 0.05}
FADING = {"SGD": 1.0, "Momentum": 0.1, "Adam": 0.1, "Adagrad": 3.0, "ScaledAdagrad": 3.0}
KINKED = {"hinge", "epsilon_insensitive", "quantile"}


#: The rows are repeated and a batch is one copy of them: that many updates an epoch.
COPIES = 40


class Fading(Schedule):
    """The rate over the root of the updates done."""

    def __call__(self, epochs_done: float) -> float:
        return float(self.rate / np.sqrt(1.0 + COPIES * epochs_done))


def softplus(z: Any) -> Any:
    return np.logaddexp(0.0, z)


def pointwise(loss: str, y: Any, raw: Any) -> Any:
    z, r = y * raw, np.abs(raw - y)
    return {
        "log_loss": lambda: softplus(-z),
        "hinge": lambda: np.maximum(0, 1 - z),
        "squared_hinge": lambda: np.maximum(0, 1 - z) ** 2,
        "modified_huber": lambda: np.where(z >= -1, np.maximum(0, 1 - z) ** 2, -4 * z),
        "squared_error": lambda: r**2 / 2,
        "huber": lambda: np.where(r <= EPSILON, r**2 / 2, EPSILON * r - EPSILON**2 / 2),
        "epsilon_insensitive": lambda: np.maximum(0, r - EPSILON),
        "quantile": lambda: r / 2,
        "poisson": lambda: np.exp(raw) - y * raw + xlogy(y, y) - y,
        "gamma": lambda: raw + y * np.exp(-raw) - 1 - np.log(y),
    }[loss]()


@cache
def problem(loss: str) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(ROWS, FEATURES))
    raw = X @ np.array([1.0, -0.5, 0.1]) + 0.3 + 0.7 * rng.normal(size=ROWS)
    y = raw if LOSSES[loss].task == "regression" else np.where(raw > 0, 1.0, -1.0)
    if loss == "poisson":
        y = rng.poisson(np.exp(raw / 2)).astype(float)
    if loss == "gamma":
        y = np.exp(raw / 2) * rng.gamma(2.0, 0.5, ROWS)
    return X, y, rng.random(ROWS) * 2


def ratios(penalty: str | None) -> tuple[float, float]:
    if penalty is None:
        return 0.0, 0.0
    ratio = {"l1": 1.0, "l2": 0.0, "elasticnet": L1_RATIO}[penalty]
    return ALPHA * ratio, ALPHA * (1 - ratio)


def objective(loss: str, penalty: str | None, weighted: bool, w: Any, b: float) -> float:
    X, y, weight = problem(loss)
    weight = weight / weight.mean() if weighted else np.ones(ROWS)
    l1, l2 = ratios(penalty)
    mean = float(np.mean(weight * pointwise(loss, y, X @ w + b)))
    return mean + l1 * np.abs(w).sum() + l2 / 2 * float(w @ w)


@cache
def optimum(loss: str, penalty: str | None, weighted: bool) -> float:
    """By SLSQP on w = p - m with p, m >= 0, and an epigraph variable a row for kinks."""
    X, y, weight = problem(loss)
    weight = weight / weight.mean() if weighted else np.ones(ROWS)
    l1, l2 = ratios(penalty)
    F = FEATURES
    split = np.hstack([X, -X, np.ones((ROWS, 1))])

    def penalties(v: Any) -> float:
        w = v[:F] - v[F : 2 * F]
        return float(l1 * v[: 2 * F].sum() + l2 / 2 * (w @ w))

    bounds = [(0, None)] * (2 * F) + [(None, None)]
    if loss not in KINKED:
        best = minimize(
            lambda v: float(np.mean(weight * pointwise(loss, y, split @ v))) + penalties(v),
            np.full(2 * F + 1, 0.1), method="L-BFGS-B", bounds=bounds,
            options={"maxiter": 10_000, "maxfun": 10**6, "ftol": 1e-15, "gtol": 1e-9},
        )  # fmt: skip
        return float(best.fun)
    # min mean(weight * t) with t >= 0 and t >= the kink's slopes.
    if loss == "hinge":
        slopes, offsets = -(y[:, None] * split), np.ones(ROWS)
    elif loss == "quantile":  # of the median
        slopes, offsets = np.vstack([split, -split]) / 2, np.concatenate([-y, y]) / 2
    else:
        slopes = np.vstack([split, -split])
        offsets = np.concatenate([-y, y]) - EPSILON
    times = len(slopes) // ROWS
    A = np.hstack([-slopes, np.tile(np.eye(ROWS), (times, 1))])
    n = 2 * F + 1

    def value(v: Any) -> float:
        return float(np.mean(weight * v[n:])) + penalties(v)

    def gradient(v: Any) -> Any:
        w = v[:F] - v[F : 2 * F]
        return np.concatenate([l1 + l2 * w, l1 - l2 * w, [0.0], weight / ROWS])

    best = minimize(
        value, np.concatenate([np.full(n, 0.1), np.full(ROWS, 5.0)]), jac=gradient,
        method="SLSQP", bounds=bounds + [(0, None)] * ROWS,
        constraints={"type": "ineq", "fun": lambda v: A @ v - offsets, "jac": lambda v: A},
        options={"maxiter": 2000, "ftol": 1e-12},
    )  # fmt: skip
    assert best.success
    return float(best.fun)


def fitted(loss: str, penalty: str | None, optimizer: Optimizer, weighted: bool) -> Any:
    X, y, weight = problem(loss)
    name = type(optimizer).__name__
    kind = dps.LinearRegressor if LOSSES[loss].task == "regression" else dps.LinearClassifier
    kinked = loss in KINKED
    # A kink's gradient does not fade, so the rate must, and the parameters are averaged.
    schedule = Fading(FADING[name]) if kinked else Constant(RATES[name])
    epochs = (4000 if kinked or loss == "huber" else 2000) // COPIES
    model = kind(
        loss=loss, penalty=penalty, alpha=ALPHA, l1_ratio=L1_RATIO, optimizer=optimizer,
        learning_rate=schedule, max_iter=epochs, tol=None, shuffle=False, n_replicas=1,
        batch_size=ROWS, average=COPIES * ROWS * epochs // 2 if kinked else False,
        standardize=False,
    )  # fmt: skip
    copies = (np.tile(X, (COPIES, 1)), np.tile(y, COPIES))
    model.fit(*copies, np.tile(weight, COPIES) if weighted else None)
    return model


@pairs(
    loss=NAMES,
    penalty=[None, "l1", "l2", "elasticnet"],
    optimizer=EVERY_OPTIMIZER,
    weighted=[False, True],
)
def test_every_loss_penalty_and_optimizer_ends_at_the_optimum(
    loss: str, penalty: str | None, optimizer: Optimizer, weighted: bool
) -> None:
    model = fitted(loss, penalty, optimizer, weighted)
    reached = objective(
        loss, penalty, weighted, np.ravel(model.coef_), float(np.ravel(model.intercept_)[0])
    )
    best = optimum(loss, penalty, weighted)
    assert -1e-6 <= reached / best - 1 <= 1e-4


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("option", ["plain", "weighted", "balanced"])
def test_the_default_objective_is_that_of_logistic_regression(classes: int, option: str) -> None:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(120, 4))
    y = (X @ rng.normal(size=(4, classes)) + rng.gumbel(size=(120, classes))).argmax(axis=1)
    weight = rng.random(120) + 0.2 if option == "weighted" else None
    balance = "balanced" if option == "balanced" else None
    scaler = StandardScaler().fit(X, sample_weight=weight)
    Z = scaler.transform(X)
    peer = LogisticRegression(tol=1e-10, max_iter=10_000, class_weight=balance).fit(Z, y, weight)
    how: dict[str, Any] = {"tol": 1e-13}
    if (classes, option) == (3, "weighted"):
        how = {"optimizer": "momentum", "learning_rate": 0.1, "max_iter": 5000, "tol": None}
    model = dps.LinearClassifier(class_weight=balance, **how).fit(X, y, weight)
    np.testing.assert_allclose(model.predict_proba(X), peer.predict_proba(Z), atol=1e-6)
    np.testing.assert_allclose(model.coef_ * scaler.scale_, peer.coef_, atol=1e-5)


def test_the_default_objective_is_that_of_ridge() -> None:
    rng = np.random.default_rng(6)
    X = rng.normal(size=(100, 4))
    y = X @ rng.normal(size=4) + rng.normal(size=100) + 3
    weight = rng.random(100) + 0.2
    scaler = StandardScaler().fit(X, sample_weight=weight)
    Z = scaler.transform(X)
    peer = Ridge(alpha=1.0).fit(Z, y, weight)
    model = dps.LinearRegressor(
        optimizer="momentum", learning_rate=0.05, max_iter=3000, tol=None
    ).fit(X, y, weight)
    np.testing.assert_allclose(model.coef_ * scaler.scale_, peer.coef_, rtol=1e-8)
    np.testing.assert_allclose(model.predict(X), peer.predict(Z), rtol=1e-8)


@pairs(
    loss=[name for name in NAMES if LOSSES[name].curvature < np.inf],
    penalty=[None, "l2"],
    weighted=[False, True],
)
def test_lbfgs_ends_at_the_optimum_of_every_smooth_loss(
    loss: str, penalty: str | None, weighted: bool
) -> None:
    X, y, weight = problem(loss)
    kind = dps.LinearRegressor if LOSSES[loss].task == "regression" else dps.LinearClassifier
    options = {"penalty": penalty, "alpha": ALPHA, "standardize": False}
    model = kind(loss=loss, optimizer="lbfgs", tol=1e-8, **options)
    model.fit(X, y, weight if weighted else None)
    reached = objective(
        loss, penalty, weighted, np.ravel(model.coef_), float(np.ravel(model.intercept_)[0])
    )
    assert -1e-9 <= reached / optimum(loss, penalty, weighted) - 1 <= 1e-6


def unscaled(name: str) -> tuple[Any, Any, Any]:
    """Features of unlike scales and offsets, the same standardised, and their deviations."""
    rng = np.random.default_rng(8)
    Z = rng.normal(size=(5000, 12))
    Z = (Z - Z.mean(axis=0)) / Z.std(axis=0)
    scales = 10.0 ** rng.uniform(-3, 3, 12)
    offsets = 100 * scales * rng.choice([-1, 1], 12) if name == "offsets" else 0.0
    return Z * scales + offsets, Z, scales


def defaults(u: Any, Z: Any, y: Any, classes: bool) -> tuple[float, Any]:
    """The default objective and its gradient, at coefficients of standardised features."""
    raw = Z @ u[:-1] + u[-1]
    loss = np.logaddexp(0, -y * raw).mean() if classes else ((raw - y) ** 2).mean() / 2
    slope = -y * expit(-y * raw) if classes else raw - y
    gradient = np.append((Z.T @ slope + u[:-1]) / len(y), slope.mean())
    return float(loss + u[:-1] @ u[:-1] / 2 / len(y)), gradient


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("mode", ["sync", "allreduce"])
@pytest.mark.parametrize("name", ["scales", "offsets"])
@pytest.mark.parametrize("kind", [dps.LinearClassifier, dps.LinearRegressor])
def test_defaults_need_no_scaled_features(kind: Any, name: str, mode: str, dtype: Any) -> None:
    X, Z, scales = unscaled(name)
    rng = np.random.default_rng(9)
    score = Z @ rng.normal(size=12)
    classes = kind is dps.LinearClassifier
    noise = rng.logistic(size=len(X)) if classes else rng.normal(size=len(X))
    y = np.sign(score + noise) if classes else score + noise
    best = minimize(
        defaults, np.zeros(13), (Z, y, classes), jac=True, method="L-BFGS-B",
        options={"maxiter": 10_000, "maxfun": 10**6, "ftol": 1e-15, "gtol": 1e-9},
    )  # fmt: skip
    model = kind(mode=mode, n_replicas=2).fit(X.astype(dtype), y)
    w = np.ravel(model.coef_).astype(float)
    u = np.append(w * scales, X.mean(axis=0) @ w + float(np.ravel(model.intercept_)[0]))
    assert defaults(u, Z, y, classes)[0] <= 1.0001 * best.fun


#: What is asked for that only stochastic steps have.
STEPS = {
    "async": {"mode": "async", "n_replicas": 2},
    "a rate": {"learning_rate": 0.1},
    "epochs": {"tol": None, "max_iter": 20},
    "the mean": {"average": True},
    "schedule": {"mode": "allreduce", "learning_rate": "invscaling", "n_replicas": 2},
}


@pytest.mark.parametrize(("rows", "dtype"), [(200, np.float64), (5000, np.float32)])
@pairs(
    kind=[dps.LinearClassifier, dps.LinearRegressor],
    name=["scales", "offsets"],
    options=STEPS.values(),
)
def test_stochastic_steps_need_no_scaled_features(
    kind: Any, name: str, options: dict[str, Any], dtype: Any, rows: int
) -> None:
    X = unscaled(name)[0][:rows].astype(dtype)
    Z = StandardScaler().fit_transform(X.astype(float)).astype(dtype)
    rng = np.random.default_rng(9)
    score = Z @ rng.normal(size=12)
    classes = kind is dps.LinearClassifier
    noise = rng.logistic(size=rows) if classes else rng.normal(size=rows)
    y = np.sign(score + noise) if classes else score + noise
    reached = []
    for data, flag in ((X, True), (Z, False)):
        model = kind(random_state=0, standardize=flag, **options).fit(data, y)
        w = np.ravel(model.coef_).astype(float)
        u = w * X.std(axis=0, dtype=float) if flag else w
        at_means = X.mean(axis=0, dtype=float) @ w if flag else 0.0
        u = np.append(u, at_means + float(np.ravel(model.intercept_)[0]))
        reached.append(defaults(u, Z.astype(float), y, classes)[0])
    assert reached[0] <= 1.005 * reached[1]


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("kind", ["array", "csr"])
def test_a_few_large_numbers_among_ones_do_not_hinder_the_others(kind: str, mode: str) -> None:
    rng = np.random.default_rng(3)
    group, far = rng.integers(50, size=4000), rng.gamma(2, 500, 4000)
    X = np.c_[np.eye(50)[group], far]
    raw = rng.normal(size=50)[group] + (far - 1000) / 700
    y = raw + rng.logistic(size=4000) > 0
    rows = X if kind == "array" else csr_array(X)
    options = {"mode": mode, "learning_rate": 0.1, "batch_size": 64, "random_state": 0}
    model, peer = (
        dps.LinearClassifier(tol=tol, **o).fit(rows, y) for tol, o in ((1e-4, options), (1e-7, {}))
    )

    def loss(fitted: Any) -> float:
        raw = X @ np.ravel(fitted.coef_) + np.ravel(fitted.intercept_)[0]
        fit = softplus(np.where(y, -raw, raw)).mean()
        return float(fit + (fitted.coef_**2).sum() / 2 / len(y))

    assert loss(model) <= 1.01 * loss(peer)


def test_l1_finds_its_optimum_on_features_of_any_scale() -> None:
    X, Z, scales = unscaled("offsets")
    rng = np.random.default_rng(9)
    y = np.sign(Z @ rng.normal(size=12) + rng.logistic(size=len(Z)))
    alpha = 1e-3

    def both(v: Any) -> tuple[float, Any]:  # u is v[:12] - v[12:24], neither negative
        raw = Z @ (v[:12] - v[12:24]) + v[24]
        slope = -y * expit(-y * raw) / len(y)
        pull = Z.T @ slope
        gradient = np.concatenate([np.concatenate([pull, -pull]) + alpha, [slope.sum()]])
        return float(softplus(-y * raw).mean() + alpha * v[:24].sum()), gradient

    best = minimize(
        both, np.zeros(25), jac=True, method="L-BFGS-B", bounds=[(0, None)] * 24 + [(None, None)],
        options={"maxiter": 10_000, "maxfun": 10**6, "ftol": 1e-15, "gtol": 1e-9},
    )  # fmt: skip
    model = dps.LinearClassifier(penalty="l1", alpha=alpha, random_state=0).fit(X, y)
    u = np.ravel(model.coef_) * scales
    v = np.concatenate([np.maximum(u, 0), np.maximum(-u, 0)])
    intercept = X.mean(axis=0) @ np.ravel(model.coef_) + np.ravel(model.intercept_)[0]
    assert both(np.append(v, intercept))[0] <= 1.01 * best.fun
    chosen, kept = best.x[:12] - best.x[12:24] != 0, np.ravel(model.coef_) != 0
    assert (chosen & kept).sum() == chosen.sum()


def test_a_column_that_is_constant_in_the_first_rows_is_learned_from_later_ones() -> None:
    rng = np.random.default_rng(4)
    X = np.c_[rng.normal(size=(4000, 2)), np.full(4000, 50.0)]
    X[1000:, 2] += 25 * rng.normal(size=3000)
    y = X[:, 0] + (X[:, 2] - 50) / 25 > 0
    model = dps.LinearClassifier(random_state=0)
    for _ in range(20):
        for part in range(4):
            rows = slice(1000 * part, 1000 * (part + 1))
            model.partial_fit(X[rows], y[rows], classes=[False, True])
    assert model.score(X, y) > 0.9


def as_well_as_on_scaled_features(name: str, train: Any) -> None:
    X, Z, _ = unscaled(name)
    y = np.sign(Z @ np.random.default_rng(9).normal(size=12) + 0.1) > 0
    model, peer = (dps.LinearClassifier(random_state=0, standardize=flag) for flag in (True, False))
    train(model, X, y)
    train(peer, Z, y)
    assert model.score(X, y) >= peer.score(Z, y) - 0.005 > 0.9


@pytest.mark.parametrize("first", [False, True])
def test_partial_fit_may_begin_or_cease_to_average_on_features_of_any_scale(first: bool) -> None:
    def train(model: Any, X: Any, y: Any) -> None:
        for average in (first, not first):
            model.set_params(average=average)
            for _ in range(5):
                model.partial_fit(X, y, classes=[False, True])

    as_well_as_on_scaled_features("offsets", train)


@pytest.mark.parametrize("before", ["nothing", "lbfgs"])
@pytest.mark.parametrize("name", ["scales", "offsets"])
def test_partial_fit_needs_no_scaled_features(name: str, before: str) -> None:
    def train(model: Any, X: Any, y: Any) -> None:
        if before == "lbfgs":
            model.fit(X[:500], y[:500])
        for part in range(20):
            rows = slice(250 * part, 250 * (part + 1))
            model.partial_fit(X[rows], y[rows], classes=[False, True])

    as_well_as_on_scaled_features(name, train)


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_a_regression_ends_at_its_optimum_in_any_unit(unit: float, offset: float) -> None:
    rng = np.random.default_rng(10)
    X = rng.normal(size=(400, 5)) + 3
    y = unit * (X @ rng.normal(size=5) + rng.normal(size=400) + offset)
    model, peer = dps.LinearRegressor().fit(X, y), Ridge(alpha=1.0).fit(X, y)
    np.testing.assert_allclose(model.coef_, peer.coef_, rtol=1e-2, atol=1e-3 * unit)
    np.testing.assert_allclose(model.predict(X), peer.predict(X), atol=1e-2 * unit)


def test_features_with_offsets_need_no_intercept() -> None:
    rng = np.random.default_rng(11)
    X = rng.normal(size=(500, 6)) + np.array([0, 1, 3, 10, 30, 100])
    y = X @ rng.normal(size=6) + rng.normal(size=500)
    peer = Ridge(alpha=1.0, fit_intercept=False).fit(X, y)
    model = dps.LinearRegressor(fit_intercept=False).fit(X, y)
    best, reached = (np.mean((y - m.predict(X)) ** 2) for m in (peer, model))
    assert reached <= 1.001 * best


@pytest.mark.parametrize("offset", [0.0, 20.0, 1000.0])
def test_huber_finds_targets_that_lie_far_away(offset: float) -> None:
    rng = np.random.default_rng(12)
    X = rng.normal(size=(300, 3))
    y = X.sum(axis=1) + rng.normal(size=300) + offset
    model = dps.LinearRegressor(loss="huber").fit(X, y)
    assert model.score(X, y) > 0.7
    assert np.ravel(model.intercept_)[0] == pytest.approx(offset, abs=0.3)


@pytest.mark.parametrize(("features", "patience"), [(50, 1), (2000, 2), (20_000, 5)])
def test_features_with_a_common_factor_are_not_given_up(features: int, patience: int) -> None:
    rng = np.random.default_rng(13)
    factor = rng.normal(size=60)
    X = factor[:, None] + rng.normal(size=(60, features))
    model = dps.LinearRegressor(n_iter_no_change=patience).fit(X, factor)
    assert model.score(X, factor) > 0.99


def test_almost_equal_features_are_told_apart() -> None:
    rng = np.random.default_rng(14)
    X = rng.normal(size=(300, 1)) + 1e-2 * rng.normal(size=(300, 2))
    y = (X[:, 0] - X[:, 1]) * 1e2 + 0.1 * rng.normal(size=300)
    assert dps.LinearRegressor(alpha=0.0).fit(X, y).score(X, y) > 0.99


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e5 / 3])
def test_a_constant_feature_gets_no_coefficient_to_speak_of(value: float, sparse: bool) -> None:
    rng = np.random.default_rng(15)
    X = np.c_[rng.normal(size=(300, 3)), np.full(300, value)]
    y = X[:, :3].sum(axis=1) + rng.normal(size=300)
    model = dps.LinearRegressor(alpha=0.0).fit(csr_array(X) if sparse else X, y)
    assert abs(model.coef_[-1]) < 1e-6
    assert model.score(X, y) > 0.6


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_warm_starts_of_one_epoch_get_on() -> None:
    rng = np.random.default_rng(16)
    X = rng.normal(size=(300, 3))
    y = (X.sum(axis=1) + rng.logistic(size=300) > 0).astype(int)
    model = dps.LinearClassifier(warm_start=True, max_iter=1)
    losses = [model.fit(X, y).loss_ for _ in range(15)]
    assert losses[-1] == pytest.approx(dps.LinearClassifier().fit(X, y).loss_, rel=1e-2)


def test_a_fit_that_converges_in_its_last_epoch_does_not_warn() -> None:
    rng = np.random.default_rng(17)
    X = rng.normal(size=(300, 3))
    y = X.sum(axis=1) + rng.normal(size=300)
    needed = dps.LinearRegressor().fit(X, y).n_iter_
    assert dps.LinearRegressor(max_iter=needed).fit(X, y).n_iter_ == needed


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_classes_that_a_line_separates_end_in_no_error() -> None:
    model = dps.LinearClassifier(alpha=0.0, tol=0.0).fit(np.array([[0.0], [1.0]]), [0, 1])
    assert model.loss_ < 1e-6


def labelled(rows: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    Z = rng.normal(size=(rows, 2))
    return Z, (Z @ [2.0, -1.0] + rng.logistic(size=rows) > 0).astype(int)


@pytest.mark.parametrize("order", ["drawn", "sorted", "of a kind"])
def test_a_search_of_some_rows_first_saves_passes_over_all(order: str) -> None:
    few, all_rows = labelled(2_000), labelled(20_000)
    Z, y = all_rows
    if order == "sorted":
        Z, y = Z[np.argsort(y)], np.sort(y)
    elif order == "of a kind":  # one of sixteen says nothing of the others
        y[::16] = 1 - y[::16]
    model = dps.LinearClassifier().fit(Z, y)
    exact = LogisticRegression(tol=1e-8).fit(Z, y)
    got, best = (
        softplus(-(2 * y - 1) * m.decision_function(Z)).mean() + (m.coef_**2).sum() / 2 / len(y)
        for m in (model, exact)
    )
    assert got < best + 1e-6
    assert model.n_iter_ < dps.LinearClassifier().fit(*few).n_iter_


def test_a_search_of_some_rows_is_no_longer_than_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Separable classes have no optimum, and without `tol` no end."""
    counts: list[int] = []
    step = full_batch._Descent.step

    def counted(self: full_batch._Descent) -> Any:
        counts.append(self._rows.count)
        return step(self)

    monkeypatch.setattr(full_batch._Descent, "step", counted)
    Z, _ = labelled(20_000)
    y = (Z[:, 0] > 0).astype(int)
    options: dict[str, Any] = {"optimizer": "lbfgs", "penalty": None, "tol": None, "max_iter": 2}
    model = dps.LinearClassifier(**options, n_replicas=1).fit(Z, y)
    assert model.n_iter_ == 2
    assert counts.count(len(Z)) == 1 + 2  # the start, and the epochs
    assert 0 < sum(count for count in counts if count < len(Z)) <= len(Z)
