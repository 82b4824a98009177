"""Linear models at defaults beside scikit-learn's pipeline: loss on held-out rows, five folds.

    python tests/benchmarks/penalty.py [--quick]

The peer is `OneHotEncoder` of categories and `StandardScaler` of numbers before
`LogisticRegression` or `Ridge` at their defaults. Log loss, or the root of the mean squared
error; adult and california come from `public_data`.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss, root_mean_squared_error
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import dps
from factorization import DATA
from measure import bars, options, table


def problems(quick: bool) -> dict[str, tuple[Any, Any]]:
    """Features and targets by name; those that are not there are left out."""
    loads = {"wine": load_wine, "breast_cancer": load_breast_cancer, "digits": load_digits}
    found = {name: load(return_X_y=True, as_frame=True) for name, load in loads.items()}
    for name, target in (("adult", "income"), ("california-housing", "MedHouseVal")):
        if not quick and (path := DATA / f"{name}.parquet").exists():
            frame = pd.read_parquet(path)
            found[name] = frame.drop(columns=target), frame[target]
    return found


def peer(regression: bool) -> Any:
    """The pipeline that users of scikit-learn write."""
    columns = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), make_column_selector(dtype_exclude="number")),
        (StandardScaler(), make_column_selector(dtype_include="number")),
    )
    return make_pipeline(columns, Ridge() if regression else LogisticRegression(max_iter=10_000))


def loss(model: Any, X: Any, y: Any, regression: bool) -> float:
    """Over the rows that each of five folds holds out."""
    method = "predict" if regression else "predict_proba"
    folds = KFold(5, shuffle=True, random_state=0)
    predicted = cross_val_predict(model, X, y, cv=folds, method=method)
    return float((root_mean_squared_error if regression else log_loss)(y, predicted))


def main() -> None:
    asked = options(__doc__ or "", repeat=1)
    rows, ratios = [], {}
    for name, (X, y) in problems(asked.quick).items():
        regression = name.startswith("california")
        theirs = loss(peer(regression), X, y, regression)
        kind = dps.LinearRegressor if regression else dps.LinearClassifier
        ours, plain = (
            loss(kind(random_state=0, standardize=flag), X, y, regression) for flag in (True, False)
        )
        ratios[name] = ours / theirs
        rows.append([name, f"{theirs:.4f}", f"{ours:.4f}", f"{ratios[name]:.4f}",
                     f"{plain / theirs:.4f}"])  # fmt: skip
    table(("data", "scikit-learn", "dps", "ratio", "ratio, standardize=False"), rows)
    bars(*((f"penalty: {name}", ratio, "<=", 1.02) for name, ratio in ratios.items()))


if __name__ == "__main__":
    main()
