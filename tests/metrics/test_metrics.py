"""Metrics of Dask collections are scikit-learn's, for all their inputs."""

from __future__ import annotations

import warnings
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn.metrics
from cases import pairs
from distributed import Client
from hypothesis import given, strategies as st
from sklearn import metrics as known
from sklearn.exceptions import UndefinedMetricWarning
from versions import SKLEARN

import dps
from dps import LinearClassifier, LinearRegressor, metrics
from dps.metrics import get_scorer, ranking, roc_auc_score
from dps.model_selection import cross_val_score

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


@pairs(
    name=[
        "accuracy_score", "log_loss", "roc_auc_score", "r2_score", "mean_squared_error",
        "root_mean_squared_error", "mean_absolute_error", "balanced_accuracy_score",
        "brier_score_loss", "average_precision_score", "matthews_corrcoef",
        "explained_variance_score", "mean_absolute_percentage_error", "median_absolute_error",
        "mean_squared_log_error", "root_mean_squared_log_error",
    ],
    weighted=[False, True],
    kind=["array", "series", "local"],
)  # fmt: skip
def test_metrics_equal_those_of_scikit_learn(name: str, weighted: bool, kind: str) -> None:
    y, scores, numbers, weights = rows()
    given: dict[str, tuple[Any, Any]] = {
        "accuracy_score": (y, np.where(scores > 0.4, "yes", "no")),
        "balanced_accuracy_score": (y, np.where(scores > 0.4, "yes", "no")),
        "matthews_corrcoef": (y, np.where(scores > 0.4, "yes", "no")),
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
    for name in (
        "r2_score", "mean_squared_error", "root_mean_squared_error", "explained_variance_score",
        "mean_absolute_percentage_error", "median_absolute_error",
    ):  # fmt: skip
        actual = getattr(metrics, name)(lazy(y, "array"), lazy(predicted, "array"))
        assert actual == pytest.approx(getattr(known, name)(y, predicted), rel=1e-9)


@pytest.mark.parametrize("kind", [None, int, float])
def test_scores_of_labels_equal_those_of_scikit_learn(kind: type | None) -> None:
    rng = np.random.default_rng(0)
    y, predicted = (rng.choice(["few", "many", "none"], ROWS, p=[0.1, 0.6, 0.3]) for _ in "yp")
    weight = None if kind is None else rng.integers(0, 4, ROWS).astype(kind)
    given = lazy(y, "array"), lazy(predicted, "array")
    for name, options in (
        ("fbeta_score", {"beta": 0.5, "average": None}), ("jaccard_score", {"average": "macro"}),
        ("fbeta_score", {"beta": 2, "average": "micro", "labels": ["few", "none"]}),
        ("classification_report", {"digits": 4}), ("classification_report", {"output_dict": True}),
    ):  # fmt: skip
        actual = getattr(metrics, name)(*given, sample_weight=lazy(weight, "array"), **options)
        expected = getattr(known, name)(y, predicted, sample_weight=weight, **options)
        if isinstance(expected, str):
            assert actual == expected
        elif isinstance(expected, dict):
            assert [*actual] == [*expected]
            assert actual["few"] == pytest.approx(expected["few"])
        else:
            np.testing.assert_allclose(actual, expected)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["roc_curve", "precision_recall_curve"])
def test_curves_equal_those_of_scikit_learn(name: str, weighted: bool) -> None:
    y, scores, numbers, weights = rows()
    ranks = np.append(numbers[1:], -0.0)  # of both signs, a zero, and distinct
    weight = weights if weighted else None
    for chances, options in ((scores, {}), (ranks, {"drop_intermediate": True})):
        expected = getattr(known, name)(
            y, chances, pos_label="yes", sample_weight=weight, **options
        )
        actual = getattr(metrics, name)(
            lazy(y, "array"), lazy(chances, "array"), pos_label="yes",
            sample_weight=lazy(weight, "array"), **options,
        )  # fmt: skip
        for one, other in zip(actual, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-12)
    with pytest.raises(ValueError, match="pos_label"):
        getattr(metrics, name)(lazy(y, "array"), lazy(scores, "array"))
    with pytest.raises(ValueError, match="y_score has 3 columns: a curve needs one, or two"):
        getattr(metrics, name)(lazy(y, "array"), da.ones((ROWS, 3), chunks=(120, 3)))


