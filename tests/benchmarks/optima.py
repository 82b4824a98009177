"""Losses and penalties to the optimum, on little data in this process, beside scikit-learn.

    python tests/benchmarks/optima.py [--repeat K] [--quick]

breast_cancer (569 x 30, standardised) and made rows (20,000 x 40), alpha 1e-3, without a cluster.
dps and its peers are at their defaults, but for the passes that peers may take. "above" is the
objective above the best that any reached, as a share of it. liblinear penalises the intercept
as well: its objective is not compared. Interleaved; medians.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from dps import LinearClassifier
from measure import bars, options, table, timed

ALPHA = 1e-3


def data(quick: bool) -> dict[str, tuple[Any, Any]]:
    """Rows and labels, by name."""
    X, y = load_breast_cancer(return_X_y=True)
    found = {"breast_cancer": (StandardScaler().fit_transform(X), y)}
    rng, rows = np.random.default_rng(0), 2000 if quick else 20_000
    made = rng.normal(size=(rows, 40))
    weights = rng.normal(size=40) * (np.arange(40) < 20)
    made = StandardScaler().fit_transform(made)
    found["made"] = made, (made @ weights + 3 * rng.logistic(size=rows) > 0).astype(int)
    return found


LOSSES: dict[str, Callable[[Any], Any]] = {
    "log_loss": lambda margin: np.logaddexp(0, -margin),
    "squared_hinge": lambda margin: np.maximum(0, 1 - margin) ** 2,
    "hinge": lambda margin: np.maximum(0, 1 - margin),
}


def objective(model: Any, X: Any, y: Any, loss: str, penalty: str) -> float:
    coef = np.ravel(model.coef_)
    margin = (2 * y - 1) * (X @ coef + np.ravel(model.intercept_)[0])
    size = np.abs(coef).sum() if penalty == "l1" else (coef**2).sum() / 2
    return float(LOSSES[loss](margin).mean() + ALPHA * size)


def peers(loss: str, penalty: str, rows: int) -> dict[str, Any]:
    """scikit-learn's estimators of the same objective, by name."""
    C = 1 / (ALPHA * rows)
    if loss == "log_loss":
        many: dict[str, Any] = {"C": C, "max_iter": 10_000, "random_state": 0}
        many["l1_ratio"] = 1.0 if penalty == "l1" else 0.0
        solvers = ("saga", "liblinear") if penalty == "l1" else ("lbfgs", "liblinear")
        return {solver: LogisticRegression(solver=solver, **many) for solver in solvers}
    if penalty == "l1" and loss == "hinge":
        return {}  # liblinear has none
    dual = loss == "hinge"
    return {
        "liblinear": LinearSVC(
            penalty=penalty, loss=loss, C=C, dual=dual, max_iter=100_000, random_state=0
        )
    }


def main() -> None:
    chosen = options(__doc__, repeat=7)
    rows, worst = [], 0.0
    slower = {"breast_cancer": 0.0, "made": 0.0}
    for name, (X, y) in data(chosen.quick).items():
        for loss in LOSSES:
            for penalty in ("l2", "l1"):
                models = {"dps": LinearClassifier(loss, penalty=penalty, alpha=ALPHA)}
                models |= peers(loss, penalty, len(X))
                seconds: dict[str, list[float]] = {who: [] for who in models}
                for _ in range(chosen.repeat):
                    for who, model in models.items():
                        seconds[who].append(timed(model.fit, X, y)[0])
                reached = {
                    who: objective(model, X, y, loss, penalty)
                    for who, model in models.items()
                    if who != "liblinear"
                }
                best = min(reached.values())
                ours = statistics.median(seconds["dps"])
                for who, taken in seconds.items():
                    took = statistics.median(taken)
                    above = f"{reached[who] / best - 1:.1e}" if who in reached else "-"
                    rows.append(
                        (f"{name}, {loss}, {penalty}: {who}", f"{1e3 * took:.1f}",
                         f"{took / ours:.1f}", above)
                    )  # fmt: skip
                    if who != "dps":
                        slower[name] = max(slower[name], ours / took)
                worst = max(worst, reached["dps"] / best - 1)
    table(("", "ms", "dps is times as fast", "above"), rows)
    bars(
        ("optima: objective above the best, as a share", worst, "<=", 1e-3),
        ("optima: time of dps by that of a peer, made rows", slower["made"], "<=", 1.0),
        ("optima: the same, breast_cancer", slower["breast_cancer"], "<=", 1.0),
    )


if __name__ == "__main__":
    main()
