"""Searches and cross-validation on data of Dask, which is computed once."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from cases import slow
from distributed import Client
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import PredefinedSplit, TimeSeriesSplit
from sklearn.pipeline import make_pipeline

from dps import LinearClassifier, LinearRegressor
from dps.model_selection import (
    GridSearchCV,
    PartitionKFold,
    RandomizedSearchCV,
    cross_val_predict,
    cross_val_score,
    cross_validate,
)
from dps.preprocessing import FrameEncoder

ROWS, PARTS = 600, 4
ALPHAS = {"alpha": [1e-3, 1e3]}


def rows() -> tuple[pd.DataFrame, pd.Series]:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=ROWS), "b": rng.normal(size=ROWS)})
    y = (frame["a"] > 0.8).map({True: "yes", False: "no"})
    return frame, y.rename("late")


def given(kind: str) -> tuple[Any, Any]:
    frame, y = rows()
    if kind == "frame of text":
        frame["kind"] = np.where(frame["a"] > 0, "up", "down")
    if kind.startswith("frame"):
        return dd.from_pandas(frame, npartitions=PARTS), dd.from_pandas(y, npartitions=PARTS)
    X = da.from_array(frame.to_numpy(), chunks=(ROWS // PARTS, 2))
    if kind == "sparse":
        X = X.map_blocks(scipy.sparse.csr_matrix)
    if kind == "list":
        return list(X.to_delayed().ravel()), list(dd.from_pandas(y, npartitions=PARTS).to_delayed())
    return X, y.to_numpy() if kind == "local y" else da.from_array(
        y.to_numpy(), chunks=ROWS // PARTS
    )


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("sparse", "threads"), ("frame of text", "cluster"),
        *slow(("local y", "threads"), ("list", "cluster")),
    ],
)  # fmt: skip
def test_a_search_on_any_container(kind: str, where: str, client: Client) -> None:
    model = LinearClassifier(client=client if where == "cluster" else None, n_replicas=2)
    X, y = given(kind)
    search = GridSearchCV(model, ALPHAS, cv=3, scoring="neg_log_loss", error_score="raise")
    search.fit(X, y)
    assert search.best_params_ == {"alpha": 1e-3}
    assert search.cv_results_["rank_test_score"].tolist() == [1, 2]
    assert np.isfinite([search.cv_results_[f"split{fold}_test_score"] for fold in range(3)]).all()
    assert search.best_score_ > -0.2
    assert search.best_estimator_.client is model.client
    assert search.score(X, y) == pytest.approx(search.score(*given(kind)))
    assert list(search.classes_) == ["no", "yes"]
    if kind == "frame of text":
        assert "kind_up" in search.best_estimator_.coefficients()


def counted(frame: pd.DataFrame, log: Path) -> pd.DataFrame:
    with log.open("a") as file:
        file.write("x")
    return frame


def test_data_is_computed_once_and_let_go_of(client: Client, tmp_path: Path) -> None:
    frame, y = rows()
    frame["y"] = y
    log = tmp_path / "reads"
    table = dd.from_pandas(frame, npartitions=PARTS).map_partitions(counted, log, meta=frame)
    model = LinearClassifier(client=client)
    GridSearchCV(model, ALPHAS, cv=3).fit(table[["a", "b"]], table["y"])
    assert len(log.read_text()) <= 2 * PARTS  # once for X and once for y

    def left(dask_scheduler: Any) -> list[str]:
        return [key for key, task in dask_scheduler.tasks.items() if task.nbytes > 1000]

    gc.collect()
    deadline = time.monotonic() + 10
    while client.run_on_scheduler(left):
        assert time.monotonic() < deadline, client.run_on_scheduler(left)


def test_folds_train_on_the_pieces_where_they_lie(client: Client) -> None:
    X, y = given("array")
    moved: list[Any] = []

    def scoring(model: LinearClassifier, X: Any, y: Any) -> float:
        pieces = [piece for rank in model.plan_.ranks for piece in rank.pieces]
        moved.append((len({piece.partition for piece in pieces}), any(p.moved for p in pieces)))
        return 0.0

    cross_val_score(LinearClassifier(client=client), X, y, cv=3, scoring=scoring)
    assert moved == [(2 * PARTS, False)] * 3


def test_every_row_is_scored_once_and_by_a_model_that_has_not_seen_it(client: Client) -> None:
    X = da.from_array(np.arange(20.0)[:, None], chunks=(7, 1))
    scored: list[float] = []

    def scoring(model: LinearRegressor, X: Any, y: Any) -> float:
        here = client.compute(y, sync=True).tolist()
        scored.extend(here)
        return float(len(here))

    model = LinearRegressor(client=client, max_iter=1, tol=None)
    sizes = cross_val_score(model, X, X[:, 0], cv=4, scoring=scoring)
    assert sizes.sum() == 20
    assert sizes.max() - sizes.min() <= 2
    assert sorted(scored) == list(range(20))


def test_folds_of_partitions_are_runs_of_them() -> None:
    X = da.from_array(np.arange(20.0)[:, None], chunks=(4, 1))
    scored: list[Any] = []

    def scoring(model: LinearRegressor, X: Any, y: Any) -> float:
        scored.append(np.asarray(y.compute()).tolist())
        return 0.0

    model = LinearRegressor(max_iter=1, tol=None)
    cross_val_score(model, X, X[:, 0], cv=PartitionKFold(2, by="partitions"), scoring=scoring)
    assert scored == [list(range(8)), list(range(8, 20))]
    with pytest.raises(ValueError, match="X has 5 partitions, which cannot be 6 folds"):
        cross_val_score(model, X, X[:, 0], cv=PartitionKFold(6, by="partitions"))


def test_folds_of_a_classifier_are_stratified() -> None:
    folds = PartitionKFold(5, stratify=True)
    y = np.array(["common"] * 90 + ["rare"] * 10)
    for train, test in folds.split(np.zeros((100, 1)), y):
        assert (y[test] == "rare").sum() == 2
        assert sorted([*train, *test]) == list(range(100))
    assert folds._assign(50, y[:50], 3).tolist() == folds._assign(50, y[:50], 3).tolist()
    assert folds._assign(50, y[:50], 3).tolist() != folds._assign(50, y[:50], 4).tolist()


def test_weights_are_cut_too_and_count_in_scores(client: Client) -> None:
    X, y = given("frame")
    wrong = y.map_partitions(lambda part: part.where(part.index % 3 > 0, "yes"), meta=y._meta)
    weight = y.map_partitions(
        lambda part: pd.Series((part.index % 3 > 0) * 1.0, part.index), meta=("w", float)
    )
    model = LinearClassifier(client=client)
    plain = cross_val_score(model, X, wrong, cv=3)
    weighted = cross_val_score(model, X, wrong, cv=3, params={"sample_weight": weight})
    assert plain.max() < 0.8
    assert weighted.min() > 0.95


def test_several_metrics_and_scores_of_training(client: Client) -> None:
    X, y = given("array")
    search = GridSearchCV(
        LinearClassifier(client=client), ALPHAS, cv=2, scoring=["roc_auc", "accuracy"],
        refit="roc_auc", return_train_score=True, n_jobs=2,
    ).fit(X, y)  # fmt: skip
    assert {"mean_test_roc_auc", "std_train_accuracy"} <= set(search.cv_results_)
    assert search.best_params_ == {"alpha": 1e-3}
    assert search.score(X, y) > 0.99


@pytest.mark.parametrize("kind", ["array", "local"])
def test_what_is_done_is_told_if_asked_for(
    kind: str, client: Client, capfd: pytest.CaptureFixture[str]
) -> None:
    X, y = (rows()[0].to_numpy(), rows()[1]) if kind == "local" else given(kind)
    model = LinearClassifier(client=client)
    cross_val_score(model, X, y, cv=2)
    assert not "".join(capfd.readouterr())
    told: dict[str, Any] = {"cv": 2, "verbose": 1, "pre_dispatch": 1}
    for call in (
        lambda: cross_val_score(model, X, y, **told),
        lambda: cross_val_predict(model, X, y, **told),
        lambda: GridSearchCV(model, {"alpha": [1.0]}, **told).fit(X, y),
    ):
        call()
        assert "".join(capfd.readouterr())


def test_candidates_are_drawn_by_chance(client: Client) -> None:
    X, y = given("array")
    search = RandomizedSearchCV(
        LinearClassifier(client=client), {"alpha": [1e-4, 1e-3, 1e-2]}, n_iter=2, cv=2,
        random_state=0, refit=False,
    ).fit(X, y)  # fmt: skip
    assert len(search.cv_results_["params"]) == 2


def test_a_pipeline_of_lazy_transformers(client: Client) -> None:
    X, y = given("frame of text")
    model = make_pipeline(FrameEncoder(), LinearClassifier())
    with client.as_current():
        search = GridSearchCV(model, {"linearclassifier__alpha": [1e-3, 1e3]}, cv=2).fit(X, y)
    assert search.best_params_ == {"linearclassifier__alpha": 1e-3}


def test_a_candidate_that_fails_is_the_last_and_all_that_fail_are_an_error() -> None:
    X, y = given("array")
    search = GridSearchCV(LinearClassifier(), {"alpha": [1e-3, -1.0]}, cv=2)
    with pytest.warns() as said:
        search.fit(X, y)
    assert any(w.category is FitFailedWarning and "'alpha'" in str(w.message) for w in said)
    assert search.best_params_ == {"alpha": 1e-3}
    with pytest.raises(ValueError, match="All the 2 fits failed"):
        GridSearchCV(LinearClassifier(), {"alpha": [-1.0]}, cv=2).fit(X, y)


def test_the_address_of_a_scheduler_is_a_client_for_the_while(client: Client) -> None:
    address = client.scheduler.address
    search = GridSearchCV(LinearClassifier(client=address), ALPHAS, cv=2).fit(*given("array"))
    assert search.best_estimator_.client == address
    assert {r.worker for r in search.best_estimator_.plan_.ranks} <= set(client.nthreads())


def test_what_cannot_split_is_refused() -> None:
    X, y = given("array")
    with pytest.raises(ValueError, match=r"dps\.model_selection\.PartitionKFold"):
        cross_val_score(LinearClassifier(), X, y, cv="five")
    with pytest.raises(ValueError, match="scoring='max_eror' is no name"):
        cross_val_score(LinearClassifier(), X, y, scoring="max_eror")
    with pytest.raises(ValueError, match="n_splits must be a whole number of 2 or more, got 1"):
        cross_val_score(LinearClassifier(), X, y, cv=1)


def test_local_data_is_left_to_scikit_learn() -> None:
    frame, y = rows()
    search = GridSearchCV(LinearClassifier(), ALPHAS, cv=PartitionKFold(3)).fit(frame, y)
    assert search.best_params_ == {"alpha": 1e-3}
    assert cross_val_score(LinearClassifier(), frame, y, cv=2, scoring="f1_macro").min() > 0.9


def test_rows_that_do_not_go_together_are_said() -> None:
    X, y = given("frame")
    with pytest.raises(ValueError, match=r"\[150, 149\]|has 150 rows, what goes with it"):
        cross_val_score(LinearClassifier(), X, y[y.index != 7], cv=2, error_score="raise")
    with pytest.raises(ValueError, match="y has 2 partitions, X has 4"):
        cross_val_score(LinearClassifier(), X, y.repartition(npartitions=2))
    assert dask.is_dask_collection(X)


def test_a_search_asks_for_targets() -> None:
    X = da.ones((10, 2), chunks=(5, 2))
    with pytest.raises(ValueError, match="requires y to be passed"):
        GridSearchCV(LinearClassifier(), {"alpha": [1.0]}, cv=2).fit(X)


@pytest.mark.parametrize(
    ("kind", "cv", "method"),
    [
        ("array", 3, "predict"),
        *slow(("frame", PartitionKFold(3, by="partitions"), "predict_proba")),
        ("frame of text", "given", "predict_proba"),
    ],
)
def test_predictions_of_folds_lie_as_the_rows_do(
    kind: str, cv: Any, method: str, client: Client
) -> None:
    X, y = given(kind)
    if cv == "given":
        cv = PredefinedSplit(np.arange(len(rows()[1])) % 4)
    model = LinearClassifier(client=client, random_state=0)
    found = cross_val_predict(model, X, y, cv=cv, method=method)
    assert found.npartitions == PARTS
    if kind == "array":
        assert found.chunks[0] == X.chunks[0]
    of_rows: dict[float, Any] = {}

    def scoring(fitted: Any, X: Any, y: Any) -> float:
        some = X[:, 0] if kind == "array" else X["a"]
        made = client.compute([some, getattr(fitted, method)(X)], sync=True)
        of_rows.update(zip(*map(np.asarray, made), strict=True))
        return 0.0

    cross_val_score(model, X, y, cv=cv, scoring=scoring)
    expected = np.array([of_rows[a] for a in rows()[0]["a"]])
    actual = np.asarray(client.compute(found, sync=True))
    if method == "predict":
        np.testing.assert_array_equal(actual, expected)
    else:
        np.testing.assert_allclose(actual, expected, rtol=1e-9)


def test_several_scores_of_folds(client: Client) -> None:
    X, y = given("array")
    found = cross_validate(
        LinearClassifier(client=client), X, y, cv=3, scoring=["f1_macro", "roc_auc"],
        return_train_score=True, return_estimator=True,
    )  # fmt: skip
    assert set(found) == {
        "fit_time", "score_time", "test_f1_macro", "test_roc_auc", "train_f1_macro",
        "train_roc_auc", "estimator",
    }  # fmt: skip
    for fold, model in enumerate(found["estimator"]):
        assert model.client is client
        assert model.score(X, y) > 0.5
        assert 0.5 < found["test_roc_auc"][fold] <= 1
    single = cross_validate(LinearClassifier(client=client), X, y, cv=3, scoring="roc_auc")
    np.testing.assert_array_equal(single["test_score"], found["test_roc_auc"])


def test_predictions_that_could_not_be_computed_later_are_refused(client: Client) -> None:
    X, y = given("array")
    with pytest.raises(ValueError, match="give the estimator a Client"):
        cross_val_predict(LinearClassifier(client=client.scheduler.address), X, y)
    with pytest.raises(ValueError, match="splits leave some out"):
        cross_val_predict(LinearClassifier(client=client), X, y, cv=TimeSeriesSplit(3))


def test_a_parameter_that_there_is_not_is_said_before_any_fit(client: Client) -> None:
    X, y = given("array")
    with pytest.raises(ValueError, match="Invalid parameter 'alfa' for estimator LinearClassifier"):
        GridSearchCV(LinearClassifier(client=client), {"alfa": [1]}).fit(X, y)
