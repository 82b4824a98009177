"""Folds without a class, scores that fail, names of labels and metadata: as in scikit-learn."""

from __future__ import annotations

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn.metrics
import sklearn.model_selection
from cases import slow
from distributed import Client
from sklearn import config_context
from sklearn.exceptions import UnsetMetadataPassedError
from sklearn.metrics import f1_score, fbeta_score, jaccard_score, make_scorer

from dps import LinearClassifier, LinearRegressor
from dps.model_selection import (
    GridSearchCV,
    PartitionKFold,
    cross_val_predict,
    cross_val_score,
    cross_validate,
)

ROWS = 300
X = np.random.default_rng(0).normal(size=(ROWS, 3))
THREE = np.where(X[:, 0] > 0, 2, 1) - (np.arange(ROWS) < 4)  # two or so rows of label 0
NAMES = np.where(X[:, 0] + X[:, 1] > 0.5, "yes", "no")
WEIGHTS = np.where(np.arange(ROWS) < 150, 5.0, 0.1)
#: Each third of the rows is a fold.
FOLDS = [(np.r_[0:a, b:ROWS], np.r_[a:b]) for a, b in ((0, 100), (100, 200), (200, 300))]


def lazy(values: Any, frame: bool = False) -> Any:
    if not frame:
        return da.from_array(values, chunks=(60, *values.shape[1:]))
    made = pd.DataFrame(values, columns=list("abc")) if values.ndim == 2 else pd.Series(values)
    return dd.from_pandas(made, npartitions=5)


@pytest.mark.parametrize(
    ("method", "frame"), [("predict_proba", True), ("predict_log_proba", False), ("predict", True)]
)
def test_a_fold_without_a_class_has_a_column_for_it(method: str, frame: bool) -> None:
    model = LinearClassifier()
    warned = method != "predict"
    with pytest.warns(RuntimeWarning, match="Number of classes in") if warned else _nothing():
        expected = sklearn.model_selection.cross_val_predict(
            model, X, THREE, cv=FOLDS, method=method
        )
    with pytest.warns(RuntimeWarning, match="Number of classes in") if warned else _nothing():
        found = cross_val_predict(
            model, lazy(X, frame), lazy(THREE, frame), cv=FOLDS, method=method
        )
    assert not frame or not warned or [*found.columns] == [0, 1, 2]
    found = np.asarray(found.compute())
    assert found.shape == expected.shape
    if warned:
        missing = expected[:100, 0]
        assert (missing == (0 if method == "predict_proba" else missing.min())).all()
        np.testing.assert_array_equal(found[:100, 0], missing)
    np.testing.assert_allclose(np.argsort(found), np.argsort(expected))


def _nothing() -> Any:
    import contextlib

    return contextlib.nullcontext()


def test_a_decision_function_of_two_classes_has_no_columns_to_fill() -> None:
    with pytest.raises(ValueError, match=r"Only 2 class.* in training fold, but 3"):
        cross_val_predict(
            LinearClassifier(), lazy(X), lazy(THREE), cv=FOLDS, method="decision_function"
        )


def test_a_score_that_fails_leaves_the_others() -> None:
    scoring = {"loss": "neg_log_loss", "accuracy": "accuracy"}
    with pytest.warns(UserWarning, match="Scoring failed"):
        found = cross_validate(LinearClassifier(), lazy(X), lazy(THREE), cv=FOLDS, scoring=scoring)
    assert np.isnan(found["test_loss"]).tolist() == [True, False, False]
    assert (found["test_accuracy"] > 0.9).all()
    with pytest.raises(ValueError, match=r"holds the labels \[0\]"):
        cross_validate(
            LinearClassifier(), lazy(X), lazy(THREE), cv=FOLDS, scoring=scoring,
            error_score="raise",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("f1", "NumPy"), ("precision", "dask frame"), ("recall", "frame"),
        ("average_precision", "array"),
    ],
)  # fmt: skip
def test_scores_of_two_names_are_of_the_second(name: str, where: str) -> None:
    codes = (NAMES == "yes").astype(int)
    expected = sklearn.model_selection.cross_val_score(
        LinearClassifier(), X, codes, cv=FOLDS, scoring=name
    )
    given: Any = X, NAMES
    if where == "frame":
        given = pd.DataFrame(X, columns=list("abc")), pd.Series(NAMES)
    elif where != "NumPy":
        given = lazy(X, "frame" in where), lazy(NAMES, "frame" in where)
    found = cross_val_score(LinearClassifier(), *given, cv=FOLDS, scoring=name)
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    several = cross_validate(LinearClassifier(), *given, cv=FOLDS, scoring=[name, "accuracy"])
    np.testing.assert_allclose(several[f"test_{name}"], expected, rtol=1e-3)
    search = GridSearchCV(LinearClassifier(), {"alpha": ["auto"]}, cv=FOLDS, scoring=name)
    assert search.fit(*given).best_score_ == pytest.approx(expected.mean(), rel=1e-3)
    assert search.scoring == name


