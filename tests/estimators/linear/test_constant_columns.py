"""A column with one value in the first rows is learned from the rows in which it varies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest

import dps
from dps import (
    FMClassifier,
    FMRegressor,
    LinearClassifier,
    LinearRegressor,
    MLPClassifier,
    MLPRegressor,
)

ROWS, BATCH = 3000, 200
RNG = np.random.default_rng(0)
#: What the column holds, and its one value in the first rows.
COLUMNS: dict[str, tuple[Any, float]] = {
    "of 0 and 1": (RNG.integers(0, 2, ROWS).astype(float), 0.0),
    "rare": ((RNG.random(ROWS) < 0.2).astype(float), 0.0),
    "of ones at first": ((RNG.random(ROWS) < 0.8).astype(float), 1.0),
    "number": (RNG.normal(size=ROWS), 0.7),
    "years": (RNG.integers(2020, 2025, ROWS).astype(float), 2020.0),
    "far from its value": (RNG.normal(1000, 30, ROWS), 0.0),
}
CLASSIFIERS: dict[str, Callable[..., Any]] = {
    "linear": LinearClassifier,
    "linear by sgd": lambda: LinearClassifier(optimizer="sgd"),
    "network": lambda **more: MLPClassifier(random_state=0, **more),
    "machine": lambda **more: FMClassifier(random_state=0, **more),
    "deep machine": lambda **more: FMClassifier(hidden_layer_sizes=(16,), random_state=0, **more),
}


def rows_of(name: str) -> tuple[Any, Any, Any]:
    """Rows, first rows in which the third column is constant, and labels that follow from it."""
    column, value = COLUMNS[name]
    X = np.column_stack([RNG.normal(size=(ROWS, 2)), column])
    first = X[:BATCH].copy()
    first[:, 2] = value
    return X, first, (column > (column.min() + column.max()) / 2).astype(int)


def stream(model: Any, X: Any, y: Any, passes: int = 5) -> Any:
    for _ in range(passes):
        for at in range(BATCH, ROWS, BATCH):
            model.partial_fit(X[at : at + BATCH], y[at : at + BATCH])
    return model


@pytest.mark.parametrize(("kind", "name"), [*zip([*CLASSIFIERS, "linear"], COLUMNS, strict=True)])
def test_it_is_learned_by_partial_fit(kind: str, name: str) -> None:
    X, first, y = rows_of(name)
    model = CLASSIFIERS[kind]()
    model.partial_fit(first, y[:BATCH], classes=[0, 1])
    least = 0.85 if name == "far from its value" else 0.95
    assert stream(model, X, y).score(X[BATCH:], y[BATCH:]) > least


@pytest.mark.parametrize(
    ("kind", "name"), [("network", "rare"), ("machine", "number"), ("deep machine", "rare")]
)
def test_it_is_learned_by_a_warm_start(kind: str, name: str) -> None:
    X, first, y = rows_of(name)
    model = CLASSIFIERS[kind](warm_start=True)
    model.fit(first, y[:BATCH])
    assert model.fit(X, y).score(X, y) > 0.95


@pytest.mark.parametrize("make", [MLPRegressor, FMRegressor, LinearRegressor])
def test_a_year_that_comes_later_counts(make: Any) -> None:
    X, first, _ = rows_of("years")
    y = X[:, 2] - 2020 + 0.1 * X[:, 0]
    model = make(random_state=0).partial_fit(first, 0.1 * X[:BATCH, 0] + RNG.normal(size=BATCH))
    assert stream(model, X, y).score(X[BATCH:], y[BATCH:]) > 0.9


@pytest.mark.parametrize("make", [MLPClassifier, FMClassifier])
def test_so_it_is_in_dasks_frames_and_after_a_file(make: Any, tmp_path: Path) -> None:
    X, first, y = rows_of("number")

    def framed(rows: Any) -> Any:
        frame = pd.DataFrame(rows, columns=list("abc"))
        return frame.assign(kind=np.where(frame["a"] > 0, "up", "down"))

    model = make(random_state=0).partial_fit(framed(first), y[:BATCH], classes=[0, 1])
    model.save(tmp_path / "model")
    model = dps.load(tmp_path / "model")
    frame = framed(X)
    assert stream(model, frame, y).score(frame, y) > 0.95
    other = make(random_state=0).partial_fit(first, y[:BATCH], classes=[0, 1])
    for _ in range(12):
        other.partial_fit(da.from_array(X, chunks=(500, 3)), da.from_array(y, chunks=500))
    assert other.score(X, y) > 0.95


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_rows_with_the_one_value_are_predicted_as_before(kind: str) -> None:
    X, first, _ = rows_of("number")
    labels = (first[:, 0] > 0).astype(int)
    model = CLASSIFIERS[kind](**({} if "linear" in kind else {"average": False}))
    model.partial_fit(first, labels, classes=[0, 1])
    for _ in range(20):
        model.partial_fit(first, labels)
    before = model.predict_proba(first)
    model.set_params(learning_rate=1e-12).partial_fit(X[:BATCH], labels)
    np.testing.assert_allclose(model.predict_proba(first), before, atol=1e-6)
