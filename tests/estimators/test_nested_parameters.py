"""Parameters of optimizers, modes, losses and schedules are set and searched like others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster
from own_models import Line
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import dps
from dps.optimizers import (
    OPTIMIZERS,
    SGD,
    Adagrad,
    Adam,
    Averaged,
    Constant,
    Cosine,
    InvScaling,
    Momentum,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 4))
Y = (X[:, 0] + 0.3 * RNG.normal(size=200) > 0).astype(int)
T = X @ [1.0, 2.0, 0.0, -1.0] + 0.1 * RNG.normal(size=200)


def estimators(**options: Any) -> list[Any]:
    options = {"random_state": 0, "max_iter": 3, "tol": 0.0, **options}
    return [
        dps.LinearRegressor(**options), dps.MLPRegressor(**options), dps.FMRegressor(**options),
        dps.ModelRegressor(Line(4, 1), **options),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", OPTIMIZERS.values())
def test_the_first_argument_of_an_optimizer_is_its_learning_rate(kind: Any) -> None:
    assert kind().learning_rate == "auto"
    assert kind(0.01).learning_rate == kind(learning_rate=0.01).learning_rate == 0.01
    assert kind(Cosine(0.1, 10)).get_params()["learning_rate__rate"] == 0.1
    with pytest.raises(TypeError, match="positional"):
        kind(0.01, 0.9)
    for wrong, error in ((0, ValueError), (-1.0, ValueError), (np.inf, ValueError),
                         (None, TypeError), (True, TypeError)):  # fmt: skip
        with pytest.raises(error, match=r"'learning_rate' parameter of .*float in the range"):
            kind(wrong)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("rate", [0.05, InvScaling(0.05), "invscaling"])
def test_an_optimizer_s_rate_is_that_of_the_fit(rate: Any) -> None:
    pairs = zip(
        estimators(optimizer=Adagrad(rate)),
        estimators(optimizer="adagrad", learning_rate=rate),
        estimators(optimizer="adagrad"),
        strict=True,
    )
    for inside, beside, neither in pairs:
        predicted = [model.fit(X, T).predict(X) for model in (inside, beside, neither)]
        np.testing.assert_array_equal(predicted[0], predicted[1])
        assert (predicted[0] != predicted[2]).any()


def test_a_rate_is_given_once() -> None:
    both = r"learning_rate=0\.1 and optimizer=.*learning_rate=0\.05.* both give the learning rate"
    for optimizer in (Adam(0.05), Averaged(Adam(0.05))):
        for model in estimators(optimizer=optimizer, learning_rate=0.1):
            with pytest.raises(ValueError, match=both):
                model.fit(X, T)
    with pytest.raises(ValueError, match="must be a float, a Schedule or a str among"):
        dps.LinearRegressor(optimizer=SGD("cosinus")).fit(X, T)


def test_a_parameter_server_takes_its_optimizer_s_rate(tmp_path: Any) -> None:
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        options = {"client": client, "n_shards": 1, "mirror": False}
        for optimizer in (Averaged(SGD(0.25)), SGD(0.25)):
            with dps.ParameterServer({"w": np.zeros(2)}, optimizer=optimizer, **options) as server:
                server.push("w", np.ones(2))
                assert server.pull("w").tolist() == [-0.25, -0.25]
                if optimizer == SGD(0.25):
                    server.save(tmp_path / "server")
        with dps.ParameterServer.load(tmp_path / "server", **options) as server:
            server.push("w", np.ones(2))
            assert server.pull("w").tolist() == [-0.5, -0.5]
        other = {"optimizer": SGD(0.5), **options}
        with dps.ParameterServer.load(tmp_path / "server", **other) as server:
            server.push("w", np.ones(2))
            assert server.pull("w").tolist() == [-0.75, -0.75]
        with pytest.raises(ValueError, match="both give the learning rate"):
            dps.ParameterServer({"w": [0.0]}, optimizer=SGD(0.1), learning_rate=0.2, **options)
        with pytest.raises(ValueError, match=r"must be a float .* Got Constant"):
            dps.ParameterServer({"w": [0.0]}, optimizer=SGD(Constant(0.1)), **options)


def test_nested_parameters_are_set_and_listed() -> None:
    model = dps.LinearRegressor(optimizer="momentum", loss="huber", mode="async")
    model.set_params(
        optimizer__momentum=0.8, optimizer__learning_rate=0.1, loss__epsilon=2.0, mode__max_delay=3
    )
    assert model.optimizer == Momentum(0.1, momentum=0.8)
    assert (model.loss.epsilon, model.mode.max_delay) == (2.0, 3)
    for one in (model, clone(model)):
        params = one.get_params()
        assert params["optimizer__momentum"] == 0.8
        assert params["loss__epsilon"] == 2.0
        assert params["mode__max_delay"] == 3
        assert not any("__" in name for name in one.get_params(deep=False))
    # What was replaced stays as it is elsewhere.
    shared = Adam(0.1)
    one, other = (dps.MLPRegressor(optimizer=shared) for _ in range(2))
    one.set_params(optimizer__beta1=0.5)
    assert (one.optimizer.beta1, other.optimizer.beta1, shared.beta1) == (0.5, 0.9, 0.9)
    # All listed parameters can be set, also a name and those below it in one call.
    one.set_params(**one.get_params())
    one.set_params(optimizer="momentum", optimizer__nesterov=True)
    assert one.optimizer == Momentum(nesterov=True)
    one.set_params(optimizer=Averaged(Momentum()), optimizer__base__momentum=0.7)
    assert one.get_params()["optimizer__base__momentum"] == 0.7
    one.set_params(learning_rate=Cosine(0.1, 20), learning_rate__rate=0.2)
    assert one.learning_rate == Cosine(0.2, 20)
    own = dps.ModelRegressor(Line).set_params(optimizer="adam", optimizer__beta1=0.8)
    assert own.optimizer == Adam(beta1=0.8)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"optimizer__momentun": 1}, r"Invalid parameter 'momentun' for Momentum\. Valid .*momentum"),
     ({"optimizer__momentum": 2}, r"'momentum' parameter of Momentum must be .* Got 2"),
     ({"optimizer__momentum__x": 2}, r"Momentum\(momentum=0\.9\) has no parameter 'x'"),
     ({"learning_rate__rate": 0.5}, r"learning_rate='auto' has no parameter 'rate'"),
     ({"optimizer": "auto", "optimizer__momentum": 0.5}, "'momentum': set the optimizer's name"),
     ({"encoder__n_buckets": 4}, r"encoder='auto' has no parameter 'n_buckets': set encoder=Frame"),
     ({"loss__epsilon": 0.5}, r"Invalid parameter 'epsilon' for SquaredError"),
     ({"mode__delay": 0.5}, r"Invalid parameter 'delay' for Sync\. Valid"),
     ({"server__name": 0.5}, r"server|None")],
)  # fmt: skip
def test_what_is_no_parameter_is_refused(wrong: dict[str, Any], said: str) -> None:
    model = dps.LinearRegressor(optimizer="momentum")
    with pytest.raises((ValueError, AttributeError), match=said):
        model.set_params(**wrong)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_nested_parameters_are_searched() -> None:
    model = dps.LinearClassifier(optimizer="adam", max_iter=3, tol=None, random_state=0)
    grid = {"optimizer__learning_rate": [1e-4, 0.1], "mode": ["sync", dps.Async()]}
    searches = [
        GridSearchCV(model, grid, cv=3, scoring="neg_log_loss").fit(X, Y),
        dps.model_selection.GridSearchCV(model, grid, cv=3, scoring="neg_log_loss").fit(X, Y),
    ]
    for search in searches:
        assert search.best_params_["optimizer__learning_rate"] == 0.1
        assert search.best_estimator_.optimizer == Adam(0.1)
    piped = make_pipeline(StandardScaler(), model)
    grid = {"linearclassifier__optimizer__beta1": [0.5, 0.9]}
    found = GridSearchCV(piped, grid, cv=3).fit(X, Y)
    assert found.best_estimator_[-1].optimizer.beta1 in (0.5, 0.9)


def test_files_hold_an_optimizer_with_its_rate(tmp_path: Any) -> None:
    model = dps.LinearRegressor(
        optimizer=Adam(InvScaling(0.1)), tol=None, max_iter=5, random_state=0
    )
    model.fit(X, T).save(tmp_path / "model")
    loaded = dps.load(tmp_path / "model")
    assert loaded.optimizer == Adam(InvScaling(0.1))
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
