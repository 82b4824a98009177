"""Networks trained by passes over all rows: L-BFGS, in every mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.optimize
from configure import configure
from distributed import Client
from inside import params_of
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import mean_squared_error

import dps
from dps.models.base import DenseRows

# They end where a test has them end.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 4)) * [1.0, 100.0, 1e-3, 1.0] + [0.0, 5.0, 1.0, 0.0]
Y = np.sin(X[:, 0]) + X[:, 1] / 100 + 0.1 * RNG.normal(size=400)
LABELS = Y > 0
OPTIONS: dict[str, Any] = {
    "optimizer": "lbfgs", "hidden_layer_sizes": (8,), "alpha": 0.02 / 400, "random_state": 0,
}  # fmt: skip


def objective(model: Any, y: Any, params: Any) -> tuple[float, Any]:
    """Mean loss and penalty, and their gradient, by the model's own arithmetic in double."""
    network = model._model.with_dtype(np.float64)
    gradient, rows = np.zeros(len(params)), DenseRows(np.ascontiguousarray(X))
    loss = network.loss_gradient(params, rows, y.astype(float), None, gradient) / len(X)
    gradient /= len(X)
    for first, last, penalised in network.layout.segments(0, len(params)):
        if penalised:
            loss += model.alpha * (params[first:last] ** 2).sum() / 2
            gradient[first:last] += model.alpha * params[first:last]
    return float(loss), gradient


def test_without_hidden_layers_it_ends_at_the_optimum() -> None:
    options = OPTIONS | {"hidden_layer_sizes": (), "embedding_size": 0, "alpha": 1.0 / 400}
    model = dps.MLPRegressor(**options).fit(X, Y)
    start = np.asarray(params_of(model), np.float64)
    best = scipy.optimize.minimize(
        lambda params: objective(model, Y, params), 0 * start, jac=True, method="BFGS"
    )
    assert objective(model, Y, start)[0] <= best.fun * (1 + 1e-5)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_each_pass_lowers_the_objective(activation: str) -> None:
    losses = []
    for passes in (1, 3, 10, 60):
        model = dps.MLPRegressor(**OPTIONS, activation=activation, max_iter=passes).fit(X, Y)
        assert model.n_iter_ <= passes
        losses.append(objective(model, Y, np.asarray(params_of(model), np.float64))[0])
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] / 3
    assert all(epoch["full_batch"] for epoch in model.history_)
    assert "L-BFGS" in model.fit_report_.summary


@pytest.mark.parametrize("mode", ["sync", "async", "allreduce"])
def test_replicas_are_one_search(mode: str, client: Client) -> None:
    one = dps.MLPClassifier(**OPTIONS, max_iter=10).fit(X, LABELS)
    several = dps.MLPClassifier(**OPTIONS, max_iter=10, mode=mode, n_replicas=3, client=client)
    several.fit(X, LABELS, X_val=X[:100], y_val=LABELS[:100])
    assert_allclose(several.predict_proba(X), one.predict_proba(X), atol=5e-3)
    assert not np.isnan(several.history_[-1]["validation_loss"])
    assert several.history_[0]["rows"] == len(X)  # none are held out


@pytest.mark.parametrize("labels", [False, True])
def test_it_fits_streams_several_outputs_and_a_warm_start(labels: bool, tmp_path: Path) -> None:
    y = np.stack([Y, -Y, X[:, 3]], axis=1)
    y = (y > 0).astype(int) if labels else y
    kind = dps.MLPClassifier if labels else dps.MLPRegressor
    lazy = da.from_array(X, chunks=(150, 4)), da.from_array(y, chunks=(150, 3))
    configure(cache="disk")
    model = kind(**OPTIONS, max_iter=40, warm_start=True).fit(*lazy)
    assert model.score(X, y) > 0.8
    model.save(tmp_path / "model")
    again = dps.load(tmp_path / "model")
    assert_array_equal(again.predict(X), model.predict(X))
    before = model.loss_
    assert again.fit(X, y).loss_ <= before * 1.001
    plain = model.to_sklearn()
    assert_allclose(plain.predict(X), model.predict(X), atol=1e-4)


def test_the_loss_is_that_of_the_parameters_that_are_kept() -> None:
    model = dps.MLPRegressor(**OPTIONS, max_iter=20).fit(X, Y, X_val=X, y_val=Y)
    error = mean_squared_error(Y, model.predict(X)) / 2
    assert model.history_[-1]["validation_loss"] == pytest.approx(error, rel=1e-4)
    assert model.loss_ == pytest.approx(error, rel=1e-4)


@pytest.mark.parametrize(
    "options",
    [{"early_stopping": True}, {"batch_size": 32}, {"learning_rate": "constant"},
     {"learning_rate": 0.1}],
)  # fmt: skip
def test_what_passes_cannot_honour_is_refused(options: dict[str, Any]) -> None:
    name = next(iter(options))
    with pytest.raises(ValueError, match=f"optimizer='lbfgs' is not possible with {name}"):
        dps.MLPRegressor(**OPTIONS, **options).fit(X, Y)
    with pytest.raises(ValueError, match="optimizer='lbfgs' is not possible with partial_fit"):
        dps.MLPRegressor(**OPTIONS).partial_fit(X, Y)
