"""Spam: a fit of a few thousand wide rows without a cluster.

    python tests/benchmarks/spam.py [--repeat K] [--quick]

The SpamAssassin corpus without duplicate bodies, ``HashingVectorizer(2**18, norm="l2")``, five
stratified folds, alpha of C=100, all else default. Seconds are those of five fits; medians of
interleaved runs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.model_selection import StratifiedKFold

from dps import LinearClassifier
from measure import bars, megabytes, options, table, take_turns
from public_data import DATA

MAILS = DATA / "spam-assassin.parquet"
C = 100.0
OURS, EXACT = "dps LinearClassifier", "scikit-learn LogisticRegression(C=100)"
CHOSEN = "dps LinearClassifier(alpha='cv')"
DEFAULT = "dps LinearClassifier(), alpha as well"
STOCHASTIC = "scikit-learn SGDClassifier(log_loss)"


def read_spam(rows: int | None = None, n_features: int = 2**18) -> tuple[Any, Any]:
    """Hashed words as CSR of doubles, and y (1: spam)."""
    import pandas as pd

    frame = pd.read_parquet(MAILS).drop_duplicates("body")
    if rows is not None:
        frame = frame.sample(rows, random_state=0)
    X = HashingVectorizer(n_features=n_features, norm="l2").transform(frame["body"])
    return X, frame["spam"].to_numpy().astype(np.int8)


def cpu_time(fit: Callable[[int], Any], turn: int) -> float:
    """Seconds of all threads of this process."""
    began = time.process_time()
    fit(turn)
    return time.process_time() - began


def main() -> None:
    chosen = options(__doc__, repeat=5)
    if not MAILS.exists():
        print("the data is not here, left out\n")
        return
    X, y = read_spam(600, 2**12) if chosen.quick else read_spam()
    folds = list(StratifiedKFold(5, shuffle=True, random_state=0).split(X, y))
    data = [(X[train], y[train], X[test], y[test]) for train, test in folds]

    def five(make: Callable[[int, int], Any]) -> Callable[[int], list[Any]]:
        """A contender that fits all folds; `make` gets the rows and the number of the round."""
        return lambda turn: [make(len(y), turn).fit(X, y) for X, y, _, _ in data]

    def judge(models: list[Any]) -> dict[str, float]:
        scores = [
            np.mean(model.predict(X_test) == y_test)
            for model, (_, _, X_test, y_test) in zip(models, data, strict=True)
        ]
        return {
            "accuracy": float(np.mean(scores)),
            "passes": float(np.mean([np.max(model.n_iter_) for model in models])),
        }

    def alpha(n: int) -> float:
        return 1 / (C * n)

    chosen_by_cv = five(lambda n, turn: LinearClassifier(alpha="cv", random_state=turn))
    at_defaults = five(lambda n, turn: LinearClassifier(random_state=turn))
    contenders = {
        CHOSEN: chosen_by_cv,
        DEFAULT: at_defaults,
        OURS: five(lambda n, turn: LinearClassifier(alpha=alpha(n), random_state=turn)),
        EXACT: five(lambda n, turn: LogisticRegression(C=C)),
        STOCHASTIC: five(
            lambda n, turn: SGDClassifier(loss="log_loss", alpha=alpha(n), random_state=turn)
        ),
        "scikit-learn SGDClassifier(hinge)": five(
            lambda n, turn: SGDClassifier(alpha=alpha(n), random_state=turn)
        ),
    }
    medians = take_turns(contenders, chosen.repeat, judge)
    size = X.data.nbytes + X.indices.nbytes + X.indptr.nbytes
    print(f"{len(y):,} mails, {X.nnz / len(y):.0f} words each, {megabytes(size)} MB in CSR\n")
    peer = medians[EXACT]["seconds"]
    table(
        ("", "seconds", "times faster", "accuracy", "MB added", "passes"),
        (
            (
                name, f"{row['seconds']:.2f}", f"{peer / row['seconds']:.1f}",
                f"{row['accuracy']:.4f}", megabytes(row["added"]), f"{row['passes']:.0f}",
            )
            for name, row in medians.items()
        ),
    )  # fmt: skip
    ours, stochastic = medians[OURS], medians[STOCHASTIC]
    behind = ours["accuracy"] - max(medians[EXACT]["accuracy"], stochastic["accuracy"])
    slower = ours["seconds"] / stochastic["seconds"]
    one_over_rows = five(lambda n, turn: LinearClassifier(alpha=1 / n, random_state=turn))
    fixed, auto, cv = (
        statistics.median(cpu_time(fit, turn) for turn in range(chosen.repeat))
        for fit in (one_over_rows, at_defaults, chosen_by_cv)
    )
    bars(
        ("spam: accuracy of alpha='cv'", medians[CHOSEN]["accuracy"], ">=", 0.984),
        ("spam: CPU time of alpha='cv' by that of alpha=1 / rows", cv / fixed, "<=", 3),
        ("spam: accuracy at defaults", medians[DEFAULT]["accuracy"], ">=", 0.983),
        ("spam: CPU time at defaults by that of alpha=1 / rows", auto / fixed, "<=", 3),
        ("spam: accuracy less the better of the two", behind, ">=", -0.002),
        ("spam: time as a multiple of SGDClassifier's", slower, "<=", 2),
    )


if __name__ == "__main__":
    main()
