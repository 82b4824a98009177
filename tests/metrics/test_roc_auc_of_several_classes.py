"""Areas under ROC curves of several classes and labels: scikit-learn's, of lazy data too."""

from __future__ import annotations

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn.metrics
from distributed import Client
from hypothesis import given, strategies as st
from sklearn.exceptions import UndefinedMetricWarning

import dps
from dps.metrics import get_scorer, roc_auc_score
from dps.model_selection import cross_val_score

NAMES = np.array(["ant", "bee", "cow", "dog"])


def whole(values: Any) -> Any:
    return da.from_array(values, chunks=(len(values) // 2, *values.shape[1:]))


def data(seed: int, classes: int, rows: int = 60) -> tuple[Any, Any, Any]:
    """Labels, all of which occur; probabilities with ties; weights."""
    rng = np.random.default_rng(seed)
    codes = np.r_[np.arange(classes), rng.integers(classes, size=rows - classes)]
    raw = rng.integers(1, 6, size=(rows, classes)) + 2.0 * (codes[:, None] == np.arange(classes))
    return NAMES[codes], raw / raw.sum(axis=1, keepdims=True), rng.uniform(0, 2, rows)


@given(
    seed=st.integers(0, 2**32), classes=st.sampled_from([3, 4]), weighted=st.booleans(),
    how=st.sampled_from([("ovr", "macro"), ("ovr", "weighted"), ("ovr", None), ("ovo", "macro"),
                         ("ovo", "weighted")]), cuts=st.lists(st.integers(0, 60), max_size=4),
)  # fmt: skip
def test_of_classes_they_are_those_of_scikit_learn(
    seed: int, classes: int, weighted: bool, how: tuple[str, str | None], cuts: list[int]
) -> None:
    y, chances, weight = data(seed, classes)
    options: dict[str, Any] = {"multi_class": how[0], "average": how[1]}
    if weighted and how[0] == "ovr":
        options["sample_weight"] = weight
    expected = sklearn.metrics.roc_auc_score(y, chances, **options)
    assert roc_auc_score(y, chances, **options) == pytest.approx(expected, rel=1e-12)
    chunks = tuple(np.diff([0, *sorted(cuts), 60]).tolist())
    if "sample_weight" in options:
        options["sample_weight"] = da.from_array(weight, chunks=(chunks,))
    lazy = da.from_array(y, chunks=(chunks,)), da.from_array(chances, chunks=(chunks, classes))
    assert roc_auc_score(*lazy, **options) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("average", ["macro", "weighted", None])
@pytest.mark.parametrize("weighted", [False, True])
def test_of_labels_in_columns_too(average: Any, weighted: bool) -> None:
    rng = np.random.default_rng(0)
    y, scores = rng.integers(2, size=(80, 3)), rng.normal(size=(80, 3)).round(1)
    options = {"average": average, "sample_weight": rng.uniform(size=80) if weighted else None}
    expected = sklearn.metrics.roc_auc_score(y, scores, **options)
    assert roc_auc_score(y, scores, **options) == pytest.approx(expected)
    frames = (dd.from_pandas(pd.DataFrame(each), npartitions=3) for each in (y, scores))
    if weighted:
        options["sample_weight"] = dd.from_pandas(pd.Series(options["sample_weight"]), 3)
    assert roc_auc_score(*frames, **options) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["roc_auc_ovr", "roc_auc_ovr_weighted", "roc_auc_ovo"])
def test_scorers_have_scikit_learns_names(name: str, client: Client) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4))
    y = NAMES[(X @ rng.normal(size=(4, 3)) + rng.gumbel(size=(300, 3))).argmax(axis=1)]
    lazy = da.from_array(X, chunks=(100, 4)), da.from_array(y, chunks=100)
    model = dps.LinearClassifier(client=client).fit(X, y)
    expected = sklearn.metrics.get_scorer(name)(model, X, y)
    assert get_scorer(name)(model, *lazy) == pytest.approx(expected)
    scores = cross_val_score(model, *lazy, scoring=name, cv=2)
    assert (scores > 0.6).all()


def test_what_cannot_be_compared_is_said() -> None:
    y, chances, weight = data(0, 3)
    for options, message in (
        ({}, "multi_class must be in"),
        ({"multi_class": "all"}, "multi_class must be"),
        ({"average": "micro"}, "average must be"),
        ({"multi_class": "ovo", "sample_weight": weight}, "sample_weight is not supported"),
        ({"multi_class": "ovr", "labels": NAMES}, "y_pred probabilities of 3: give labels="),
        ({"multi_class": "ovr", "labels": NAMES[::-1]}, "'labels' must be ordered"),
    ):
        with pytest.raises(ValueError, match=message):
            roc_auc_score(whole(y), whole(chances), **options)
    with pytest.raises(ValueError, match="which sum to 1"):
        roc_auc_score(whole(y), whole(2 * chances), multi_class="ovr")
    two = y != "cow"
    with pytest.raises(ValueError, match="give labels="):
        roc_auc_score(whole(y[two]), whole(chances[two]), multi_class="ovr")
    weight = weight * (y != "bee")
    with pytest.warns(UndefinedMetricWarning):
        assert np.isnan(
            roc_auc_score(whole(y), whole(chances), multi_class="ovr", sample_weight=weight)
        )