def test_scorers_that_users_make_compute_where_the_data_lies(client: Client) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, 3))
    y = (X[:, 0] + rng.normal(size=ROWS) > 1).astype(int)
    model = LinearClassifier().fit(X, y)
    dX, dy = lazy(X, "array"), lazy(y, "array")
    for func, options in (
        ("fbeta_score", {"beta": 2}), ("roc_auc_score", {"response_method": "decision_function"}),
        ("log_loss", {"greater_is_better": False, "response_method": "predict_proba"}),
        ("roc_auc_score", {"response_method": ("decision_function", "predict_proba")}),
    ):  # fmt: skip
        theirs = known.make_scorer(getattr(known, func), **options)
        expected = theirs(model, X, y)
        for scorer in (
            metrics.make_scorer(getattr(metrics, func), **options),
            metrics.make_scorer(getattr(known, func), **options),
            get_scorer(theirs),
        ):
            assert scorer.metric is getattr(metrics, func)
            assert scorer(model, dX, dy) == pytest.approx(expected)
            assert (
                cross_val_score(LinearClassifier(client=client), dX, dy, scoring=scorer).size == 5
            )

    names = np.where(y > 0, "a", "b")
    words, lazy_names = LinearClassifier().fit(X, names), lazy(names, "array")
    for func, options in (
        ("f1_score", {"pos_label": "a"}), ("jaccard_score", {"pos_label": "b"}),
        ("f1_score", {"average": "binary", "pos_label": "a"}),
        ("brier_score_loss", {"response_method": "predict_proba", "pos_label": "a"}),
        ("average_precision_score", {"response_method": "predict_proba", "pos_label": "a"}),
        ("average_precision_score", {"response_method": "predict_proba", "pos_label": "b"}),
        ("average_precision_score", {"response_method": "decision_function", "pos_label": "a"}),
        ("log_loss", {"response_method": "predict_proba", "labels": ["a", "b"]}),
    ):  # fmt: skip
        expected = known.make_scorer(getattr(known, func), **options)(words, X, names)
        found = metrics.make_scorer(getattr(metrics, func), **options)(words, dX, lazy_names)
        assert found == pytest.approx(expected), (func, options)
    # By default the class 1, and without one the second.
    found = metrics.make_scorer(metrics.f1_score)(words, dX, lazy_names)
    assert found == pytest.approx(known.f1_score(names, words.predict(X), pos_label="b"))

    def fbeta_score(y: Any, predicted: Any) -> float:  # a user's own of a known name
        return float(len(y))

    assert metrics.make_scorer(fbeta_score)(model, dX, dy) == ROWS


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_the_extreme_quantiles_of_y_are_compared(alpha: float) -> None:
    y, _, numbers, _ = rows()
    predicted = numbers + (1 if alpha else -1) * (y == "yes")
    expected = known.d2_pinball_score(numbers, predicted, alpha=alpha)
    found = metrics.d2_pinball_score(lazy(numbers, "array"), lazy(predicted, "array"), alpha=alpha)
    assert found == pytest.approx(expected)


def test_a_roc_curve_of_more_scores_than_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=40_000)
    y = (rng.random(40_000) < 1 / (1 + np.exp(-scores))).astype(int)
    expected = known.roc_auc_score(y, scores)
    monkeypatch.setattr(ranking, "_MAX_SCORES", 1 << 10)
    parts = {}
    for rows_a_part in (40_000, 10_000, 300):
        given = (da.from_array(values, chunks=rows_a_part) for values in (y, scores))
        parts[rows_a_part] = metrics.roc_auc_score(*given)
    assert len(set(parts.values())) == 1  # however the rows are cut
    assert parts[300] == pytest.approx(expected, abs=1e-4)
    assert parts[300] != expected
    given = (da.from_array(values, chunks=10_000) for values in (y, scores))
    fpr, tpr, thresholds = metrics.roc_curve(*given)
    assert known.auc(fpr, tpr) == pytest.approx(expected, abs=1e-4)
    assert 0 <= scores.max() / thresholds[1] - 1 < 2**-5


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
    with pytest.raises(ValueError, match="scoring='max_eror' is no name"):
        metrics.get_scorer("max_eror")


