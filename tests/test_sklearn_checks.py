"""The scikit-learn contract, in every mode that is deterministic."""

from __future__ import annotations

from typing import Any

from sklearn.utils.estimator_checks import parametrize_with_checks

from dps import LinearClassifier, LinearRegressor
from dps.modes import MODES

ESTIMATORS = [
    kind(mode=name, n_replicas=replicas)
    for kind in (LinearClassifier, LinearRegressor)
    for name, mode in MODES.items()
    if mode.deterministic
    for replicas in ("auto", 2)
]


@parametrize_with_checks(ESTIMATORS)
def test_scikit_learn_contract(estimator: Any, check: Any) -> None:
    check(estimator)
