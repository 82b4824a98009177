"""Linear models that say "converged" are at the optimum, however alike their columns are."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
from cases import pairs
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.preprocessing import StandardScaler

from dps import LinearClassifier, LinearRegressor
from dps.losses import Huber
from dps.training.lbfgs.pieces import Pieces

Array = NDArray[np.float64]


def alike(rng: np.random.Generator, n: int) -> Array:
    """A few directions, and a little noise in all columns."""
    width, rank = int(rng.integers(20, 61)), int(rng.integers(2, 6))
    noise = 10.0 ** rng.uniform(-3, -1) * rng.normal(size=(n, width))
    return rng.normal(size=(n, rank)) @ rng.normal(size=(rank, width)) + noise


def twins(rng: np.random.Generator, n: int) -> Array:
    some = rng.normal(size=(n, 5))
    return np.c_[some, some + 10.0 ** rng.uniform(-4, -1) * rng.normal(size=(n, 5))]


def powers(rng: np.random.Generator, n: int) -> Array:
    return np.vander(rng.uniform(-1, 1, n) + rng.integers(3), rng.integers(5, 10))[:, :-1]


def squares(rng: np.random.Generator, n: int) -> Array:
    some, (i, j) = rng.normal(size=(n, 6)) + rng.uniform(0, 3), np.triu_indices(6)
    return np.c_[some, some[:, i] * some[:, j]]


KINDS: dict[str, Callable[[np.random.Generator, int], Array]] = {
    "alike": alike,
    "twins": twins,
    "powers": powers,
    "squares": squares,
    "deficient": lambda rng, n: rng.normal(size=(n, 4)) @ rng.normal(size=(4, 12)),
    "scales": lambda rng, n: rng.normal(size=(n, 8)) * 10.0 ** rng.uniform(-6, 6, 8) + 1e3,
    "tails": lambda rng, n: rng.standard_t(3, size=(n, 8)) @ rng.normal(size=(8, 8)),
    "wide": lambda rng, n: rng.normal(size=(n, 280)),  # more than are looked at in pairs
    "one-hot": lambda rng, n: np.eye(10)[rng.integers(0, 10, n)],
}
LOSSES = ["squared_error", "huber", "poisson", "log_loss", "squared_hinge", "classes"]
#: A combination of columns that varies less, as a share, is taken for a constant: its square is
#: near the rounding errors of products.
LEAST = 2e-6
PENALTIES = [None, 1e-4, 1e-2, 1.0]


def of_rows(loss: str, raw: Array, y: Any) -> tuple[Array, Array]:
    """The loss of each row, and its derivative by the raw outputs."""
    if loss == "classes":
        shares, own = softmax(raw, axis=1), np.eye(3)[y]
        return -np.log((shares * own).sum(axis=1)), shares - own
    one, sign = raw[:, 0], np.where(y, 1, -1)
    value, slope = {
        "squared_error": lambda: ((one - y) ** 2 / 2, one - y),
        "huber": lambda: (
            np.where(abs(one - y) <= 1, (one - y) ** 2 / 2, abs(one - y) - 0.5),
            np.clip(one - y, -1, 1),
        ),
        "poisson": lambda: (np.exp(one) - y * one, np.exp(one) - y),
        "log_loss": lambda: (np.logaddexp(0, -sign * one), -sign * expit(-sign * one)),
        "squared_hinge": lambda: (
            np.maximum(0, 1 - sign * one) ** 2,
            -2 * sign * np.maximum(0, 1 - sign * one),
        ),
    }[loss]()
    return value, slope[:, None]


def problem(number: int, kind: str, loss: str) -> tuple[Array, Any, Any]:
    """Rows, targets and weights."""
    rng = np.random.default_rng(number)
    n = int(rng.integers(300, 2500))
    X = KINDS[kind](rng, n)
    directions, length, _ = np.linalg.svd(StandardScaler().fit_transform(X), full_matrices=False)
    directions = directions[:, length > LEAST * length[0]]
    # All directions matter, also those in which rows hardly differ.
    signal = directions @ rng.normal(size=directions.shape[1])
    signal *= 1 / signal.std()
    y: Any = signal + rng.logistic(size=n) > 0
    if loss in ("squared_error", "huber"):
        y = signal + rng.standard_t(3, size=n)
    elif loss == "poisson":
        y = rng.poisson(np.exp(np.clip(signal / 2, -4, 4))).astype(float)
    elif loss == "classes":
        y = np.argmax(np.c_[signal, -signal, 0 * signal] + rng.gumbel(size=(n, 3)), axis=1)
    return X, y, rng.uniform(0.5, 2, n) if number % 3 == 0 else None


def excess(number: int, kind: str, loss: str, penalty: float | None) -> float:
    """The part of a constant's loss by which a fit misses the optimum; zero if it warns."""
    X, y, weight = problem(number, kind, loss)
    l2, k = penalty or 0.0, 3 if loss == "classes" else 1
    options: Any = {"penalty": None} if penalty is None else {"alpha": penalty}
    name: Any = {"classes": "log_loss", "huber": Huber(1.0)}.get(loss, loss)
    one = LinearRegressor if loss in ("squared_error", "huber", "poisson") else LinearClassifier
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = one(name, standardize=False, **options).fit(X, y, weight)
    assert model.n_iter_ < 100
    if any(issubclass(each.category, ConvergenceWarning) for each in caught):
        return 0.0
    share = np.ones(len(X)) if weight is None else weight
    share = share / share.sum()

    def objective(columns: Array, by: Array, point: Array) -> tuple[float, Array]:
        """Of coefficients ``by @ coef``, in columns for these, and an intercept."""
        coef, intercept = point.reshape(-1, k)[:-1], point.reshape(-1, k)[-1]
        value, slope = of_rows(loss, columns @ coef + intercept, y)
        slope = share[:, None] * slope
        gradient = np.r_[columns.T @ slope + l2 * by.T @ (by @ coef), [slope.sum(axis=0)]]
        return float(share @ value + l2 / 2 * ((by @ coef) ** 2).sum()), gradient.ravel()

    # Where all directions are as long as each other, any solver finds the optimum.
    mean, deviation = X.mean(axis=0), np.where(X.std(axis=0) > 0, X.std(axis=0), 1.0)
    u, s, v = np.linalg.svd((X - mean) / deviation, full_matrices=False)
    kept = s > LEAST * s[0]
    by = v[kept].T / s[kept] / deviation[:, None] * len(X) ** 0.5
    root = np.linalg.inv(np.linalg.cholesky(l2 * by.T @ by + np.eye(kept.sum()))).T
    columns, by = u[:, kept] * len(X) ** 0.5 @ root, by @ root
    found = minimize(
        lambda point: objective(columns, by, point), np.zeros((len(root) + 1) * k), jac=True,
        method="L-BFGS-B", options={"maxiter": 20_000, "ftol": 1e-16, "gtol": 1e-9, "maxcor": 50},
    )  # fmt: skip
    coef = np.r_[np.atleast_2d(model.coef_).T, [np.ravel(model.intercept_)]]
    reached, _ = objective(X, np.eye(X.shape[1]), coef.ravel())
    constant, _ = objective(columns, by, found.x * 0)
    return (reached - found.fun) / constant


