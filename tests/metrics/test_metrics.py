"""Metrics of lazy predictions come to what scikit-learn makes of the same rows."""

from __future__ import annotations

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from sklearn import metrics as known
from versions import SKLEARN

from dps import LinearClassifier, LinearRegressor, metrics
from dps.metrics import get_scorer, get_scorer_names, ranking

ROWS = 500


def rows() -> tuple[Any, Any, Any, Any]:
    """Targets of two classes, scores from 0 to 1 of which some are equal, numbers, weights."""
    rng = np.random.default_rng(0)
    scores = rng.random(ROWS).round(2)
    y = np.where(rng.random(ROWS) < scores, "yes", "no")
    return y, scores, rng.normal(size=ROWS), rng.integers(0, 4, ROWS).astype(float)


def lazy(values: Any, kind: str) -> Any:
    if kind == "local" or values is None:
        return values
    if kind == "series":
        frame = pd.DataFrame(values) if values.ndim == 2 else pd.Series(values)
        return dd.from_pandas(frame, npartitions=4, sort=False)
    return da.from_array(values, chunks=(120, *values.shape[1:]))


@pytest.mark.parametrize("kind", ["array", "series", "local"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        "accuracy_score", "log_loss", "roc_auc_score", "r2_score", "mean_squared_error",
        "root_mean_squared_error", "mean_absolute_error", "balanced_accuracy_score",
        "brier_score_loss", "average_precision_score",
    ],
)  # fmt: skip
def test_metrics_equal_those_of_scikit_learn(name: str, weighted: bool, kind: str) -> None:
    y, scores, numbers, weights = rows()
    given: dict[str, tuple[Any, Any]] = {
        "accuracy_score": (y, np.where(scores > 0.4, "yes", "no")),
        "balanced_accuracy_score": (y, np.where(scores > 0.4, "yes", "no")),
        "log_loss": (y, scores),
        "roc_auc_score": (y, scores),
        "brier_score_loss": (y == "yes", scores),
        "average_precision_score": ((y == "yes").astype(int), scores),
    }
    true, predicted = given.get(name, (numbers + 1e6, numbers + scores + 1e6))
    weight = weights if weighted else None
    expected = getattr(known, name)(true, predicted, sample_weight=weight)
    actual = getattr(metrics, name)(
        lazy(true, kind), lazy(predicted, kind), sample_weight=lazy(weight, kind)
    )
    assert actual == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("kind", ["array", "series"])
def test_a_log_loss_of_several_classes(kind: str) -> None:
    rng = np.random.default_rng(0)
    chances = rng.dirichlet([1.0, 2.0, 3.0, 1.0], ROWS).astype(np.float32)
    chances[0] = [0, 0, 0, 1]
    y = np.sort(rng.integers(3, size=ROWS))  # no partition has all, and the fourth never comes
    expected = known.log_loss(y, chances, labels=[0, 1, 2, 3])
    given = lazy(y, kind), lazy(chances, kind)
    with pytest.warns(UserWarning, match="those of the sorted labels"):
        found = metrics.log_loss(*given, labels=[3, 2, 1, 0])
    assert found == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ValueError, match=r"holds 3 labels, \[0, 1, 2\], .* of 4: give labels="):
        metrics.log_loss(*given)
    with pytest.raises(ValueError, match=r"holds the labels \[2\]"):
        metrics.log_loss(*given, labels=[0, 1, 4, 5])


def test_regressions_of_several_outputs() -> None:
    rng = np.random.default_rng(0)
    y = rng.normal(size=(ROWS, 3)) * [1, 10, 0]
    predicted = y + rng.normal(size=(ROWS, 3))
    for name in ("r2_score", "mean_squared_error", "root_mean_squared_error"):
        actual = getattr(metrics, name)(lazy(y, "array"), lazy(predicted, "array"))
        assert actual == pytest.approx(getattr(known, name)(y, predicted), rel=1e-9)


