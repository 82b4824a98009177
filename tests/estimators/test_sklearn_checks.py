"""The scikit-learn contract, in every mode that is deterministic."""

from __future__ import annotations

from typing import Any

import pytest
from own_models import Line, Softmax
from sklearn.utils.estimator_checks import parametrize_with_checks

from dps import (
    FMClassifier,
    FMRegressor,
    LinearClassifier,
    LinearRegressor,
    MLPClassifier,
    MLPRegressor,
    ModelClassifier,
    ModelRegressor,
)
from dps.estimators.base import declare as registry

#: One of each family, which share all but their models.
ESTIMATORS = [LinearClassifier(mode="sync")]
OTHERS = [
    MLPRegressor(max_iter=30, n_replicas=2),
    FMClassifier(max_iter=30),
    LinearClassifier(mode="allreduce", n_replicas=2),
    LinearRegressor(mode="sync", n_replicas=2),
    LinearRegressor(mode="allreduce"),
    MLPClassifier(max_iter=30),
    ModelClassifier(Softmax, learning_rate=0.1, max_iter=50, tol=None),
    ModelRegressor(Line, learning_rate=0.1, max_iter=50, tol=None, n_replicas=2),
    FMRegressor(hidden_layer_sizes=8, max_iter=30, n_replicas=2),
]

#: As scikit-learn says of its own perceptrons: batches of other rows lead elsewhere.
_BY_STEPS = (FMClassifier, FMRegressor, MLPClassifier, MLPRegressor)
STOCHASTIC = {
    f"check_sample_weight_equivalence_on_{kind}_data": "steps are stochastic"
    for kind in ("dense", "sparse")
}


def failing(estimator: Any) -> dict[str, str]:
    return STOCHASTIC if isinstance(estimator, _BY_STEPS) else {}


def test_each_estimator_is_checked() -> None:
    there = [cls for cls in registry.ESTIMATORS.values() if cls.__module__.startswith("dps.est")]
    assert {type(each) for each in ESTIMATORS + OTHERS} == {*there}


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=failing)
def test_scikit_learn_contract(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(OTHERS, expected_failed_checks=failing)
def test_scikit_learn_contract_of_others(estimator: Any, check: Any) -> None:
    check(estimator)
