"""Squared error by products: the optimum of scikit-learn's estimators, whatever holds the rows."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from cases import pairs
from distributed import Client
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet, Lasso, LinearRegression, Ridge
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

import dps
from dps import LinearRegressor
from dps.data.survey.products import Columns, mean_products, products_of
from dps.errors import ClusterError

Array = NDArray[np.float64]
N = 600


def problem(outputs: int = 1, seed: int = 0) -> tuple[Array, Array, Array]:
    """Rows of any scale and offset, targets, and weights of which some are zero."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, 6)) * 10.0 ** rng.uniform(-2, 2, 6) + rng.normal(size=6) * 10
    y = StandardScaler().fit_transform(X) @ rng.normal(size=(6, outputs)) + 50
    y += rng.normal(size=y.shape)
    return X, np.squeeze(y), rng.integers(0, 4, N).astype(float)


def objective(model: Any, X: Array, y: Array, weight: Array | None, l1: float, l2: float) -> float:
    coef = np.ravel(model.coef_)
    missed = y - X @ np.atleast_2d(model.coef_).T.squeeze() - model.intercept_
    lost = np.average(missed**2, weights=weight, axis=0).sum() / 2
    return float(lost + l1 * abs(coef).sum() + l2 / 2 * (coef**2).sum())


@pairs(
    penalty=["l2", "l1", "elasticnet", None],
    intercept=[True, False],
    outputs=[1, 5],
    weighted=[False, True],
    dtype=["f8", "f4"],
    lazy=[False, True],
)
def test_the_optimum_is_that_of_scikit_learn(
    penalty: Any, intercept: bool, outputs: int, weighted: bool, dtype: str, lazy: bool
) -> None:
    X, y, weight = problem(outputs)
    X, weights = X.astype(dtype), weight if weighted else None
    sums, alpha = weight.sum() if weighted else N, 0.03
    peer = {
        "l2": Ridge(alpha * sums, fit_intercept=intercept, tol=1e-12),
        "l1": Lasso(alpha, fit_intercept=intercept, tol=1e-9, max_iter=10**6),
        "elasticnet": ElasticNet(
            alpha, l1_ratio=0.3, fit_intercept=intercept, tol=1e-9, max_iter=10**6
        ),
        None: LinearRegression(fit_intercept=intercept),
    }[penalty].fit(X.astype("f8"), y, sample_weight=weights)
    model = LinearRegressor(
        penalty=penalty, alpha=alpha, l1_ratio=0.3, fit_intercept=intercept, standardize=False
    )
    given = [X, y, weights]
    if lazy:
        given = [None if a is None else da.from_array(a, chunks=(97, *a.shape[1:])) for a in given]
    model.fit(*given)
    assert model.n_iter_ == 1
    assert model.fit_report_.method == "least squares"
    share = {"l2": 0.0, "l1": 1.0, "elasticnet": 0.3, None: 0.0}[penalty]
    l1, l2 = (0.0, 0.0) if penalty is None else (alpha * share, alpha * (1 - share))
    rows = X.astype("f8")
    best = objective(peer, rows, y, weights, l1, l2)
    close = 1e-8 if dtype == "f8" else 1e-4
    assert objective(model, rows, y, weights, l1, l2) == pytest.approx(best, rel=close)
    missed = (y - model.predict(rows)) ** 2
    lost = np.average(missed, weights=weights, axis=0).sum() / 2
    assert model.loss_ == pytest.approx(lost, rel=close)


def collinear(kind: str) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    few = rng.normal(size=(2000, 5)) @ rng.normal(size=(5, 60))
    if kind.startswith("rank 5"):
        X = few + float(kind.split()[-1]) * rng.normal(size=few.shape)
        y = (X - few) @ rng.normal(size=60)
        return X, y / y.std() + rng.normal(size=2000)
    if kind == "polynomials":
        x = rng.uniform(-1, 1, size=(2000, 3))
        y = np.sin(5 * x.sum(axis=1)) + 0.1 * rng.normal(size=2000)
        return PolynomialFeatures(7).fit_transform(x), y
    x = rng.uniform(0, 10, size=(2000, 1))
    X = PolynomialFeatures(7, include_bias=False).fit_transform(x)
    return X, np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=2000)


@pytest.mark.parametrize("kind", ["rank 5 and 0.01", "rank 5 and 1e-5", "polynomials", "powers"])
def test_nearly_collinear_columns_lose_nothing(kind: str) -> None:
    """The optimum by an SVD of the rows; scikit-learn's own cuts small directions off."""
    X, y = collinear(kind)
    centred = StandardScaler().fit_transform(X)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    u = u[:, s > 1e-7 * s[0]]
    left = y - y.mean() - u @ (u.T @ (y - y.mean()))
    best = 1 - left @ left / ((y - y.mean()) ** 2).sum()
    assert best >= LinearRegression().fit(X, y).score(X, y) - 1e-9
    model = LinearRegressor(penalty=None).fit(X, y)
    assert model.score(X, y) == pytest.approx(best, abs=1e-6)
    assert model.n_iter_ == 1


