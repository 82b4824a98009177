"""Scores of validation rows: scikit-learn's on the same rows, on any replica; they may decide."""

from __future__ import annotations

from typing import Any

import dask.array
import numpy as np
import pytest
import scipy.sparse
import sklearn.metrics
from cases import slow
from configure import configure
from distributed import Client
from numpy.testing import assert_allclose
from versions import SKLEARN

import dps
from dps.metrics import RowScore

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
RNG = np.random.default_rng(0)
X, X_VAL = RNG.normal(size=(600, 4)), RNG.normal(size=(5000, 4))  # more than a block
WEIGHT = RNG.uniform(0.5, 2, len(X_VAL))
OPTIONS: dict[str, Any] = {"random_state": 0, "n_replicas": 3, "max_iter": 3}


def values(X: Any, outputs: int) -> Any:
    y = X @ np.arange(4 * outputs).reshape(4, outputs) + np.sin(9 * X[:, :1]) + 1e6
    return y if outputs > 1 else y[:, 0]


@pytest.mark.parametrize("optimizer", ["lbfgs", "adam"])
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize(
    "scoring", [*dps.scores.validation.SUMS["regression"], "neg_median_absolute_error"]
)
def test_of_numbers_they_are_those_of_scikit_learn(
    scoring: str, outputs: int, optimizer: str
) -> None:
    y, y_val = values(X, outputs), values(X_VAL, outputs)
    model = dps.LinearRegressor(scoring=scoring, optimizer=optimizer, **OPTIONS)
    model.fit(X, y, X_val=X_VAL, y_val=y_val, sample_weight_val=WEIGHT)
    name = scoring.removeprefix("neg_")
    metric = getattr(sklearn.metrics, "r2_score" if name == "r2" else name)
    sign = 1 if scoring == "r2" else -1
    expected = sign * metric(y_val, model.predict(X_VAL), sample_weight=WEIGHT)
    assert_allclose(model.history_[-1]["validation_score"], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "classes", "mode"),
    [
        (dps.LinearClassifier, ["no", "yes"], "sync"),
        (dps.LinearClassifier, [3, 5, 9], "sync"),
        (dps.MLPClassifier, ["no", "yes"], "allreduce"),
        *slow((dps.MLPClassifier, [3, 5, 9], "async")),
    ],
)
def test_of_labels_they_are_those_of_scikit_learn(
    kind: Any, classes: list[Any], mode: str, client: Client
) -> None:
    weights = RNG.normal(size=(4, len(classes)))
    y, y_val = (np.array(classes)[(each @ weights).argmax(axis=1)] for each in (X, X_VAL))
    more: tuple[str, ...] = ()
    if mode == "sync" and kind is dps.LinearClassifier:
        of_labels = ("f1", "recall") if len(classes) == 2 else ("f1_macro", "precision_weighted")
        areas = ("average_precision", "roc_auc") if len(classes) == 2 else ("roc_auc_ovr",)
        brier = ("neg_brier_score",) if len(classes) == 2 or SKLEARN >= (1, 7) else ()
        more = *brier, "balanced_accuracy", *of_labels, *areas
    for scoring in ("accuracy", "neg_log_loss", *more):
        model = kind(scoring=scoring, mode=mode, early_stopping=True, client=client, **OPTIONS)
        model.fit(X, y, X_val=X_VAL, y_val=y_val, sample_weight_val=WEIGHT)
        scorer = sklearn.metrics.get_scorer(scoring)
        if scoring in ("f1", "recall"):  # of the second class, whatever it is called
            metric = getattr(sklearn.metrics, f"{scoring}_score")
            scorer = sklearn.metrics.make_scorer(metric, pos_label=classes[1])
        elif scoring == "average_precision":
            scorer = sklearn.metrics.make_scorer(
                sklearn.metrics.average_precision_score, pos_label=classes[1],
                response_method="decision_function",
            )  # fmt: skip
        elif scoring == "neg_brier_score" and len(classes) == 2:
            scorer = sklearn.metrics.make_scorer(
                sklearn.metrics.brier_score_loss, pos_label=classes[1], greater_is_better=False,
                response_method="predict_proba",
            )  # fmt: skip
        score = scorer(model, X_VAL, y_val, sample_weight=WEIGHT)
        best = max(epoch["validation_score"] for epoch in model.history_)
        assert_allclose(best, score, rtol=1e-5)


