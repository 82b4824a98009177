"""Penalties of linear models that held-out rows chose, beside scikit-learn's: loss on new rows.

    python tests/benchmarks/strength.py [--quick] [--others N] [--seed N]

On the small sets of `small_sets.py`, by which the rule was chosen, or on N others. A quarter of the
rows is new, in `--repeat` splits. Log losses or mean squared errors of `alpha="auto"` and "cv" are
shares of that of one over the rows. The peer is a `StandardScaler` and `LogisticRegressionCV` of
three folds over `LogisticRegression`, or `RidgeCV` over `Ridge`.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, Ridge, RidgeCV
from sklearn.metrics import log_loss, mean_squared_error
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import dps
from measure import bars, options, table
from small_sets import others, sets

AUTO, CV, PEER = "auto", "cv", "scikit-learn"


def peer(model: Any) -> Any:
    columns = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), make_column_selector(dtype_exclude="number")),
        (
            make_pipeline(SimpleImputer(), StandardScaler()),
            make_column_selector(dtype_include="number"),
        ),
    )
    return make_pipeline(columns, model)


def contenders(regression: bool, rows: int) -> dict[str, tuple[Any, Any]]:
    """Models with a fixed strength, and with a chosen one."""
    if regression:
        ours, theirs = dps.LinearRegressor, (Ridge(), RidgeCV(np.geomspace(1e-4, 1e4, 9)))
    else:
        ours = dps.LinearClassifier
        theirs = LogisticRegression(max_iter=1000), LogisticRegressionCV(cv=3, max_iter=1000)
    fixed, names = ours(alpha=1 / rows, random_state=0), (AUTO, CV)
    return {
        **{name: (fixed, ours(alpha=name, random_state=0)) for name in names},
        PEER: (peer(theirs[0]), peer(theirs[1])),
    }


def look(X: Any, y: Any, regression: bool, seed: int) -> dict[str, tuple[float, float]]:
    """Ratios of loss and of seconds, chosen strength over fixed strength, for each contender."""
    A, B, a, b = train_test_split(X, y, random_state=seed, stratify=None if regression else y)
    found = {}
    for name, models in contenders(regression, len(A)).items():
        losses, seconds = [], []
        for model in models:
            start = time.perf_counter()
            model.fit(A, a)
            seconds.append(time.perf_counter() - start)
            if regression:
                losses.append(mean_squared_error(b, model.predict(B)))
            else:
                losses.append(log_loss(b, model.predict_proba(B), labels=model.classes_))
        found[name] = losses[1] / losses[0], seconds[1] / seconds[0]
    return found


def main() -> None:
    asked = options(__doc__ or "", repeat=6, others=0, seed=0)
    warnings.simplefilter("ignore")
    problems = others(asked.others, asked.seed) if asked.others else sets()
    rows, kinds = [], []
    for name, X, y, regression in problems:
        if asked.quick and "/" in name:
            continue
        if not regression and np.unique(y, return_counts=True)[1].min() < 4:
            continue
        splits = [look(X, y, regression, seed) for seed in range(asked.repeat)]
        all_ratios = [[split[one] for split in splits] for one in (AUTO, CV, PEER)]
        rows.append([np.exp(np.log(ratios).mean(axis=0)) for ratios in all_ratios])
        kinds.append(regression)
        said = ", ".join(f"{loss:.4f} in {slower:.1f} fits" for loss, slower in rows[-1])
        print(f"{name} {len(y)} rows: {said}", flush=True)
    found = np.array(rows)  # (sets, contenders, 2)
    for kind in (False, True):
        here = found[np.array(kinds) == kind]
        lines = []
        for title, of in SUMMARIES.items():
            lines.append([title, *(f"{of(here[:, at]):.3f}" for at in range(3))])
        print()
        table(
            (f"{len(here)} {'regressions' if kind else 'classifications'}", AUTO, CV, PEER), lines
        )
    bars(("strength: worst loss by that of one over the rows", found[:, 0, 0].max(), "<=", 1.01))


SUMMARIES: dict[str, Callable[[Any], float]] = {
    "geometric mean of losses": lambda of: float(np.exp(np.log(of[:, 0]).mean())),
    "median": lambda of: float(np.median(of[:, 0])),
    "worst": lambda of: float(of[:, 0].max()),
    "share of sets that are worse by 1%": lambda of: float((of[:, 0] > 1.01).mean()),
    "share of sets that are better by 1%": lambda of: float((of[:, 0] < 0.99).mean()),
    "fits that it takes, median": lambda of: float(np.median(of[:, 1])),
}


if __name__ == "__main__":
    main()
