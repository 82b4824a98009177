"""Arguments that cannot be honoured are errors, and none is misread."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import dask
import numpy as np
import pytest
from versions import SKLEARN

import dps
from dps.optimizers import SGD

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
Y = (X[:, 0] > 0).astype(int)


@pytest.mark.parametrize(
    ("given", "said"),
    [({"dps.timeuot": 1}, r"no option dps\.timeuot of dask\.config: use dps\.timeout"),
     ({"dps": {"n-shard": 1}}, r"no option dps\.n_shard of dask\.config: use dps\.n_shards"),
     ({"dps.xyz": 1}, r"dps\.xyz .*: use dps\.n_shards, dps\.rebalance, .*monitor"),
     ({"dps": 3}, r"dps of dask\.config must be a mapping of options, got 3"),
     ({"dps.monitor": "no"}, r"dps\.monitor of dask\.config must be True or False, got 'no'")],
)  # fmt: skip
def test_unknown_options_of_the_configuration_are_errors(given: Any, said: str) -> None:
    with dask.config.set(given), pytest.raises(ValueError, match=said):
        dps.LinearClassifier().fit(X, Y)


def test_options_may_be_written_with_hyphens() -> None:
    with (
        dask.config.set({"dps": {"fruitless-losses": -1}}),
        pytest.raises(ValueError, match=r"dps\.fruitless_losses .* got -1"),
    ):
        dps.LinearClassifier().fit(X, Y)


def test_early_stopping_may_be_automatic_everywhere() -> None:
    for kind in (dps.LinearClassifier, dps.LinearRegressor):
        plain, automatic = (
            kind(early_stopping=given, random_state=0).fit(X, Y) for given in (False, "auto")
        )
        np.testing.assert_array_equal(plain.coef_, automatic.coef_)
        with pytest.raises(ValueError, match="early_stopping"):
            kind(early_stopping="yes").fit(X, Y)


def test_passes_have_no_dropout() -> None:
    with pytest.raises(ValueError, match=r"optimizer='lbfgs' is not possible with dropout=0\.5"):
        dps.MLPClassifier(optimizer="lbfgs", dropout=0.5).fit(X, Y)
    for dropout in (0.15, 0, 0.0):
        model = dps.MLPClassifier((4,), optimizer="lbfgs", dropout=dropout, random_state=0)
        assert model.fit(X, Y).score(X, Y) > 0.9


def test_an_optimizer_that_mixes_parameters_is_refused() -> None:
    class Shared(SGD):
        """Its step depends on the mean of all squares, as Adafactor's does."""

        def update(self, params: Any, grad: Any, state: Any, *, lr: float, **_: Any) -> bool:
            params -= lr * grad / np.sqrt(np.mean(grad**2))
            return True

    with pytest.raises(ValueError, match=r"Shared\.update is not element-wise.*halves"):
        dps.LinearClassifier(optimizer=Shared()).fit(X, Y)


def test_a_penalty_that_is_none_has_no_strength() -> None:
    model = dps.LinearClassifier(penalty=None, alpha=5.0).fit(X, X[:, 0] + X[:, 1] ** 2 > 0.5)
    assert model.alpha_ == 0.0


def test_machines_name_the_optimizers_that_they_have() -> None:
    for wrong in ("lbfgs", "adm"):
        with pytest.raises(ValueError, match=r"str among \['auto', 'adagrad'.* Got '"):
            dps.FMClassifier(optimizer=wrong).fit(X, Y)