@pairs(
    name=["f1_score", "precision_score", "recall_score"],
    average=["binary", "macro", "micro", "weighted", "samples", None],
    kind=["array", "series", "local"],
)
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


@pytest.mark.parametrize("dtype", [int, float, bool])
@pytest.mark.parametrize("kind", ["array", "delayed", "list", "series", "frame"])
def test_a_confusion_matrix_has_the_weights_of_any_container(kind: str, dtype: Any) -> None:
    rng = np.random.default_rng(4)
    y, predicted = rng.integers(0, 2, (2, ROWS))
    weights = (3 * rng.random(ROWS)).astype(dtype)
    array = lazy(weights, "array")
    given: Any = {
        "array": array, "delayed": array.to_delayed().tolist(), "list": weights.tolist(),
        "series": pd.Series(weights), "frame": pd.DataFrame({"weight": weights}),
    }[kind]  # fmt: skip
    actual = metrics.confusion_matrix(
        lazy(y, "array"), lazy(predicted, "array"), sample_weight=given
    )
    expected = known.confusion_matrix(y, predicted, sample_weight=weights)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)
    assert actual.dtype == (float if kind == "delayed" else expected.dtype)


@pytest.mark.parametrize(
    "name",
    ["mean_squared_error", "r2_score", "mean_poisson_deviance", "d2_absolute_error_score",
     "accuracy_score", "roc_auc_score", "log_loss", "average_precision_score"],
)  # fmt: skip
def test_rows_without_any_weight_have_no_score(name: str) -> None:
    y: Any = np.arange(ROWS) % 2
    predicted: Any = y if name == "accuracy_score" else np.linspace(0.1, 0.9, ROWS)
    y, predicted, weight = (lazy(each, "array") for each in (y, predicted, np.zeros(ROWS)))
    with pytest.raises(ValueError, match="Sample weights must contain at least one non-zero"):
        getattr(metrics, name)(y, predicted, sample_weight=weight)


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


OF_TWO = (
    "f1", "precision", "recall", "jaccard", "roc_auc", "average_precision",
    "positive_likelihood_ratio", "neg_negative_likelihood_ratio",
)  # fmt: skip
OF_NUMBERS = ("neg_me", "neg_max", "neg_root", "r2", "explained", "d2_absolute")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
@pytest.mark.parametrize("name", known.get_scorer_names())
def test_scorers_are_those_of_scikit_learn(name: str) -> None:
    rng = np.random.default_rng(4)
    X = rng.normal(size=(ROWS, 3))
    raw = X @ rng.normal(size=(3, 3)) + rng.gumbel(size=(ROWS, 3))
    y: Any = raw.argmax(axis=1)
    kind: Any = LinearClassifier
    if name.endswith("_samples"):
        y = (raw > 0).astype(int)
    elif name in OF_TWO:
        y = (raw[:, 0] > 0).astype(int)
    elif name.startswith(OF_NUMBERS):
        y, kind = raw[:, 0], LinearRegressor
    options = {}
    if name.endswith(("_deviance", "_log_error")):
        y, options = np.exp(y), {"loss": "gamma"}
    model = kind(random_state=0, **options).fit(X, y)
    actual = get_scorer(name)(model, lazy(X, "array"), lazy(y, "array"))
    if name == "neg_brier_score" and SKLEARN < (1, 7):  # it knows two classes
        assert actual == pytest.approx(get_scorer(name)(model, X, y), rel=1e-9)
        return
    assert actual == pytest.approx(known.get_scorer(name)(model, X, y), rel=1e-9)


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
