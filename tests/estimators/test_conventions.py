"""Estimators follow scikit-learn's settings and other libraries' habits."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, ClassVar

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.optimize
from numpy.testing import assert_allclose
from reading import Source
from sklearn import config_context
from sklearn.base import clone
from sklearn.ensemble import BaggingClassifier
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

import dps
from dps import LinearClassifier, LinearRegressor, MLPClassifier, MLPRegressor, ModelRegressor
from dps.losses import Loss
from dps.metrics import get_scorer
from dps.optimizers import SGD, Adagrad, Adam, Averaged
from dps.preprocessing import FrameEncoder

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 3))
Y = (X[:, 0] > 0).astype(int)
FRAME = pd.DataFrame({"a": ["x", "y"] * 150, "n": X[:, 0]})

# Modes and optimizers as parameters.

OBJECTS: list[Any] = [
    dps.Sync(), dps.Sync(backups=1), dps.Async(max_delay=2), dps.AllReduce(), Adam(beta1=0.8),
    Averaged(SGD()), Adagrad(),
]  # fmt: skip


@pytest.mark.parametrize("value", OBJECTS, ids=repr)
def test_estimators_with_objects_are_cloned(value: Any) -> None:
    name = "mode" if hasattr(value, "channel") else "optimizer"
    assert clone(value) == value
    for model in (MLPClassifier(**{name: value}), LinearClassifier(**{name: value})):
        assert getattr(clone(model), name) == value
        assert getattr(clone(make_pipeline(model))[-1], name) == value
        assert model.get_params(deep=True)[name] == value


def test_modes_and_optimizers_are_searched() -> None:
    grid = {"mode": [dps.Sync(), dps.AllReduce()], "optimizer": [Adam(), Adagrad(), "sgd"]}
    found = GridSearchCV(LinearClassifier(max_iter=30, tol=None), grid, cv=2).fit(X, Y)
    assert found.best_score_ > 0.9
    assert len(found.cv_results_["params"]) == 6
    lazy = dps.model_selection.GridSearchCV(LinearClassifier(), {"mode": grid["mode"]}, cv=2)
    lazy.fit(da.from_array(X, chunks=(100, 3)), da.from_array(Y, chunks=100))
    assert lazy.best_params_["mode"] in grid["mode"]
    assert LinearClassifier(alpha="cv", mode=dps.Sync()).fit(X, Y).score(X, Y) > 0.95
    assert BaggingClassifier(LinearClassifier(mode=dps.Sync()), 2).fit(X, Y).score(X, Y) > 0.9


# scikit-learn's configuration.


def test_pandas_output_is_for_transformers() -> None:
    with config_context(transform_output="pandas"):
        model = LinearClassifier().fit(FRAME, Y, X_val=FRAME, y_val=Y)
        assert model.score(FRAME, Y) > 0.95
        assert model.partial_fit(FRAME, Y).score(FRAME, Y) > 0.9
        lazy = dd.from_pandas(FRAME, npartitions=2)
        assert isinstance(FrameEncoder().fit_transform(lazy), da.Array)
        gaps = np.where(RNG.random(X.shape) < 0.1, np.nan, X)
        assert LinearClassifier().fit(gaps, Y).score(gaps, Y) > 0.8
        with pytest.raises(ValueError, match="sparse"):  # scikit-learn's own words
            FrameEncoder().fit_transform(FRAME)
    encoder = FrameEncoder().set_output(transform="pandas")
    assert isinstance(encoder.fit_transform(dd.from_pandas(FRAME, npartitions=2)), da.Array)


def test_labels_may_come_from_dask() -> None:
    y = da.from_array(Y, chunks=100)
    model = LinearClassifier().partial_fit(
        da.from_array(X, chunks=(100, 3)), y, classes=np.unique(y)
    )
    assert model.classes_.tolist() == [0, 1]


def test_tensors_are_rows() -> None:
    torch = pytest.importorskip("torch")
    given, target = torch.tensor(X), torch.tensor(Y)
    for make in (LinearClassifier, lambda: dps.FMClassifier(random_state=0)):
        model = make().fit(given, target, X_val=given, y_val=target)
        assert model.score(given, target) > 0.9
        assert isinstance(model.predict(given), np.ndarray)
    with pytest.raises(TypeError, match="X is a DataLoader, and batches are cut by dps"):
        LinearClassifier().fit(torch.utils.data.DataLoader([1, 2]), None)


def test_tensors_are_rows_with_array_api_dispatch() -> None:
    pytest.importorskip("torch")
    program = """
import numpy as np, sklearn, torch, dps
X = np.random.default_rng(0).normal(size=(100, 3)); y = (X[:, 0] > 0).astype(int)
with sklearn.config_context(array_api_dispatch=True):
    model = dps.LinearClassifier().fit(torch.tensor(X), torch.tensor(y))
    print(model.score(torch.tensor(X), torch.tensor(y)) > 0.95)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True,
        env={**os.environ, "SCIPY_ARRAY_API": "1"},
    )  # fmt: skip
    assert done.stdout == "True\n", done.stderr