def hits(y_true: Any, y_pred: Any) -> float:
    return float(np.mean((y_true == "yes") == (y_pred == "yes")))


@pytest.mark.parametrize("kind", ["streamed", "by keys", "in memory"])
def test_a_scorer_of_all_rows_has_those_of_every_replica(kind: str, client: Client) -> None:
    y = np.where(X[:, 0] + np.sin(9 * X[:, 1]) > 0, "yes", "no")
    options = {**OPTIONS, "early_stopping": True, "validation_fraction": 0.4, "tol": None}
    rows, cache = dask.array.from_array(X, chunks=(100, 4)), "memory"
    labels = dask.array.from_array(y, chunks=100)
    if kind == "streamed":
        cache = None
    elif kind == "by keys":
        wide = scipy.sparse.csr_matrix((X[:, 0], np.arange(600) % 7, np.arange(601)), (600, 5000))
        rows = dask.array.from_array(wide, chunks=(100, 5000), asarray=False)
    scores = []
    for scoring in ("accuracy", sklearn.metrics.make_scorer(hits), "roc_auc"):
        configure(cache=cache)
        model = dps.LinearClassifier(scoring=scoring, client=client, **options)
        model.fit(rows, labels)
        scores.append([epoch["validation_score"] for epoch in model.history_])
    assert_allclose(scores[0], scores[1])
    assert all(0.6 < area < 1 for area in scores[2])


@pytest.mark.parametrize("mode", ["async", "allreduce", dps.Async(access="stream")])
def test_the_epoch_that_is_kept_has_the_area_that_was_seen(mode: Any, client: Client) -> None:
    y, y_val = (each[:, 0] + np.sin(9 * each[:, 1]) > 0 for each in (X, X_VAL))
    model = dps.LinearClassifier(
        scoring="roc_auc", early_stopping=True, mode=mode, optimizer="adagrad", client=client,
        **{**OPTIONS, "n_replicas": 2},
    ).fit(X, y, X_val=X_VAL, y_val=y_val)  # fmt: skip
    best = max(epoch["validation_score"] for epoch in model.history_)
    area = sklearn.metrics.roc_auc_score(y_val, model.decision_function(X_VAL))
    assert_allclose(best, area, rtol=1e-12)


@pytest.mark.slow
def test_rows_that_are_too_many_to_come_together_are_refused() -> None:
    many = np.zeros((12_000_000, 1), np.float32)
    model = dps.LinearClassifier(scoring="roc_auc", early_stopping=True, n_replicas=2)
    with pytest.raises(ValueError, match=r"all 12,000,000 rows .* more than 256"):
        model.fit(X[:, :1], X[:, 0] > 0, X_val=many, y_val=np.arange(len(many)) % 2 == 0)


def even(y_true: Any, y_pred: Any) -> Any:
    return -np.abs(y_pred[:, 1] - (y_true == "yes"))


def test_one_of_ones_own_decides_which_epoch_is_kept() -> None:
    y, y_val = (np.where(each[:, 0] > 0, "yes", "no") for each in (X, X_VAL))
    noisy = np.where(np.random.default_rng(0).random(len(y)) < 0.3, y[::-1], y)
    model = dps.MLPClassifier(
        (32,), max_iter=30, scoring=RowScore(even, "predict_proba"), n_iter_no_change=30,
        n_replicas=2, random_state=0,
    ).fit(X, noisy, X_val=X_VAL, y_val=y_val)  # fmt: skip
    scores = [epoch["validation_score"] for epoch in model.history_]
    assert max(scores) > scores[-1]
    assert_allclose(even(y_val, model.predict_proba(X_VAL)).mean(), max(scores), rtol=1e-5)


