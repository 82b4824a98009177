"""What metrics refuse, warn of or leave undefined is what scikit-learn does, on Dask's data too."""

from __future__ import annotations

import warnings
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from sklearn import metrics as known
from sklearn.exceptions import UndefinedMetricWarning
from versions import SKLEARN

from dps import LinearClassifier, LinearRegressor, metrics

NAN = float("nan")
THREE = np.array([[0.2, 0.5, 0.3], [0.1, 0.2, 0.7], [0.6, 0.2, 0.2], [0.3, 0.3, 0.4]])
COLUMNS = np.array([[1, 0], [0, 1], [1, 1], [0, 0]])
HALVES = np.array([[0.3, 0.7], [0.6, 0.4], [0.5, 0.5], [0.9, 0.1]])


def cut(values: Any) -> Any:
    """Two partitions of Dask."""
    values = np.asarray(values)
    return da.from_array(values, chunks=(max(1, len(values) // 2), *values.shape[1:]))


def series(values: Any) -> Any:
    return dd.from_pandas(pd.Series(values), npartitions=2)


REFUSED: dict[str, tuple[str, Any, Any, dict[str, Any], str]] = {
    "probabilities": ("accuracy_score", [0, 1, 1], [0.1, 0.9, 0.8], {}, "continuous"),
    "continuous y": ("accuracy_score", [0.1, 0.9], [0, 1], {}, "continuous"),
    "labels and texts": ("accuracy_score", [0, 1], ["0", "1"], {}, "Mix of label input types"),
    "NaN labels": ("accuracy_score", [0, 1, NAN], [0, 1, 1], {}, "contains NaN"),
    "NaN predicted": ("accuracy_score", [0, 1, 1], [0, 1, NAN], {}, "contains NaN"),
    "no rows": ("accuracy_score", [], [], {}, "."),
    "no numbers": ("mean_squared_error", [], [], {}, "0 sample"),
    "NaN": ("mean_squared_error", [1.0, NAN], [1.0, 2.0], {}, "contains NaN"),
    "infinity": ("mean_absolute_error", [1.0, 2.0], [1.0, np.inf], {}, "contains infinity"),
    "NaN in R2": ("r2_score", [1.0, 2.0, NAN], [1.0, 2.0, 3.0], {}, "contains NaN"),
    "NaN chances": ("log_loss", [0, 1], [0.5, NAN], {}, "contains NaN"),
    "NaN chances of labels": ("brier_score_loss", [0, 1], [0.5, NAN], {}, "contains NaN"),
    "one label": ("log_loss", [0, 0], [0.5, 0.4], {}, "label"),
    "NaN weights": (
        "accuracy_score", [0, 1], [0, 1], {"sample_weight": [1.0, NAN]}, "contains NaN",
    ),
    "labels out of order": (
        "roc_auc_score", [0, 1, 0, 2], THREE, {"multi_class": "ovr", "labels": [1, 0, 2]},
        "must be ordered",
    ),
    "a vector for three": (
        "average_precision_score", [0, 1, 0, 2], THREE[:, 0], {}, "needs to be of shape",
    ),
    "pos_label of three": (
        "average_precision_score", [0, 1, 0, 2], THREE, {"pos_label": 2}, "fixed to 1",
    ),
    "pos_label of columns": (
        "average_precision_score", COLUMNS, HALVES, {"pos_label": 0}, "fixed to 1",
    ),
    "f1 of numbers": ("f1_score", [0.5, 1.5], [0, 1], {}, "continuous"),
    "a matrix of numbers": ("confusion_matrix", [0, 1], [0.2, 0.8], {}, "continuous"),
    "balance of NaN": ("balanced_accuracy_score", [0, 1, NAN], [0, 1, 1], {}, "contains NaN"),
}  # fmt: skip


@pytest.mark.skipif(SKLEARN < (1, 8), reason="of scikit-learn 1.8")
@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("where", ["local", "Dask"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_scikit_learn_refuses_is_refused(case: str, where: str) -> None:
    name, y, predicted, options, message = REFUSED[case]
    with pytest.raises(ValueError, match=r"."):
        getattr(known, name)(y, predicted, **options)
    if where == "Dask":
        y, predicted = cut(y), cut(predicted)
        options = {k: cut(v) if k == "sample_weight" else v for k, v in options.items()}
    with pytest.raises(ValueError, match=message if where == "Dask" else "."):
        getattr(metrics, name)(y, predicted, **options)


def test_a_refusal_names_partition_and_row() -> None:
    y = np.array([0, 1, 0, NAN, 1, 0])
    with pytest.raises(ValueError, match="y_true contains NaN: in partition 1, in row 0"):
        metrics.accuracy_score(da.from_array(y, chunks=3), da.from_array(y, chunks=3))
    texts = pd.Series(["a", "b", None, "a"], dtype=object)
    with pytest.raises(ValueError, match="y_true contains NaN"):
        metrics.accuracy_score(series(texts), series(["a", "b", "a", "a"]))
    with pytest.raises(ValueError, match=r"y_true has 2 partitions, y_pred has 3: rechunk y_true"):
        metrics.accuracy_score(da.ones(6, chunks=3), da.ones(6, chunks=2))


ALIKE: dict[str, tuple[str, Any, Any, dict[str, Any], type[Warning] | None]] = {
    "R2 of a row": ("r2_score", [1.0], [1.0], {}, UndefinedMetricWarning),
    "R2 of a constant": ("r2_score", [2.0, 2.0], [1.0, 2.0], {}, None),
    "an area of one class": ("roc_auc_score", [0, 0, 0], [0.1, 0.2, 0.3], {},
                             UndefinedMetricWarning),
    "precision of one class": ("average_precision_score", [0, 0, 0], [0.1, 0.2, 0.3], {},
                               UserWarning),
    "Brier of zeros": ("brier_score_loss", [0, 0, 0], [0.1, 0.9, 0.4], {}, None),
    "Brier of ones": ("brier_score_loss", [1, 1, 1], [0.1, 0.9, 0.4], {}, None),
    "Brier of twos": ("brier_score_loss", [2, 2, 2], [0.1, 0.9, 0.4], {}, None),
    "logs of columns": ("log_loss", COLUMNS, HALVES, {}, None),
    "Brier of columns": ("brier_score_loss", COLUMNS, HALVES, {}, None),
    "sums that are not one": ("log_loss", [0, 1, 0, 2], THREE * 0.9, {}, UserWarning),
    "labels in another order": ("log_loss", [0, 1, 0, 1], THREE, {"labels": [2, 0, 1]},
                                UserWarning),
    "pairs of classes that are there": (
        "roc_auc_score", [0, 2, 0, 2], THREE, {"multi_class": "ovo", "labels": [0, 1, 2]}, None,
    ),
    "a column of one class": ("roc_auc_score", COLUMNS[:, [0, 0]] * [1, 0], HALVES, {},
                              UndefinedMetricWarning),
    "counted weights": ("confusion_matrix", [0, 1, 1], [0, 1, 0],
                        {"sample_weight": np.array([1, 2, 3])}, None),
    "weighed": ("confusion_matrix", [0, 1, 1], [0, 1, 0],
                {"sample_weight": np.array([1.0, 2.0, 3.5])}, None),
    "texts": ("brier_score_loss", ["a", "b", "a"], HALVES[:3], {"labels": ["a", "b"]}, None),
    "floats as labels": ("accuracy_score", [0.0, 1.0, 1.0], [0, 1, 0], {}, None),
    "booleans": ("f1_score", [True, False, True], [True, True, True], {}, None),
}  # fmt: skip


@pytest.mark.skipif(SKLEARN < (1, 8), reason="of scikit-learn 1.8")
@pytest.mark.parametrize("case", ALIKE)
def test_what_it_leaves_undefined_is_undefined(case: str) -> None:
    name, y, predicted, options, warning = ALIKE[case]
    expected = found = None
    with warnings.catch_warnings(record=True) as theirs:
        warnings.simplefilter("always")
        expected = getattr(known, name)(y, predicted, **options)
    assert warning is None or warning in {each.category for each in theirs}
    for lazy in (False, True):
        given: Any = {**options}
        if lazy and "sample_weight" in given:
            given["sample_weight"] = cut(given["sample_weight"])
        rows = (cut(y), cut(predicted)) if lazy else (y, predicted)
        with warnings.catch_warnings(record=True) as ours:
            warnings.simplefilter("always")
            found = getattr(metrics, name)(*rows, **given)
        assert np.asarray(found).dtype == np.asarray(expected).dtype
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        assert warning is None or warning in {each.category for each in ours}


@pytest.mark.parametrize("where", [None, "client"])
def test_scores_of_labels_that_cannot_be_right_are_refused(
    where: str | None, request: pytest.FixtureRequest
) -> None:
    client: Client | None = request.getfixturevalue(where) if where else None
    X = np.random.default_rng(0).normal(size=(200, 2))
    y = (X[:, 0] > 0).astype(int)
    model, D = LinearClassifier(client=client).fit(X, y), da.from_array(X, chunks=(50, 2))
    gap, none = y.astype(float), y.astype(object)
    gap[3] = NAN
    none[3] = None
    wrong: dict[str, Any] = {
        "Mix of label input types": y.astype(str), "contains NaN": gap, "continuous": X[:, 0],
    }  # fmt: skip
    for message, labels in wrong.items():
        with pytest.raises(ValueError, match=message):
            model.score(D, da.from_array(labels, chunks=50))
    with pytest.raises(ValueError, match="contains NaN"):
        model.score(D, da.from_array(none, chunks=50))
    with pytest.raises(ValueError, match="contains NaN"):
        LinearRegressor(client=client).fit(X, X[:, 0]).score(D, da.from_array(gap, chunks=50))


def test_labels_of_dask_will_do() -> None:
    y = cut([0, 1, 0, 2])
    expected = known.log_loss([0, 1, 0, 2], THREE)
    assert metrics.log_loss(y, cut(THREE), labels=np.unique(y)) == pytest.approx(expected)