# L-BFGS.


def test_passes_of_networks_that_end_too_early_are_said() -> None:
    y = X[:, 0] ** 2
    with pytest.warns(ConvergenceWarning, match="after max_iter=5 epochs"):
        MLPRegressor(optimizer="lbfgs", max_iter=5, tol=1e-4, random_state=0).fit(X, y)


def loss_of(
    value: Any, slope: Any, task: str = "regression", least: float | None = None
) -> type[Loss]:
    """A loss of one's own."""

    @dataclass(frozen=True)
    class Own(Loss):
        name: ClassVar[str] = "own"

        def evaluate(self, y: Any, raw: Any, weight: Any, out: Any) -> float:
            y = y.reshape(len(raw), -1)
            factor = 1 if weight is None else weight[:, None]
            out[:] = factor * slope(y, raw)
            return float((factor * value(y, raw)).sum())

        def allows(self, y: Any) -> Any:
            return np.ones(np.shape(y), bool) if least is None else y >= least

    Own.task = task  # type: ignore[assignment]
    return Own


SMOOTH: dict[str, tuple[Any, float]] = {
    "log-cosh": (
        loss_of(lambda y, r: np.logaddexp(r - y, y - r), lambda y, r: np.tanh(r - y)), 1.0,
    ),
    "squares": (loss_of(lambda y, r: (r - y) ** 2, lambda y, r: 2 * (r - y)), 2.0),
    "Huber": (
        loss_of(
            lambda y, r: np.where(abs(r - y) < 1, (r - y) ** 2 / 2, abs(r - y) - 0.5),
            lambda y, r: np.clip(r - y, -1, 1),
        ),
        1.0,
    ),
    "Poisson": (
        loss_of(lambda y, r: np.exp(r) - y * r, lambda y, r: np.exp(r) - y, least=0.0), np.e,
    ),
    "logistic": (
        loss_of(
            lambda y, r: np.logaddexp(0, r) - y * r, lambda y, r: 1 / (1 + np.exp(-r)) - y,
            task="classification",
        ),
        0.25,
    ),
}  # fmt: skip
KINKED: dict[str, Any] = {
    "absolute": loss_of(lambda y, r: abs(r - y), lambda y, r: np.sign(r - y)),
    "quantile": loss_of(
        lambda y, r: np.maximum(0.9 * (y - r), 0.1 * (r - y)),
        lambda y, r: np.where(r > y, 0.1, -0.9),
    ),
    "tube": loss_of(
        lambda y, r: np.maximum(abs(r - y) - 0.3, 0),
        lambda y, r: np.sign(r - y) * (abs(r - y) > 0.3),
    ),
    "hinge": loss_of(
        lambda y, r: np.maximum(0, 1 - (2 * y - 1) * r),
        lambda y, r: np.where((2 * y - 1) * r < 1, 1 - 2 * y, 0),
        task="classification",
    ),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_a_smooth_loss_of_ones_own_is_found_smooth(name: str) -> None:
    make, curvature = SMOOTH[name]
    assert make().bend == pytest.approx(curvature, rel=1e-2)


@pytest.mark.parametrize("name", KINKED)
def test_a_kink_is_found(name: str) -> None:
    assert KINKED[name]().bend == np.inf
    kind = LinearClassifier if name == "hinge" else LinearRegressor
    with pytest.raises(ValueError, match="whose derivative jumps"):
        kind(loss=KINKED[name](), optimizer="lbfgs").fit(X, Y)


def test_a_smooth_loss_of_ones_own_is_trained_to_its_optimum() -> None:
    y = X @ [1.0, 2.0, 3.0] + RNG.standard_t(2, len(X))
    model = LinearRegressor(loss=SMOOTH["log-cosh"][0](), alpha=0, tol=1e-8).fit(X, y)

    def objective(w: Any) -> float:
        residual = X @ w[:3] + w[3] - y
        return float(np.logaddexp(residual, -residual).sum())

    expected = scipy.optimize.minimize(objective, np.zeros(4)).x
    np.testing.assert_allclose(np.r_[model.coef_, model.intercept_], expected, atol=1e-3)


class TwoOutputs:
    """Makes two outputs where there is one target."""

    def __init__(self, n_features: int, n_outputs: int) -> None:
        self.layout = {"coef": (n_features, 2)}

    def init(self, rng: Any) -> Any:
        return {"coef": 0.0}

    def raw(self, params: Any, batch: Any) -> Any:
        return batch.X @ params["coef"]

    def loss_gradient(self, params: Any, batch: Any, out: Any) -> float:
        residual = self.raw(params, batch) - batch.y.reshape(-1, 1)
        out["coef"] += batch.X.T @ residual
        return float((residual**2).sum() / 2)


class Broken(TwoOutputs):
    """Raises in the middle of a pass."""

    def __init__(self, n_features: int, n_outputs: int) -> None:
        self.layout = {"coef": (n_features, n_outputs)}

    def loss_gradient(self, params: Any, batch: Any, out: Any) -> float:
        raise KeyError("mine")


@pytest.mark.parametrize("optimizer", ["auto", "lbfgs", "adam"])
def test_what_a_model_of_ones_own_does_wrong_is_said(optimizer: str) -> None:
    with pytest.raises(Exception, match="makes 2 outputs a row, and there are 1 targets"):
        ModelRegressor(TwoOutputs, optimizer=optimizer).fit(X, X[:, 0])
    with pytest.raises(KeyError, match="mine"):
        ModelRegressor(Broken, optimizer=optimizer).fit(X, X[:, 0])


# What was kept.


def test_the_epoch_that_was_kept_is_named() -> None:
    noise = RNG.normal(size=len(X))
    model = MLPRegressor(
        hidden_layer_sizes=(64, 64), alpha=0.0, max_iter=40, early_stopping=True,
        n_iter_no_change=40, random_state=0, average=False,
    ).fit(X, noise, X_val=X + 1, y_val=RNG.permutation(noise))  # fmt: skip
    frame = model.history_.to_frame()
    (kept,) = frame.index[frame.kept]
    assert kept == frame.validation_loss.idxmin() < len(frame)
    report = model.fit_report_
    assert (report.kept.epoch, report.validation_loss) == (kept, frame.validation_loss.min())
    assert f"epoch {kept} kept: loss" in report.summary
    assert not any("held-out rows rose" in said for said in report.advice)


def test_a_loss_on_held_out_rows_that_rises_is_noticed() -> None:
    noise = RNG.normal(size=len(X))
    model = MLPRegressor(
        hidden_layer_sizes=(64, 64), alpha=0.0, max_iter=60, early_stopping=False, random_state=0,
    ).fit(X, noise, X_val=X, y_val=RNG.permutation(noise))  # fmt: skip
    assert model.history_.to_frame().kept.tolist() == [False] * 59 + [True]
    assert any("held-out rows rose" in said for said in model.fit_report_.advice)


@pytest.mark.parametrize("kind", ["frame", "array"])
def test_several_scores_read_the_rows_once(kind: str, tmp_path: Any, client: Any) -> None:
    source = Source(tmp_path / "readings")
    rows = pd.DataFrame(X, columns=list("abc")).assign(y=Y)
    if kind == "frame":
        lazy = dd.from_pandas(rows, npartitions=3).map_partitions(source, meta=rows[:0])
        given = lazy[list("abc")], lazy["y"]
    else:
        lazy = da.from_array(rows.to_numpy(), chunks=(100, 4)).map_blocks(source, dtype=float)
        given = lazy[:, :3], lazy[:, 3].astype(int)
    model = LinearClassifier(client=client).fit(X if kind == "array" else rows[list("abc")], Y)
    names = ["accuracy", "roc_auc", "neg_log_loss", "f1", "average_precision"]
    assert source.readings < 3  # of a row by which Dask asks for the dtype
    found = get_scorer(names)(model, *given)
    assert source.readings == 3
    local = (rows[list("abc")] if kind == "frame" else X), Y
    assert found == pytest.approx({name: get_scorer(name)(model, *local) for name in names})


# Clear words.


def test_a_closed_client_is_named(client: Any) -> None:
    from distributed import Client

    other = Client(client.scheduler.address, set_as_default=False)
    rows, y = da.from_array(X, chunks=(100, 3)), da.from_array(Y, chunks=100)
    model = LinearClassifier(client=other).fit(rows, y)
    predicted = model.predict(rows)
    other.close()
    for call in (
        lambda: model.fit(rows, y),
        lambda: model.score(rows, y),
        lambda: dps.metrics.accuracy_score(y, predicted, client=other),
        lambda: dps.model_selection.cross_val_score(model, rows, y, cv=2),
    ):
        with pytest.raises(dps.errors.ClusterError, match="the client is closed: make a new"):
            call()


def test_sparse_columns_of_pandas_have_a_remedy() -> None:
    model = LinearClassifier().fit(pd.DataFrame(X, columns=list("abc")), Y)
    sparse = pd.DataFrame(X, columns=list("abc")).astype(pd.SparseDtype(float))
    with pytest.raises(ValueError, match=r"X.sparse.to_dense\(\) makes them dense"):
        model.predict(sparse)


def test_interactions_may_be_none() -> None:
    frame = pd.DataFrame({"s": list("ab") * 150})
    np.testing.assert_array_equal(
        FrameEncoder(interactions=None).fit_transform(frame).toarray(),
        FrameEncoder().fit_transform(frame).toarray(),
    )


def test_a_dict_is_asked_for_where_one_was_learned_from() -> None:
    class Added:
        takes = "dense"

        def __init__(self, n_features: int, n_outputs: int) -> None:
            self.layout = {"bias": (n_outputs,)}

        def init(self, rng: Any) -> Any:
            return {"bias": 0.0}

        def raw(self, params: Any, batch: Any) -> Any:
            return batch.X["a"][:, :1] + params["bias"]

        def loss_gradient(self, params: Any, batch: Any, out: Any) -> float:
            residual = batch.weighted(self.raw(params, batch) - batch.y.reshape(-1, 1))
            out["bias"] += residual.sum(axis=0)
            return float((residual**2).sum() / 2)

    given = {"a": X, "b": X[:, :2]}
    model = ModelRegressor(Added, optimizer="sgd", max_iter=2, tol=None).fit(given, X[:, 0])
    assert model.predict(given).shape == (300,)
    with pytest.raises(TypeError, match="was trained on several arrays"):
        model.predict(pd.DataFrame(np.zeros((3, 5))))


def test_folds_may_be_stratified_by_scikit_learn() -> None:
    from sklearn.model_selection import (
        StratifiedGroupKFold,
        StratifiedKFold,
        cross_val_score as theirs,
    )

    groups = np.arange(300) // 3
    lazy = da.from_array(X, chunks=(70, 3)), da.from_array(Y, chunks=70)
    for cv, more in ((StratifiedKFold(3), {}), (StratifiedGroupKFold(3), {"groups": groups})):
        expected = theirs(LinearClassifier(), X, Y, cv=cv, **more)
        found = dps.model_selection.cross_val_score(LinearClassifier(), *lazy, cv=cv, **more)
        np.testing.assert_allclose(found, expected, atol=0.011)


def test_a_page_is_stopped_as_its_bokeh_wants_it(client: Any) -> None:
    from dps.monitor.scheduler.plugin import FitsPlugin

    class Newer:
        """bokeh 3.10's application."""

        stopped = False

        def stop(self) -> None:
            raise RuntimeError("Cannot synchronously wait on a running event loop")

        async def stop_async(self) -> None:
            self.stopped = True

    plugin, application = FitsPlugin(), Newer()
    plugin._application = application
    client.sync(plugin.close)
    assert application.stopped


class Divides(dps.losses.LogLoss):
    def evaluate(self, *args: Any) -> Any:
        raise ZeroDivisionError


@pytest.mark.parametrize("method", ["predict", "score", "predict_proba", "to_sklearn"])
def test_a_fit_that_has_failed_leaves_an_estimator_that_is_not_fitted(method: str) -> None:
    model = LinearClassifier(loss=Divides())
    with pytest.raises(ZeroDivisionError):
        model.fit(X, Y)
    with pytest.raises(NotFittedError):
        getattr(model, method)(*{"score": (X, Y), "to_sklearn": ()}.get(method, (X,)))


def test_sure_predictions_are_no_errors_of_numpys() -> None:
    labels = np.digitize(X[:, 0], [-1, 1])
    for y in (Y, labels):
        for kind in (LinearClassifier, MLPClassifier):
            model = kind(max_iter=20, tol=None).fit(X, y)
            with np.errstate(all="raise"):
                shares = model.predict_proba(X * np.float64(1e3))
            assert_allclose(shares.sum(axis=1), 1, rtol=1e-6)


def test_exported_models_predict_whatever_a_reader_wants_of_transformers() -> None:
    plain = LinearClassifier().fit(FRAME, Y).to_sklearn()
    expected = plain.predict_proba(FRAME)
    with config_context(transform_output="pandas"):
        assert_allclose(plain.predict_proba(FRAME), expected)


def test_no_more_replicas_work_than_there_are_rows() -> None:
    model = LinearClassifier(n_replicas=10**6, max_iter=2, tol=None).fit(X[:20], Y[:20])
    assert "(20 replicas" in repr(model.plan_)


def test_data_without_columns_is_refused_as_scikit_learn_does() -> None:
    frame = dd.from_pandas(pd.DataFrame(index=range(20)), npartitions=2)
    for given, y in ((np.empty((20, 0)), Y[:20]), (frame, da.from_array(Y[:20], chunks=10))):
        with pytest.raises(ValueError, match=r"0 feature\(s\)"):
            LinearClassifier().fit(given, y)


def test_searches_of_local_data_do_not_change_their_scoring() -> None:
    search = dps.model_selection.GridSearchCV(LinearClassifier(), {"alpha": [1e-3]}, scoring="f1")
    assert search.fit(X, Y).scoring == "f1"
    assert 0.8 < search.best_score_ <= 1