@pytest.mark.parametrize(
    ("habit", "said"),
    [("C", r"alpha=1 / \(C \* rows\)"), ("solver", "optimizer="), ("n_jobs", "n_replicas="),
     ("accumulate_grad_batches", "batch_size="),
     ("eta0", "learning_rate="), ("lr", "learning_rate="), ("learning_rate_init", "learning_rate="),
     ("epochs", "max_iter="), ("max_epochs", "max_iter="), ("patience", "n_iter_no_change="),
     ("seed", "random_state="), ("callbacks", r"set_callbacks\(\)"),
     ("quantile", r"loss=dps\.losses\.Quantile"), ("epsilon", r"loss=dps\.losses\.Huber"),
     ("max_losses", r"dask\.config\.set\(\{'dps\.max_losses': \.\.\.\}\)"),
     ("timeout", r"dask\.config\.set"), ("lerning_rate", "learning_rate="),
     ("bach_size", "batch_size=")],
)  # fmt: skip
def test_parameters_by_habit(habit: str, said: str) -> None:
    if habit == "callbacks" and SKLEARN < (1, 9):
        pytest.skip("of scikit-learn 1.9")
    for kind in (dps.LinearRegressor, dps.MLPClassifier, dps.FMRegressor, dps.ModelRegressor):
        # The one has other losses, the other none.
        lossless = kind in (dps.MLPClassifier, dps.ModelRegressor)
        use = "$" if lossless and habit in ("quantile", "epsilon") else f": use {said}"
        name = rf"{kind.__name__}\(\) got an unexpected keyword argument '{habit}'{use}"
        with pytest.raises(TypeError, match=name):
            kind(**{habit: 1})


@pytest.mark.parametrize(
    ("name", "given"),
    [("mode", dps.Sync), ("optimizer", dps.optimizers.Adam), ("loss", dps.losses.Hinge),
     ("learning_rate", dps.optimizers.Cosine), ("checkpoint", dps.Checkpoint),
     ("encoder", dps.preprocessing.FrameEncoder)],
)  # fmt: skip
def test_a_class_is_to_be_called(name: str, given: type) -> None:
    for kind in (dps.LinearClassifier, dps.MLPClassifier):
        with pytest.raises(ValueError, match=rf"call it, {name}={given.__name__}\(\.\.\.\)"):
            kind(**{name: given}).fit(X, Y)


@pytest.mark.parametrize(
    ("method", "habit", "said"),
    [("fit", "eval_set", "X_val=, y_val="), ("fit", "validation_data", "X_val=, y_val="),
     ("fit", "callbacks", r"set_callbacks\(\)"), ("fit", "verbose", "verbose= of the estimator"),
     ("fit", "epochs", "max_iter= of the"), ("fit", "batch_size", "batch_size= of the estimator"),
     ("fit", "classes", r"partial_fit\(X, y, classes\)"),
     ("fit", "early_stopping_rounds", "early_stopping=True and n_iter_no_change="),
     ("fit", "sample_weights", "sample_weight="),
     ("predict", "output_margin", r"decision_function\(X\)")],
)  # fmt: skip
def test_arguments_by_habit(method: str, habit: str, said: str) -> None:
    model = dps.LinearClassifier().fit(X, Y)
    given = (X, Y) if method == "fit" else (X,)
    name = rf"LinearClassifier\.{method}\(\) got an unexpected .* '{habit}': use {said}"
    with pytest.raises(TypeError, match=name):
        getattr(model, method)(*given, **{habit: 1})


def test_regressors_have_no_margin() -> None:
    model = dps.LinearRegressor().fit(X, Y)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'output_margin'$"):
        model.predict(X, output_margin=True)


def test_constructors_are_as_they_were() -> None:
    assert dps.LinearClassifier.__init__.__name__ == "__init__"
    assert "alpha" in inspect.signature(dps.LinearClassifier).parameters
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'xyz'$"):
        dps.LinearClassifier(xyz=1)
    assert dps.ModelRegressor(dict, model__a=1).get_params()["model__a"] == 1


def test_what_is_not_there_is_no_attribute() -> None:
    script = (
        "import sys, sklearn; sys.modules['torch'] = None\n"  # which ends imports of it
        "import dps\n"
        "assert not hasattr(dps, 'TorchClassifier') and not hasattr(dps, 'torch')\n"
        "assert not hasattr(dps, 'HOMES') and hasattr(dps, 'LinearClassifier')\n"
        "try: dps.TorchRegressor\n"
        "except AttributeError as error: assert \"pip install 'dps[torch]'\" in str(error)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