def test_scores_are_kept_in_files() -> None:
    for scoring in ("accuracy", "loss"):
        model = dps.LinearClassifier(early_stopping=True, scoring=scoring, max_iter=3)
        model.fit(X, X[:, 0] > 0).save(f"memory://{scoring}")
        again = dps.load(f"memory://{scoring}")
        assert again.history_ == model.history_
        assert again.scoring == scoring


def test_a_score_that_does_not_improve_ends_the_fit() -> None:
    constant = RowScore(lambda y_true, y_pred: np.zeros(len(y_true)))
    model = dps.LinearRegressor(
        early_stopping=True, scoring=constant, n_iter_no_change=4, random_state=0
    )
    assert model.fit(X, X[:, 0]).n_iter_ == 5
    assert set(model.history_[-1]) == {
        *dps.LinearRegressor(early_stopping=True).fit(X, X[:, 0]).history_[-1],
        "validation_score",
    }


def no_rows(y_true: Any, y_pred: Any) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scoring": "area", "early_stopping": True}, "scikit-learn.* Got 'area'"),
        ({"scoring": "r2", "early_stopping": True}, "'accuracy', 'neg_log_loss'"),
        ({"scoring": "accuracy"}, "needs rows for validation"),
        ({"scoring": "neg_log_loss", "loss": "hinge", "early_stopping": True}, "probabilities"),
        ({"scoring": RowScore(no_rows), "early_stopping": True}, "a number for each of"),
        ({"scoring": no_rows}, r"dps.metrics.RowScore\(no_rows\)"),
    ],
)
def test_what_cannot_be_scored_is_said(options: Any, message: str) -> None:
    with pytest.raises((ValueError, dps.errors.DPSError), match=message):
        dps.LinearClassifier(random_state=0, **options).fit(X, X[:, 0] > 0)


@pytest.mark.parametrize("options", [{}, {"optimizer": "lbfgs"}])
def test_auto_may_hold_no_rows_out(options: Any) -> None:
    rows = 600 if options else 50
    with pytest.raises(ValueError, match="needs rows for validation"):
        dps.MLPClassifier(scoring="accuracy", **options).fit(X[:rows], X[:rows, 0] > 0)


@pytest.mark.parametrize("scoring", ["f1_macro", "recall_micro", "precision_weighted"])
def test_of_several_labels_a_row_they_are_those_of_scikit_learn(scoring: str) -> None:
    weights = RNG.normal(size=(4, 3))
    y, y_val = ((each @ weights > 0.5).astype(int) for each in (X, X_VAL))
    model = dps.LinearClassifier(scoring=scoring, early_stopping=True, **OPTIONS)
    model.fit(X, y, X_val=X_VAL, y_val=y_val, sample_weight_val=WEIGHT)
    expected = sklearn.metrics.get_scorer(scoring)(model, X_VAL, y_val, sample_weight=WEIGHT)
    best = max(epoch["validation_score"] for epoch in model.history_)
    assert_allclose(best, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("scoring", "n_labels", "columns", "message"),
    [
        ("f1", 3, False, "use 'f1_macro'"),
        ("recall", 3, True, "use 'recall_macro'"),
        ("neg_brier_score", 3, True, "use 'neg_log_loss'"),
        ("roc_auc", 3, False, "multi_class must be in"),
    ],
)
def test_scores_of_other_labels_are_refused(
    scoring: str, n_labels: int, columns: bool, message: str
) -> None:
    y: Any = np.arange(len(X)) % n_labels
    y = (y[:, None] == np.arange(n_labels)).astype(int) if columns else y
    with pytest.raises(ValueError, match=message):
        dps.LinearClassifier(scoring=scoring, early_stopping=True, **OPTIONS).fit(X, y)
