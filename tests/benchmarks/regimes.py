"""One machine, many shapes: dps beside scikit-learn's estimator of the same objective.

    python tests/benchmarks/regimes.py [--repeat K] [--quick]

In this process, without a client, in turns; medians. scikit-learn's estimators are at their
defaults, and networks of dps take their steps. "lower" is how much lower dps's objective is, as a
share of the other one; of networks and single epochs the training loss. scikit-learn's Huber has a
scale of its own.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from scipy.special import logsumexp
from sklearn.datasets import load_diabetes, load_iris
from sklearn.linear_model import (
    ElasticNet,
    HuberRegressor,
    Lasso,
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    QuantileRegressor,
    Ridge,
    SGDClassifier,
)
from sklearn.neural_network import MLPClassifier
from sklearn.svm import LinearSVC

import dps
from dps.losses import Huber
from measure import options, table, timed

Objective = Callable[[Any, Any, Any], float]


@dataclass(frozen=True)
class Shape:
    name: str
    X: Any
    y: Any
    ours: Any
    theirs: Any
    objective: Objective | None


def raw_of(model: Any, X: Any) -> Any:
    return X @ np.atleast_2d(model.coef_).T + np.ravel(model.intercept_)


def l2_of(model: Any) -> float:
    return float((np.asarray(model.coef_, float) ** 2).sum()) / 2


def log_loss(model: Any, X: Any, y: Any) -> float:
    raw = raw_of(model, X)
    if raw.shape[1] == 1:
        return float(np.logaddexp(0, -(2 * y - 1) * raw[:, 0]).mean())
    return float((logsumexp(raw, axis=1) - raw[np.arange(len(y)), y]).mean())


def squares(model: Any, X: Any, y: Any) -> float:
    return float(((raw_of(model, X)[:, 0] - y) ** 2).mean()) / 2


def penalised(loss: Objective, l2: float = 0.0, l1: float = 0.0) -> Objective:
    """The loss and the penalty of a model."""

    def value(model: Any, X: Any, y: Any) -> float:
        size = float(np.abs(model.coef_).sum())
        return loss(model, X, y) + l2 * l2_of(model) + l1 * size

    return value


def training_loss(model: Any, X: Any, y: Any) -> float:
    shares = model.predict_proba(X)[np.arange(len(y)), y]
    return float(-np.log(np.maximum(shares, 1e-15)).mean())


def hinge(model: Any, X: Any, y: Any) -> float:
    return float(np.maximum(0, 1 - (2 * y - 1) * raw_of(model, X)[:, 0]).mean())


def poisson(model: Any, X: Any, y: Any) -> float:
    raw = raw_of(model, X)[:, 0]
    return float((np.exp(raw) - y * raw).mean())


def absolute(model: Any, X: Any, y: Any) -> float:
    return float(np.abs(raw_of(model, X)[:, 0] - y).mean()) / 2


def rows(n: int, p: int, share: float = 1.0) -> Any:
    """Return dense rows, or CSR rows with a share of values that are not zero."""
    rng = np.random.default_rng(n + p)
    if share == 1.0:
        return rng.normal(size=(n, p))
    return scipy.sparse.random_array((n, p), density=share, format="csr", rng=rng)


def labels(X: Any, classes: int = 2) -> Any:
    rng = np.random.default_rng(1)
    few = min(X.shape[1], 1000)
    raw = X[:, :few] @ rng.normal(size=(few, classes if classes > 2 else 1))
    raw = raw + rng.gumbel(size=raw.shape) * raw.std()
    return raw.argmax(axis=1) if classes > 2 else (raw[:, 0] > np.median(raw)).astype(int)


def logistic(name: str, X: Any, y: Any) -> Shape:
    """The penalty of C=1."""
    alpha = 1 / X.shape[0]
    ours = dps.LinearClassifier(alpha=alpha, standardize=False)
    return Shape(name, X, y, ours, LogisticRegression(max_iter=1000), penalised(log_loss, l2=alpha))


def classifications(scale: int) -> Iterator[Shape]:
    for n, p, classes in (
        (200, 5, 2), (2_000, 20, 2), (20_000, 50, 2), (200_000, 20, 2), (500, 10_000, 2),
        (20_000, 50, 20), (5_000, 50, 100),
    ):  # fmt: skip
        X = rows(max(200, n // scale), p)
        name = f"logistic {len(X):,} x {p:,}" + (f", {classes} classes" if classes > 2 else "")
        yield logistic(name, X, labels(X, classes))
    X, y = load_iris(return_X_y=True)
    yield logistic("iris", X, y)
    for n, p, share, classes in (
        (20_000, 5_000, 0.01, 2), (20_000, 100_000, 0.001, 2), (20_000, 20_000, 0.001, 10),
    ):  # fmt: skip
        X = rows(max(200, n // scale), p, share)
        name = f"sparse {X.shape[0]:,} x {p:,}" + (f", {classes} classes" if classes > 2 else "")
        yield logistic(name, X, labels(X, classes))
    X = rows(20_000 // scale, 50)
    y, alpha = labels(X), 1 / len(X)
    yield Shape(
        f"hinge {len(X):,} x 50", X, y,
        dps.LinearClassifier("hinge", alpha=alpha, standardize=False),
        LinearSVC(loss="hinge", max_iter=100_000), penalised(hinge, l2=alpha),
    )  # fmt: skip
    yield Shape(
        f"an epoch of SGD {len(X):,} x 50", X, y,
        dps.LinearClassifier(optimizer="sgd", max_iter=1, tol=None, standardize=False),
        SGDClassifier(loss="log_loss", max_iter=1, tol=None), log_loss,
    )  # fmt: skip
    for n in (1_000, 20_000):
        X = rows(max(200, n // scale), 50)
        yield Shape(
            f"network {len(X):,} x 50, 10 epochs", X, labels(X),
            dps.MLPClassifier(
                (100,), optimizer="adam", learning_rate=1e-3, alpha=1e-4 / len(X), dropout=0.0,
                average=False, batch_size=200, max_iter=10, tol=None, early_stopping=False,
            ),
            MLPClassifier((100,), max_iter=10), training_loss,
        )  # fmt: skip


def regressions(scale: int) -> Iterator[Shape]:
    for n, p in ((2_000, 20), (50_000, 50), (20_000, 200), (200_000, 20), (2_000, 3_000)):
        X = rows(max(200, n // scale), p)
        yield from linear(X)
    X, y = load_diabetes(return_X_y=True)
    yield ridge("diabetes", X, y)
    X = rows(20_000 // scale, 50)
    y = X[:, :5].sum(axis=1) + np.random.default_rng(0).normal(size=len(X))
    few = np.random.default_rng(0).poisson(np.exp(np.clip(y / 4, -3, 3))).astype(float)
    plain: dict[str, Any] = {"standardize": False, "penalty": None}
    yield Shape(
        f"least squares {len(X):,} x 50", X, y, dps.LinearRegressor(**plain), LinearRegression(),
        squares,
    )  # fmt: skip
    yield Shape(
        f"Poisson {len(X):,} x 50", X, few,
        dps.LinearRegressor("poisson", alpha=1e-3, standardize=False),
        PoissonRegressor(alpha=1e-3, max_iter=1000), penalised(poisson, l2=1e-3),
    )  # fmt: skip
    yield Shape(
        f"Huber {len(X):,} x 50", X, y, dps.LinearRegressor(Huber(1.0), **plain),
        HuberRegressor(alpha=0.0), None,
    )  # fmt: skip
    X, y = X[: 4_000 // scale], y[: 4_000 // scale]
    yield Shape(
        f"median {len(X):,} x 50", X, y, dps.LinearRegressor("quantile", **plain),
        QuantileRegressor(alpha=0.0), absolute,
    )  # fmt: skip


def ridge(name: str, X: Any, y: Any) -> Shape:
    alpha = 1 / len(X)
    ours = dps.LinearRegressor(alpha=alpha, standardize=False)
    return Shape(name, X, y, ours, Ridge(), penalised(squares, l2=alpha))


def linear(X: Any) -> Iterator[Shape]:
    """Ridge, lasso, and an elastic net."""
    y = X[:, :5].sum(axis=1) + np.random.default_rng(0).normal(size=len(X))
    shape = f"{len(X):,} x {X.shape[1]:,}"
    yield ridge(f"ridge {shape}", X, y)
    for name, theirs, share in (
        ("lasso", Lasso(0.1), 1.0), ("elastic net", ElasticNet(0.1), 0.5),
    ):  # fmt: skip
        ours = dps.LinearRegressor(
            penalty="elasticnet", alpha=0.1, l1_ratio=share, standardize=False
        )
        value = penalised(squares, l2=0.1 * (1 - share), l1=0.1 * share)
        yield Shape(f"{name} {shape}", X, y, ours, theirs, value)


def main() -> None:
    asked = options(__doc__ or "", repeat=5)
    warnings.simplefilter("ignore")
    scale, found = 20 if asked.quick else 1, []
    for shape in (*classifications(scale), *regressions(scale)):
        seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
        for _ in range(asked.repeat + 1):  # the first time warms up
            for whose, times in seconds.items():
                model = getattr(shape, whose)
                times.append(timed(model.fit, shape.X, shape.y)[0])
        ours, theirs = (statistics.median(times[1:] or times) for times in seconds.values())
        lower = "-"
        if shape.objective is not None:
            at = [shape.objective(model, shape.X, shape.y) for model in (shape.ours, shape.theirs)]
            lower = f"{1 - at[0] / at[1]:.1e}"
        found.append((shape.name, f"{1e3 * ours:.1f}", f"{theirs / ours:.2f}", lower))
    table(("shape", "ms", "times faster", "lower"), found)


if __name__ == "__main__":
    main()