def test_a_roc_curve_of_more_scores_than_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=40_000)
    y = (rng.random(40_000) < 1 / (1 + np.exp(-scores))).astype(int)
    expected = known.roc_auc_score(y, scores)
    monkeypatch.setattr(ranking, "_MOST", 1 << 10)
    parts = {}
    for rows_a_part in (40_000, 10_000, 300):
        given = (da.from_array(values, chunks=rows_a_part) for values in (y, scores))
        parts[rows_a_part] = metrics.roc_auc_score(*given)
    assert len(set(parts.values())) == 1  # however the rows are cut
    assert parts[300] == pytest.approx(expected, abs=1e-4)
    assert parts[300] != expected


def test_scores_of_any_sign_and_size_are_ranked() -> None:
    scores = np.array([-np.inf, -1e300, -1.0, -1e-300, -0.0, 0.0, 1e-300, 1.0, 1e300, np.inf])
    y = np.array([0, 1, 0, 0, 1, 0, 0, 1, 1, 1])
    finite = scores[1:-1]
    expected = known.roc_auc_score(y[1:-1], finite)
    some = lazy(y[1:-1], "array"), lazy(finite, "array")
    assert metrics.roc_auc_score(*some) == pytest.approx(expected)
    order = np.argsort(np.argsort(scores, kind="stable"))
    order[5] = order[4]
    given = lazy(y, "array"), lazy(scores, "array")
    assert metrics.roc_auc_score(*given) == pytest.approx(known.roc_auc_score(y, order))


def test_what_cannot_be_ranked_is_said() -> None:
    y = lazy(np.array([0, 1, 2]), "array")
    with pytest.raises(ValueError, match=r"multiple classes: \[0, 1, 2\]"):
        metrics.roc_auc_score(y, y)
    with pytest.raises(ValueError, match="NaN"):
        metrics.roc_auc_score(y, lazy(np.array([0.1, np.nan, 0.3]), "array"))


def test_rows_that_do_not_go_together_are_said() -> None:
    y = dd.from_pandas(pd.Series(range(10)), npartitions=2, sort=False)
    other = y[y != 7]
    with pytest.raises(ValueError, match="y_true in partition 1 has 5 rows, y_pred has 4"):
        metrics.mean_squared_error(y, other)
    with pytest.raises(TypeError, match="y_pred is of the type ndarray"):
        metrics.mean_squared_error(y, np.arange(10))


@pytest.mark.parametrize("frame", [False, True])
def test_predictions_are_scored_where_they_lie(frame: bool, client: Client) -> None:
    X = np.random.default_rng(0).normal(size=(ROWS, 4))
    y = (X[:, 0] + X[:, 1] > 0.3).astype(int)
    model = LinearClassifier(client=client, max_iter=5, tol=None).fit(X, y)
    given = da.from_array(X, chunks=(100, -1)), da.from_array(y, chunks=100)
    if frame:
        table = pd.DataFrame(X, columns=list("abcd"))
        given = dd.from_pandas(table, npartitions=5), dd.from_pandas(pd.Series(y), npartitions=5)
        model.fit(table, y)
    for name in (
        "accuracy",
        "f1",
        "neg_log_loss",
        "neg_brier_score",
        "average_precision",
        "roc_auc",
    ):
        expected = known.get_scorer(name)(model, table if frame else X, y)
        assert metrics.get_scorer(name)(model, *given) == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ValueError, match="scoring='max_error' is not computed"):
        metrics.get_scorer("max_error")