@pytest.mark.parametrize(
    ("name", "kind"),
    [("f1", "local"), ("precision", "array"), ("recall", "frame"), ("average_precision", "list")],
)
def test_scores_are_of_the_label_1_where_there_is_one(name: str, kind: str) -> None:
    """As scikit-learn's scorers of these names do, also where 1 is the first label."""
    y = np.where(X[:, 0] + X[:, 1] > 0.5, 2, 1)
    cv: Any = PartitionKFold(5, by="partitions")
    expected = sklearn.model_selection.cross_val_score(
        LinearClassifier(), X, y, cv=sklearn.model_selection.KFold(5), scoring=name
    )
    data: Any = (X, y) if kind == "local" else (lazy(X, kind == "frame"), lazy(y, kind == "frame"))
    if kind == "list":
        data = [each.to_delayed().ravel().tolist() for each in data]
    if kind == "local":
        cv = sklearn.model_selection.KFold(5)
    found = cross_val_score(LinearClassifier(), *data, cv=cv, scoring=name)
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    model = LinearClassifier(scoring=name, early_stopping=True)
    model.fit(X[60:], y[60:], X_val=X[:60], y_val=y[:60])
    best = sklearn.metrics.get_scorer(name)(model, X[:60], y[:60])
    assert max(record["validation_score"] for record in model.history_) == pytest.approx(best)


class Counting(LinearClassifier):
    fits = 0

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        type(self).fits += 1
        return super().fit(*args, **kwargs)


@pytest.mark.parametrize(
    ("scoring", "y"),
    [
        ("f1", THREE),
        ("roc_auc", THREE),
        ("f1_samples", NAMES),
        ({"loss": "neg_log_loss", "precision": "precision"}, THREE),
        ("r2", NAMES),
    ],
)
def test_what_cannot_be_scored_is_said_before_any_fit(scoring: Any, y: Any) -> None:
    Counting.fits = 0
    with pytest.raises(ValueError, match="cannot score the labels of y"):
        cross_validate(Counting(), lazy(X), lazy(y), cv=2, scoring=scoring)
    assert Counting.fits == 0


def test_all_named_scores_that_can_be_are_scored() -> None:
    names = ["accuracy", "f1", "roc_auc", "neg_log_loss", "neg_brier_score", "average_precision"]
    found = cross_validate(LinearClassifier(), lazy(X), lazy(NAMES), cv=3, scoring=names)
    assert all((found[f"test_{name}"] > -1).all() for name in names)
    columns = (X[:, :2] > 0).astype(int)
    found = cross_validate(LinearClassifier(), lazy(X), lazy(columns), cv=3, scoring="f1_macro")
    assert (found["test_score"] > 0.8).all()


CASES: dict[str, tuple[bool | None, bool | None]] = {
    "none": (None, None), "no": (False, False), "fit": (True, False), "score": (False, True),
    "both": (True, True),
}  # fmt: skip


@pytest.mark.parametrize("case", ["no", "fit", "score", *slow("none", "both")])
def test_metadata_goes_where_it_was_asked_for(case: str, client: Client) -> None:
    fit, score = CASES[case]
    y = (X[:, 0] + 0.5 * np.random.default_rng(1).normal(size=ROWS) > 0).astype(int)
    with config_context(enable_metadata_routing=True):
        model = LinearClassifier(client=client)
        if fit is not None:
            model.set_fit_request(sample_weight=fit).set_score_request(sample_weight=score)
        grid, given = {"alpha": [1e-2]}, (lazy(X), lazy(y))
        local = sklearn.model_selection.GridSearchCV(
            LinearClassifier().set_fit_request(sample_weight=fit).set_score_request(
                sample_weight=score
            ),
            grid, cv=FOLDS,
        )  # fmt: skip
        search = GridSearchCV(model, grid, cv=FOLDS)
        if not (fit or score):
            error: Any = UnsetMetadataPassedError if fit is None else TypeError
            for each, rows, weights in ((local, (X, y), WEIGHTS), (search, given, lazy(WEIGHTS))):
                with pytest.raises(error):
                    each.fit(*rows, sample_weight=weights)
            with pytest.raises(error):
                cross_validate(model, *given, params={"sample_weight": lazy(WEIGHTS)}, cv=FOLDS)
            return
        expected = local.fit(X, y, sample_weight=WEIGHTS).best_score_
        found = search.fit(*given, sample_weight=lazy(WEIGHTS))
        assert found.best_score_ == pytest.approx(expected, abs=0.01)
        scores = cross_validate(model, *given, params={"sample_weight": lazy(WEIGHTS)}, cv=FOLDS)[
            "test_score"
        ]
        assert scores.mean() == pytest.approx(expected, abs=0.01)


