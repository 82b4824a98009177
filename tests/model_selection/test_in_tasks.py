"""Searches of small fits: each candidate is a task, with the results of fits of the cluster."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from conditions import until
from distributed import Client
from sklearn.exceptions import ConvergenceWarning, FitFailedWarning

import dps
from dps._warned import warn, warned
from dps.model_selection import GridSearchCV, cross_validate

N = 400
rng = np.random.default_rng(0)
X = rng.normal(size=(N, 3))
Y = (X[:, 0] + rng.logistic(size=N) > 0).astype(int)
WEIGHT = rng.uniform(0.5, 2, N)
FRAME = pd.DataFrame(
    {"a": X[:, 0], "b": np.where(X[:, 1] > 0, "up", "down"), "c": pd.Categorical(Y * 7 % 5)}
)


def data(kind: str) -> tuple[Any, Any, Any]:
    y, weight = da.from_array(Y, chunks=100), da.from_array(WEIGHT, chunks=100)
    if kind == "array":
        return da.from_array(X, chunks=(100, 3)), y, weight
    if kind == "sparse":
        rows = da.from_array(X, chunks=(100, 3)).map_blocks(scipy.sparse.csr_array)
        return rows, y, weight
    frame = dd.from_pandas(FRAME.assign(y=Y, w=WEIGHT), npartitions=4)
    return frame[["a", "b", "c"]], frame["y"], frame["w"]


def fits(client: Client) -> int:
    """Fits of the cluster so far."""
    return sum(event["kind"] == "started" for _, event in client.get_events("dps"))


@pytest.mark.parametrize("kind", ["sparse", "frame"])
def test_scores_are_those_of_fits_of_the_cluster(kind: str, client: Client) -> None:
    rows, y, weight = data(kind)
    options: dict[str, Any] = {
        "scoring": ["neg_log_loss", "roc_auc"], "refit": "roc_auc", "return_train_score": True,
    }  # fmt: skip
    found, begun = [], []
    for n_replicas in "auto", 2:
        model = dps.LinearClassifier(tol=1e-7, client=client, n_replicas=n_replicas)
        search = GridSearchCV(model, {"alpha": [1e-4, 1.0]}, cv=2, **options)
        before = fits(client)
        found.append(search.fit(rows, y, sample_weight=weight))
        begun.append(fits(client) - before)
    assert begun[0] <= 1 < begun[1]
    names = [name for name in found[0].cv_results_ if name.partition("_")[0] in ("split0", "mean")]
    for name in names:
        if "time" not in name:
            alone, together = (search.cv_results_[name] for search in found)
            np.testing.assert_allclose(alone, together, rtol=1e-4)
    assert found[0].best_params_ == found[1].best_params_
    assert found[0].best_estimator_.client is client


def test_what_candidates_say_arrives(client: Client) -> None:
    rows, y, _ = data("array")
    model = dps.LinearClassifier(client=client, optimizer="sgd", max_iter=2)
    with pytest.warns(ConvergenceWarning, match="raise max_iter"):
        cross_validate(model, rows, y, cv=2)
    search = GridSearchCV(model.set_params(tol=None), {"l1_ratio": [0.5, 7.0]}, cv=2, refit=False)
    with (
        pytest.warns(FitFailedWarning, match=r"(?s)2 fits failed .*'l1_ratio' parameter"),
        pytest.warns(UserWarning, match="non-finite"),
    ):
        scores = search.fit(rows, y).cv_results_["mean_test_score"]
    assert np.isfinite(scores[0])
    assert np.isnan(scores[1])
    with pytest.raises(ValueError, match="'l1_ratio' parameter"):
        GridSearchCV(model, {"l1_ratio": [7.0]}, cv=2, error_score="raise").fit(rows, y)


def score(model: Any, rows: Any, y: Any) -> float:
    assert isinstance(rows, da.Array)  # as promised
    return float(model.score(rows, y))


def test_what_asks_for_more_than_a_task_has_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, y, _ = data("array")
    model = dps.LinearClassifier(client=client, max_iter=3, tol=None)
    for options, grid in (
        ({"scoring": score}, {"alpha": [1.0]}),
        ({}, {"n_replicas": [1, 2]}),
    ):
        before = fits(client)
        GridSearchCV(model, grid, cv=2, refit=False, **options).fit(rows, y)
        assert fits(client) - before == 2 * len(next(iter(grid.values())))
    monkeypatch.setattr("dps.model_selection.folds._SMALL", 100)
    before = fits(client)
    cross_validate(model, rows, y, cv=2)
    assert fits(client) - before == 2


def test_a_worker_that_dies_costs_no_candidate(mortal: Client) -> None:
    rows, y, _ = data("array")
    search = GridSearchCV(
        dps.LinearClassifier(client=mortal), {"alpha": np.logspace(-4, 1, 10)}, cv=4, refit=False
    )
    wanted = search.fit(rows, y).cv_results_["mean_test_score"]
    pids, struck = mortal.run(os.getpid), list[str]()

    def strike() -> None:
        def at_work() -> list[str]:
            keys = mortal.processing()
            return [w for w in keys if any(str(k).startswith("dps-candidate") for k in keys[w])]

        struck.append(until(at_work, "a candidate at work")[0])
        os.kill(pids[struck[0]], signal.SIGKILL)

    thread = threading.Thread(target=strike)
    thread.start()
    found = search.fit(rows, y).cv_results_["mean_test_score"]
    thread.join(60)
    assert struck
    np.testing.assert_array_equal(found, wanted)


def test_warnings_stay_with_their_threads() -> None:
    both, shown = threading.Barrier(2), list[str]()

    def candidate(name: str) -> list[Warning]:
        with warned() as found:
            for _ in range(50):
                both.wait(60)
                warnings.warn(name, stacklevel=1)
                both.wait(60)
        return found

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_, **__: shown.append(str(message))
        with ThreadPoolExecutor(2) as pool:
            found = [*pool.map(candidate, ["one", "other"])]
        warnings.warn("neither", stacklevel=1)
    assert [{str(each) for each in of} for of in found] == [{"one"}, {"other"}]
    assert [len(of) for of in found] == [50, 50]
    assert shown == ["neither"]


@pytest.mark.parametrize("action", ["error", "ignore"])
def test_filters_of_the_process_do_not_matter(action: Any) -> None:
    with warnings.catch_warnings(action=action), warned() as outer:
        warn("first")
        with warned() as inner:
            warn("second")
        warn("third")
    assert [str(each) for each in outer] == ["first", "third"]
    assert [str(each) for each in inner] == ["second"]


def test_fits_at_once_leave_the_filters_of_the_process() -> None:
    before = [*warnings.filters]
    with ThreadPoolExecutor(8) as pool:
        models = [dps.LinearClassifier(alpha="cv", random_state=seed) for seed in range(16)]
        assert len([*pool.map(lambda model: model.fit(X, Y), models)]) == 16
    assert warnings.filters == before