@pytest.mark.parametrize("name", ["f1_score", "precision_score", "recall_score"])
@pytest.mark.parametrize("average", ["binary", "macro", "micro", "weighted", "samples", None])
@pytest.mark.parametrize("kind", ["array", "series", "local"])
def test_metrics_of_labels_are_what_scikit_learn_makes_of_them(
    name: str, average: Any, kind: str
) -> None:
    rng = np.random.default_rng(1)
    weights = rng.integers(0, 4, ROWS).astype(float)
    labels: Any = np.array(["a", "b", "c"])
    y, predicted = labels[rng.integers(0, 3, (2, ROWS))]
    options: dict[str, Any] = {"average": average}
    if average == "binary":
        y, predicted, options["pos_label"] = y == "a", predicted == "a", True
    elif average == "samples":
        y, predicted = rng.integers(0, 2, (2, ROWS, 3))
        options["zero_division"] = 0.0
    else:
        options["labels"] = ["c", "a"]
    expected = getattr(known, name)(y, predicted, sample_weight=weights, **options)
    actual = getattr(metrics, name)(
        lazy(y, kind), lazy(predicted, kind), sample_weight=lazy(weights, kind), **options
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


@pytest.mark.parametrize("normalize", [None, "true", "all"])
def test_a_confusion_matrix(normalize: Any) -> None:
    labels: Any = np.array(["b", "a", "longer"], object)
    y, predicted = labels[np.random.default_rng(2).integers(0, 3, (2, ROWS))]
    for chosen in (None, ["longer", "a"]):
        expected = known.confusion_matrix(y, predicted, normalize=normalize, labels=chosen)
        actual = metrics.confusion_matrix(
            lazy(y, "series"), lazy(predicted, "series"), normalize=normalize, labels=chosen
        )
        assert actual.dtype == expected.dtype
        np.testing.assert_allclose(actual, expected, rtol=1e-12)


@pytest.mark.skipif(SKLEARN < (1, 8), reason="of scikit-learn 1.8")
def test_scores_of_several_classes() -> None:
    rng = np.random.default_rng(3)
    chances = rng.dirichlet([1, 2, 3], ROWS)
    y = np.array(["a", "b", "c"])[(chances.cumsum(axis=1) < rng.random((ROWS, 1))).sum(axis=1)]
    raw = np.log(chances).round(1)
    for average in ("macro", "weighted", None):
        np.testing.assert_allclose(
            metrics.average_precision_score(lazy(y, "array"), lazy(raw, "array"), average=average),
            known.average_precision_score(y, raw, average=average), rtol=1e-12,
        )  # fmt: skip
    for halved in (True, False, "auto"):
        options: dict[str, Any] = {"scale_by_half": halved, "labels": ["a", "b", "c"]}
        assert metrics.brier_score_loss(
            lazy(y, "array"), lazy(chances, "array"), **options
        ) == pytest.approx(known.brier_score_loss(y, chances, **options), rel=1e-12)
    columns = (y[:, None] == ["a", "b", "c"]).astype(int)
    assert metrics.average_precision_score(lazy(columns, "array"), lazy(raw, "array")) == (
        pytest.approx(known.average_precision_score(columns, raw), rel=1e-12)
    )


def test_what_cannot_be_found_is_said() -> None:
    y, scores, _, _ = rows()
    with pytest.raises(ValueError, match=r"pos_label=1 is not a valid label.*\['no' 'yes'\]"):
        metrics.average_precision_score(lazy(y, "array"), lazy(scores, "array"))
    with pytest.raises(ValueError, match=r"holds 2 labels, .* has 3 columns"):
        metrics.average_precision_score(lazy(y, "array"), lazy(np.ones((ROWS, 3)), "array"))
    with pytest.raises(ValueError, match="0 sample"):
        metrics.f1_score(lazy(y[:0], "array"), lazy(y[:0], "array"))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
@pytest.mark.parametrize("name", sorted(set(get_scorer_names()) & set(known.get_scorer_names())))
def test_scorers_are_those_of_scikit_learn(name: str) -> None:
    rng = np.random.default_rng(4)
    X = rng.normal(size=(ROWS, 3))
    raw = X @ rng.normal(size=(3, 3)) + rng.gumbel(size=(ROWS, 3))
    y: Any = raw.argmax(axis=1)
    kind: Any = LinearClassifier
    if name.endswith("_samples"):
        y = (raw > 0).astype(int)
    elif name in ("f1", "precision", "recall", "roc_auc", "average_precision"):
        y = (raw[:, 0] > 0).astype(int)
    elif name.startswith(("neg_mean", "neg_root", "r2")):
        y, kind = raw[:, 0], LinearRegressor
    options = {}
    if name.endswith("_deviance"):
        y, options = np.exp(y), {"loss": "gamma"}
    model = kind(random_state=0, **options).fit(X, y)
    actual = get_scorer(name)(model, lazy(X, "array"), lazy(y, "array"))
    if name == "neg_brier_score" and SKLEARN < (1, 7):  # it knows two classes
        assert actual == pytest.approx(get_scorer(name)(model, X, y), rel=1e-9)
        return
    assert actual == pytest.approx(known.get_scorer(name)(model, X, y), rel=1e-9)