def test_a_scorer_of_scikit_learn_gets_what_it_asks_for() -> None:
    y = np.random.default_rng(0).permutation((X[:, 0] > 0).astype(int))
    with config_context(enable_metadata_routing=True):
        model = LinearClassifier().set_fit_request(sample_weight=True)
        seen = set()

        def f1(y: Any, predicted: Any, sample_weight: Any = None) -> float:
            seen.add((asks, sample_weight is not None))
            return f1_score(np.asarray(y), np.asarray(predicted))

        for asks in (False, True):
            scorer = make_scorer(f1).set_score_request(sample_weight=asks)
            cross_val_score(
                model, lazy(X), lazy(y), scoring=scorer, cv=PartitionKFold(2),
                params={"sample_weight": lazy(WEIGHTS)},
            )  # fmt: skip
        assert seen == {(False, False), (True, True)}


def test_regressions_are_asked_nothing_of_labels() -> None:
    found = cross_val_score(LinearRegressor(), lazy(X), lazy(X[:, 0] * 2), scoring="r2", cv=3)
    assert (found > 0.99).all()


@pytest.mark.parametrize("scoring", ["neg_log_loss", "neg_brier_score", "d2_log_loss_score",
                                     "d2_brier_score"])  # fmt: skip
def test_a_fold_without_a_class_is_scored_by_its_probabilities(scoring: str) -> None:
    found = cross_val_score(LinearClassifier(), lazy(X), lazy(THREE), cv=FOLDS[1:], scoring=scoring)
    assert np.isfinite(found).all()


@pytest.mark.parametrize("seed", [None, np.random.RandomState(0)])
def test_folds_may_be_drawn_by_any_random_state(seed: Any) -> None:
    folds = PartitionKFold(3, random_state=seed)
    tests = [test for _, test in folds.split(X)]
    assert sorted(np.concatenate(tests)) == list(range(ROWS))
    assert all((one == other).all() for one, (_, other) in zip(tests, folds.split(X), strict=True))
    with pytest.raises(ValueError, match="n_splits must be a whole number"):
        PartitionKFold(3.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("scoring", "frame"),
    [
        ("matthews_corrcoef", True), ("jaccard", False),
        (make_scorer(fbeta_score, beta=2, pos_label="yes"), True),
    ],
    ids=["matthews", "jaccard", "made"],
)  # fmt: skip
def test_scores_that_are_no_sums_are_those_of_scikit_learn(scoring: Any, frame: bool) -> None:
    """Of labels that are no numbers, for names too."""
    peer = make_scorer(jaccard_score, pos_label="yes") if scoring == "jaccard" else scoring
    cv = sklearn.model_selection.KFold(5)
    expected = sklearn.model_selection.cross_val_score(
        LinearClassifier(), X, NAMES, cv=cv, scoring=peer
    )
    folds = PartitionKFold(5, by="partitions")
    given = lazy(X, frame), lazy(NAMES, frame)
    found = cross_val_score(LinearClassifier(), *given, cv=folds, scoring=scoring)
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    several = GridSearchCV(
        LinearClassifier(), {"alpha": ["auto"]}, cv=folds, refit=False,
        scoring={"one": scoring, "other": "accuracy"},
    ).fit(*given)  # fmt: skip
    means = several.cv_results_["mean_test_one"]
    np.testing.assert_allclose(means, expected.mean(), rtol=1e-3)


def test_names_that_fit_takes_are_taken_of_numbers_too(client: Client) -> None:
    y = X @ [1.0, 2.0, 0.0] + np.random.default_rng(0).normal(size=ROWS)
    expected = sklearn.model_selection.cross_val_score(
        LinearRegressor(), X, y, cv=sklearn.model_selection.KFold(5), scoring="explained_variance"
    )
    found = cross_val_score(
        LinearRegressor(client=client), lazy(X), lazy(y), cv=PartitionKFold(5, by="partitions"),
        scoring="explained_variance",
    )  # fmt: skip
    np.testing.assert_allclose(found, expected, rtol=1e-3)
