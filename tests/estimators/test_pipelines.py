"""Inside other people's pipelines and searches, with a live client and without one."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import joblib
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from distributed import Client, LocalCluster, get_worker, wait
from local import local_client
from sklearn import clone, config_context
from sklearn.compose import ColumnTransformer
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from dps import LinearClassifier

ROWS, FEATURES = 800, 6
SCALES = np.array([1.0, 10.0, 100.0, 0.1, 1.0, 1.0])


def data() -> tuple[Any, Any]:
    X = np.random.default_rng(0).normal(size=(ROWS, FEATURES))
    return X * SCALES, (X[:, 0] + X[:, 3] > 0).astype(int)


def on_the_cluster() -> tuple[Any, Any]:
    X, y = data()
    return da.from_array(X, chunks=(ROWS // 4, -1)), da.from_array(y, chunks=ROWS // 4)


def classifier(**parameters: Any) -> LinearClassifier:
    return LinearClassifier(**{"random_state": 0, "max_iter": 30, **parameters})


@pytest.fixture
def active(client: Client) -> Iterator[Client]:
    """The client as the default one, which estimators find by themselves."""
    with client.as_current():
        yield client


def test_the_end_of_a_pipeline(client: Client) -> None:
    X, y = data()
    model = make_pipeline(StandardScaler(), classifier(client=client)).fit(X, y)
    assert model.score(X, y) > 0.97
    assert {rank.worker for rank in model[-1].plan_.ranks} <= set(client.nthreads())


def test_the_end_of_a_pipeline_behind_columns(client: Client) -> None:
    X, y = data()
    frame = pd.DataFrame(X, columns=[f"f{n}" for n in range(FEATURES)])
    frame["kind"] = np.where(X[:, 4] > 0, "a", "b")
    columns = ColumnTransformer(
        [("kinds", OneHotEncoder(), ["kind"])], remainder=StandardScaler(), sparse_threshold=1
    )
    model = make_pipeline(columns, classifier(client=client)).fit(frame, y)
    assert model.score(frame, y) > 0.97
    assert model[-1].coef_.shape == (1, FEATURES + 2)


@pytest.mark.parametrize("search", ["grid", "random"])
def test_searches_of_scikit_learn_share_the_client(search: str, client: Client) -> None:
    X, y = data()
    model = make_pipeline(StandardScaler(), classifier(client=client))
    options = {"linearclassifier__alpha": [1e-3, 1e3]}
    kind = (
        GridSearchCV(model, options, cv=2, error_score="raise")
        if search == "grid"
        else RandomizedSearchCV(model, options, n_iter=2, cv=2, random_state=0, error_score="raise")
    )
    best = kind.fit(X, y)
    assert best.best_params_ == {"linearclassifier__alpha": 1e-3}
    assert best.best_estimator_[-1].client is client
    assert {rank.worker for rank in best.best_estimator_[-1].plan_.ranks} <= set(client.nthreads())


def fitted_in_a_task(X: Any, y: Any) -> tuple[list[str], str]:
    plan = classifier().fit(X, y).plan_
    return [rank.worker for rank in plan.ranks], get_worker().address


def test_a_fit_in_a_task_trains_in_place(active: Client) -> None:
    ranks, worker = active.submit(fitted_in_a_task, *data(), pure=False).result(timeout=30)
    assert len(ranks) == 1
    assert ranks[0] not in active.nthreads()
    assert worker in active.nthreads()


def test_a_search_by_joblib_on_dask_trains_in_place() -> None:
    X, y = data()
    model = make_pipeline(StandardScaler(), classifier())
    options = {"linearclassifier__alpha": [1e-3, 1e3]}
    # scikit-learn sets this process's filters of warnings around each task. Where two tasks run in
    # one process, those of the first to begin may stay, and pytest's make errors of warnings.
    with (
        local_client(2) as alone,
        alone.as_current(),
        joblib.parallel_backend("dask", client=alone, wait_for_workers_timeout=30),
    ):
        best = GridSearchCV(model, options, cv=2, refit=False, error_score="raise").fit(X, y)
    assert best.best_params_ == {"linearclassifier__alpha": 1e-3}


def test_fits_at_once_share_the_workers_and_the_one_copy_of_the_data(client: Client) -> None:
    with client.as_current():
        X, y = client.persist(list(on_the_cluster()))
        wait([X, y])

    def held() -> dict[str, int]:
        return client.run_on_scheduler(
            lambda dask_scheduler: {
                str(key): len(task.who_has or ()) * task.nbytes
                for key, task in dask_scheduler.tasks.items()
                if task.nbytes > ROWS // 4 * 8  # targets may follow their rows to a worker
            }
        )

    before = held()
    assert sum(before.values()) >= ROWS * FEATURES * 8
    most: list[dict[str, int]] = []

    def fit(alpha: float) -> LinearClassifier:
        model = classifier(client=client, alpha=alpha, verbose=0)
        return model.fit(X, y)

    alphas = [1e-4, 1e-3, 1e-2]
    with ThreadPoolExecutor(3) as pool:
        fits = [pool.submit(fit, alpha) for alpha in alphas]
        while not all(each.done() for each in fits):
            most.append(held())
    assert most
    for during in most:
        assert during == before
    for alpha, each in zip(alphas, fits, strict=True):
        model = each.result()
        assert {rank.worker for rank in model.plan_.ranks} == set(client.nthreads())
        np.testing.assert_array_equal(model.coef_, fit(alpha).coef_)


@pytest.mark.parametrize("scaler", ["StandardScaler", "MinMaxScaler", "RobustScaler"])
def test_behind_a_scaler_of_dask_ml(scaler: str, active: Client) -> None:
    preprocessing = pytest.importorskip("dask_ml.preprocessing")
    X, y = on_the_cluster()
    model = make_pipeline(getattr(preprocessing, scaler)(), classifier()).fit(X, y)
    assert isinstance(model.predict(X), da.Array)
    assert model.score(X, y) > 0.97


def test_behind_an_encoder_of_dask_ml(active: Client) -> None:
    preprocessing = pytest.importorskip("dask_ml.preprocessing")
    X, y = data()
    frame = pd.DataFrame({"x": X[:, 4], "kind": pd.Categorical(np.where(y, "late", "on time"))})
    given = dd.from_pandas(frame, npartitions=3)
    target = dd.from_pandas(pd.Series(y), npartitions=3)
    model = make_pipeline(preprocessing.DummyEncoder(), classifier()).fit(given, target)
    assert model.score(given, target) == 1


def test_on_parts_that_dask_ml_splits(active: Client) -> None:
    selection = pytest.importorskip("dask_ml.model_selection")
    X, y = on_the_cluster()
    X = X / SCALES
    train, test, y_train, y_test = selection.train_test_split(X, y, test_size=0.25, random_state=0)
    assert classifier().fit(train, y_train).score(test, y_test) > 0.95
    for train, test in selection.KFold(2).split(X, y):
        assert classifier().fit(X[train], y[train]).score(X[test], y[test]) > 0.95


def test_inside_incremental_of_dask_ml(active: Client) -> None:
    wrappers = pytest.importorskip("dask_ml.wrappers")
    X, y = on_the_cluster()
    model = wrappers.Incremental(classifier(optimizer="adagrad")).fit(X / SCALES, y, classes=[0, 1])
    assert model.score(X / SCALES, y) > 0.9


@pytest.mark.parametrize("search", ["IncrementalSearchCV", "HyperbandSearchCV"])
@pytest.mark.filterwarnings("ignore:The total space of parameters")
def test_inside_an_adaptive_search_of_dask_ml(search: str, active: Client) -> None:
    selection = pytest.importorskip("dask_ml.model_selection")
    X, y = on_the_cluster()
    options = {
        "IncrementalSearchCV": {"n_initial_parameters": "grid", "decay_rate": None, "max_iter": 4},
        "HyperbandSearchCV": {"max_iter": 4},
    }[search]
    best = getattr(selection, search)(
        classifier(optimizer="adagrad"), {"alpha": [1e-3, 1e3]}, random_state=0, **options
    )
    # dask-ml calls dask.persist in a coroutine, which Dask refuses unless it is told where.
    with dask.config.set(scheduler=active.get):
        best.fit(X / SCALES, y, classes=[0, 1])
    assert best.best_params_ == {"alpha": 1e-3}
    assert best.best_score_ > 0.9


@pytest.mark.parametrize("number", [ROWS - 1, ROWS + 1, 5 * ROWS])
def test_weights_of_another_length_are_an_error(active: Client, number: int) -> None:
    X, y = data()
    sparse = scipy.sparse.csr_array(X)
    for given in (X, sparse, pd.DataFrame(X, columns=list("abcdef"))):
        with pytest.raises(ValueError, match=rf"sample_weight has {number:,} rows, and X has 800"):
            classifier().fit(given, y, sample_weight=np.ones(number))
    with pytest.raises(ValueError, match="sample_weight has"):
        classifier().partial_fit(X, y, classes=[0, 1], sample_weight=np.ones(number))


def test_a_clone_keeps_what_has_been_asked_of_it() -> None:
    with config_context(enable_metadata_routing=True):
        model = classifier().set_fit_request(sample_weight=True)
        model.set_score_request(sample_weight=True)
        request = clone(model).get_metadata_routing()
        assert request.fit.requests["sample_weight"] is True
        X, y = data()
        search = GridSearchCV(model, {"alpha": [1e-3, 1e-4]}, cv=2)
        search.fit(X, y, sample_weight=np.ones(ROWS))
        assert search.best_score_ > 0.9


def test_a_client_may_be_given_by_its_cluster_or_the_address_of_its_scheduler() -> None:
    X, y = data()
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster:
        for given in (cluster, cluster.scheduler_address):
            model = classifier(client=given).fit(X, y)
            assert model.plan_.workers == list(cluster.scheduler.workers)
            assert model.score(X, y) > 0.9
        assert pickle.loads(pickle.dumps(model)).client == cluster.scheduler_address
        until_gone = time.monotonic() + 30
        while len(cluster.scheduler.clients) > 1:  # the scheduler's own is "fire-and-forget"
            assert time.monotonic() < until_gone, "a client is left"
            threading.Event().wait(0.02)
    assert model.score(X, y) > 0.9  # of data here no one is asked


@pytest.mark.slow
def test_an_adaptive_cluster_without_a_worker_is_waited_for() -> None:
    X, y = on_the_cluster()
    with LocalCluster(
        n_workers=0, threads_per_worker=1, dashboard_address=":0"
    ) as cluster, Client(cluster, set_as_default=False) as client:  # fmt: skip
        cluster.adapt(minimum=0, maximum=2)
        assert classifier(client=client).fit(X, y).score(X, y) > 0.9


# Of Dask's own calls.
@pytest.mark.filterwarnings("ignore:The inplace keyword in DataFrame")
@pytest.mark.parametrize("kind", [str, int, bool])
def test_labels_and_probabilities_of_any_class_go_into_a_file(kind: Any, tmp_path: Path) -> None:
    X, y = data()
    frame = pd.DataFrame(X, columns=list("abcdef"))
    labels = np.where(y, "yes", "no") if kind is str else y.astype(kind)
    parts, targets = dd.from_pandas(frame, npartitions=3), dd.from_pandas(pd.Series(labels), 3)
    model = classifier().fit(parts, targets)
    predicted = model.predict(parts)
    assert predicted.dtype == predicted.compute().dtype
    parts.assign(label=predicted).to_parquet(tmp_path / "labels")
    chances = model.predict_proba(parts)
    assert list(chances.columns) == list(chances.compute().columns) == list(model.classes_)
    first = model.classes_[0]
    expected = model.predict_proba(frame)[:, 0]
    np.testing.assert_allclose(chances[first].compute(), expected, rtol=1e-12)
    chances.rename(columns=str).to_parquet(tmp_path / "probabilities")  # which takes texts only
    read = pd.read_parquet(tmp_path / "probabilities")
    assert list(read.columns) == [str(label) for label in model.classes_]
    assert pd.read_parquet(tmp_path / "labels")["label"].tolist() == model.predict(frame).tolist()


def test_what_a_fit_leaves_is_shown_in_a_line() -> None:
    model = classifier(optimizer="adagrad", max_iter=200, n_replicas=2).fit(*data())
    assert repr(model.history_).startswith(f"History({model.n_iter_} epochs, loss ")
    words = "Plan(2 replicas, 1 worker, 1 shard, Sync, 800 rows in batches of 256)"
    assert repr(model.plan_) == words