@pairs(kind=list(KINDS), loss=LOSSES, penalty=PENALTIES)
def test_what_has_converged_is_at_the_optimum(kind: str, loss: str, penalty: float | None) -> None:
    assert excess(len(kind) + len(loss), kind, loss, penalty) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_has_converged_is_at_the_optimum_for_many(kind: str) -> None:
    found = [
        excess(number, kind, LOSSES[number % 6], PENALTIES[number // 6 % 4]) for number in range(24)
    ]
    assert max(found) < 1e-6


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_fit_is_that_of_least_squares_also_over_sampled_rows(dtype: Any) -> None:
    """More rows than are looked at to find what columns have in common, and rare ones."""
    rng = np.random.default_rng(0)
    common = rng.normal(size=(60_000, 5)) @ rng.normal(size=(5, 60))
    X = common + 0.1 * rng.normal(size=(60_000, 60))
    X[:, 0] = rng.random(60_000) < 1e-4
    X[:, 1] = X[:, 0] * (rng.random(60_000) < 0.5)
    y = (X - common) @ rng.normal(size=60) + rng.normal(size=60_000)
    X = X.astype(dtype)
    model = LinearRegressor(penalty=None).fit(X, y)
    best = LinearRegression().fit(X.astype(float), y).score(X, y)
    assert model.n_iter_ < 30
    assert model.score(X, y) > best - 1e-6


def test_columns_of_which_few_digits_are_kept_are_named() -> None:
    X = np.random.default_rng(0).normal(size=(500, 3))
    X[:, 1] = 1e5 + 0.1 * X[:, 1]
    X[:, 2] = 0.1
    with pytest.warns(UserWarning, match=r"columns \[1\] of X \(1 in all\) are left .* float32"):
        LinearRegressor().fit(X.astype(np.float32), X[:, 0])
    LinearRegressor().fit(X, X[:, 0])


def test_few_rows_say_how_features_vary_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a stream that is larger than memory would be copied."""
    products, counts = Pieces.products, []

    def counted(self: Pieces, *args: Any) -> Any:
        counts.append(self.count)
        return products(self, *args)

    monkeypatch.setattr(Pieces, "products", counted)
    X = np.random.default_rng(0).normal(size=(200_000, 128)).astype(np.float32)
    LinearRegressor(Huber(1.0)).fit(X, X[:, 0])
    assert 1000 < sum(counts) < 1100


def test_weights_of_classes_count_in_the_coordinates() -> None:
    rng = np.random.default_rng(0)
    y = (np.arange(20_000) % 500 == 0).astype(int)
    X = twins(rng, 20_000)
    X[:, [0, 5]] += y[:, None]
    model = LinearClassifier(class_weight="balanced", alpha=1e-3).fit(X, y)
    weights = np.where(y, 250.0, 250 / 499)
    peer = LinearClassifier(alpha=1e-3).fit(X, y, sample_weight=weights)
    assert model.n_iter_ < 60
    np.testing.assert_allclose(model.loss_, peer.loss_, rtol=1e-3)


def test_equal_columns_share_their_coefficient() -> None:
    rng = np.random.default_rng(0)
    one = rng.normal(size=(500, 1))
    X = np.c_[one, one, rng.normal(size=(500, 2))]
    y = one[:, 0] + rng.normal(size=500)
    for model in (LinearRegressor(penalty=None).fit(X, y), LinearClassifier().fit(X, y > 0)):
        first, second, *_ = np.ravel(model.coef_)
        assert first == pytest.approx(second, rel=1e-2)


def test_the_model_does_not_depend_on_how_rows_are_cut() -> None:
    """Standardization is by all rows, of partitions of any size."""
    rng = np.random.default_rng(0)
    X = rng.standard_t(3, size=(40_000, 50))
    y = X[:, :5].sum(axis=1) + rng.normal(size=40_000)
    scaler = StandardScaler().fit(X)
    expected = Ridge(alpha=40_000).fit(scaler.transform(X), y).coef_ / scaler.scale_
    for rows in (40_000, 2_000):
        parts = da.from_array(X, chunks=(rows, 50)), da.from_array(y, chunks=rows)
        found = LinearRegressor(alpha=1.0, tol=1e-8).fit(*parts).coef_
        np.testing.assert_allclose(found, expected, atol=1e-5 * abs(expected).max())