def test_any_cut_any_thread_and_any_order_add_up_to_the_same() -> None:
    X, y, weight = problem()
    columns = Columns(
        np.append(X.mean(axis=0), y.mean()), np.append(X.std(axis=0), y.std()), 6, weight.sum()
    )
    rng = np.random.default_rng(0)
    more = [np.repeat(each, 9, axis=0) for each in (X, y, weight)]
    columns = Columns(columns.centre, columns.unit, 6, 9 * weight.sum())
    one = products_of(*more, columns=columns)
    assert (one == products_of(*more, columns=columns, threads=4)).all()
    parts = [[each[i * 100 :][:100] for each in (X, y, weight)] for i in range(6)]
    sums = [products_of(*part, columns=columns) for part in parts]
    assert all((sum(sums[i] for i in rng.permutation(6)) == sum(sums)).all() for _ in range(5))
    centred = np.c_[X, y] - columns.centre
    products, mean = mean_products(sum(sums))
    wanted = (weight[:, None] * centred).T @ centred / weight.sum()
    np.testing.assert_allclose(products * np.outer(columns.unit, columns.unit), wanted, rtol=1e-9)
    np.testing.assert_allclose(mean * columns.unit, np.average(centred, 0, weight), rtol=1e-9)
    with pytest.raises(ClusterError, match="other rows than it had before"):
        products_of(X * 100, y, weight, columns=columns)


def test_workers_change_no_bit(client: Client) -> None:
    X, y, _ = problem()
    found = set()
    for workers in sorted(client.nthreads()), [min(client.nthreads())]:
        rows = da.from_array(X, chunks=(50, 6), name=False)
        targets = da.from_array(y, chunks=50, name=False)
        given = client.persist([rows, targets], workers=workers)
        model = LinearRegressor(client=client).fit(*given)
        found.add(model.coef_.tobytes() + np.float64(model.intercept_).tobytes())
        assert {rank.worker for rank in model.plan_.ranks} == set(workers)
    assert len(found) == 1


@pytest.mark.parametrize(
    ("X", "coef"),
    [
        (np.ones((50, 2)), [0, 0]),
        (np.zeros((50, 2)), [0, 0]),
        (np.c_[np.arange(50.0), np.full(50, 3.0)], [2, 0]),
        (np.c_[np.arange(50.0), np.arange(50.0)], [1, 1]),
        (np.c_[np.arange(50.0), 1e9 + np.zeros(50)], [2, 0]),
        (np.arange(50.0)[:, None] * 1e-90, [2e90]),
    ],
)
def test_columns_that_say_nothing_have_no_coefficient(X: Array, coef: list[float]) -> None:
    y = 2 * np.arange(50.0) + 1
    model = LinearRegressor(penalty=None).fit(X, y)
    np.testing.assert_allclose(model.coef_, coef, rtol=1e-9, atol=1e-9)
    wanted = y if any(coef) else np.full(50, y.mean())
    np.testing.assert_allclose(model.predict(X), wanted, rtol=1e-7)


def test_targets_may_be_alike_or_few() -> None:
    X, y, _ = problem()
    model = LinearRegressor().fit(X, np.full(N, 7.0))
    assert (model.coef_ == 0).all()
    assert model.intercept_ == 7
    few = LinearRegressor(penalty=None).fit(X[:3], y[:3])
    np.testing.assert_allclose(few.predict(X[:3]), y[:3], rtol=1e-9)


def test_held_out_rows_are_scored() -> None:
    X, y, weight = problem(2)
    model = LinearRegressor().fit(X[:400], y[:400], X_val=X[400:], y_val=y[400:])
    lost = ((y[400:] - model.predict(X[400:])) ** 2).sum(axis=1).mean() / 2
    assert model.history_[-1]["validation_loss"] == pytest.approx(lost)
    model.fit(X, y, X_val=X, y_val=y, sample_weight_val=weight)
    missed = ((y - model.predict(X)) ** 2).sum(axis=1)
    lost = np.average(missed, weights=weight) / 2
    assert model.history_[-1]["validation_loss"] == pytest.approx(lost)


@pytest.mark.parametrize("what", ["score", "checkpoint"])
def test_replicas_that_are_needed_begin_at_the_optimum(what: str, tmp_path: Path) -> None:
    X, y, _ = problem()
    plain = LinearRegressor().fit(X, y)
    if what == "score":
        model = LinearRegressor(scoring="r2").fit(X, y, X_val=X, y_val=y)
        score = model.history_[-1]["validation_score"]
        assert score == pytest.approx(plain.score(X, y), abs=1e-9)
    else:
        model = LinearRegressor(checkpoint=dps.Checkpoint(tmp_path)).fit(X, y)
        again = LinearRegressor(checkpoint=dps.Checkpoint(tmp_path)).fit(X, y, resume=True)
        np.testing.assert_array_equal(again.coef_, model.coef_)
    assert model.fit_report_.method == "L-BFGS"
    assert model.n_iter_ <= 2
    np.testing.assert_allclose(model.coef_, plain.coef_, rtol=1e-7)


def test_what_goes_on_from_a_solved_fit_starts_there() -> None:
    X, y, _ = problem()
    model = LinearRegressor(warm_start=True).fit(X, y)
    before = model.coef_.copy()
    np.testing.assert_allclose(model.fit(X, y).coef_, before, rtol=1e-9)
    model.partial_fit(X, y)
    assert model.score(X, y) > LinearRegressor().fit(X, y).score(X, y) - 0.05


def test_a_server_has_the_optimum() -> None:
    X, y, _ = problem()
    with dps.ParameterServer() as server:
        model = LinearRegressor(server=server).fit(X, y)
        np.testing.assert_array_equal(server.pull("coef_"), model.coef_)
        assert repr(dps.ServedModel(server).model.history_[0]) == repr(model.history_[0])
    assert model.history_.to_frame()["loss"].iloc[-1] == model.loss_


def test_a_callback_sees_the_optimum() -> None:
    pytest.importorskip("sklearn.callback", reason="scikit-learn 1.9 has callbacks")
    X, y, _ = problem()
    recorder = Recorder()
    model = LinearRegressor().set_callbacks(recorder).fit(X, y)
    assert recorder.scores == [model.score(X, y)] * 2


class Recorder:
    """A callback that scores what it is given."""

    def __init__(self) -> None:
        self.scores: list[float] = []

    def setup(self, estimator: Any, context: Any) -> None:
        pass

    def teardown(self, estimator: Any, context: Any) -> None:
        pass

    def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
        pass

    def on_fit_task_end(
        self, estimator: Any, context: Any, *, X: Any, y: Any, fitted_estimator: Any
    ) -> bool:
        self.scores.append(fitted_estimator.score(X, y))
        return False


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_unusual_options_keep_their_way() -> None:
    X, y, _ = problem()
    for options in (
        {"optimizer": "adagrad"},
        {"tol": None, "max_iter": 3},
        {"mode": "async"},
        {"early_stopping": True},
        {"loss": "huber"},
    ):
        options = {"max_iter": 20} | options
        model = LinearRegressor(**options).fit(X, y)  # type: ignore[arg-type]
        assert model.fit_report_.method != "least squares"
        assert bool(model.plan_.shards) is ("loss" not in options)  # passes here need none


@pytest.mark.parametrize("penalty", ["l2", "l1"])
@pytest.mark.parametrize("held", [False, True])
def test_a_strength_by_products_is_that_by_fits(penalty: Any, held: bool) -> None:
    """In async the same strengths are compared by fits, which end at a tolerance."""
    X, y, weight = problem()
    given: dict[str, Any] = {"X_val": X[::3], "y_val": y[::3]} if held else {}
    found = [
        LinearRegressor(penalty=penalty, alpha="cv", mode=mode, max_iter=50)
        .fit(X, y, weight, **given)
        .alpha_path_
        for mode in ("sync", "async")
    ]
    np.testing.assert_allclose(*found, rtol=1e-4)


@pytest.mark.parametrize("dtype", [int, bool, np.float16])
def test_any_numbers_have_products(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    X, y = (10 * rng.normal(size=(N, 4))).astype(dtype), rng.integers(0, 9, N)
    model = LinearRegressor(penalty=None).fit(X, y)
    wanted = LinearRegression().fit(X.astype(float), y)
    np.testing.assert_allclose(model.predict(X), wanted.predict(X.astype(float)), rtol=1e-6)
    assert LinearRegressor(alpha="cv").fit(X, y).score(X, y) <= model.score(X, y) + 1e-9
    frame = pd.DataFrame(X, columns=list("abcd")).astype({"a": "float32"})
    found = LinearRegressor(penalty=None).fit(frame, pd.Series(y))
    np.testing.assert_allclose(found.coef_, model.coef_, rtol=1e-6)


@pytest.mark.parametrize("filters", ["error", "ignore"])
def test_passes_take_over_where_descent_does_not_end(
    filters: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dps.models.least_squares._MOST_PASSES", 1)
    X, y = collinear("rank 5 and 0.01")
    with warnings.catch_warnings():
        warnings.simplefilter(filters)
        model = LinearRegressor(penalty="l1", alpha=0.01).fit(X, y)
    assert model.fit_report_.method == "L-BFGS"
    assert model.n_iter_ > 1


def test_descent_leaves_the_warnings_of_other_threads_alone() -> None:
    """A filter is the process's: one that makes errors of warnings would end other fits."""
    over, caught = threading.Event(), list[BaseException]()

    def warns() -> None:
        try:
            while not over.is_set():
                warnings.warn("slow", ConvergenceWarning, stacklevel=1)
        except BaseException as error:
            caught.append(error)

    X, y, _ = problem()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        thread = threading.Thread(target=warns)
        thread.start()
        for _ in range(50):
            LinearRegressor(penalty="l1").fit(X, y)
        over.set()
        thread.join(60)
    assert not caught
