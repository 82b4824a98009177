"""A classifier that is no better than a constant says so."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import dps

RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 200))
Y = np.where(X[:, 0] + 0.3 * RNG.logistic(size=600) > 0.8, "yes", "no")
NOISE = RNG.permutation(Y)
SAID = r"The loss on held-out rows, [\d.]+, is not lower than that of a constant, [\d.]+: "
REVERSED = np.where(Y == "yes", "no", "yes")


@pytest.mark.parametrize(
    ("model", "y", "given"),
    [
        (dps.LinearClassifier(), Y, {"X_val": X[:200], "y_val": REVERSED[:200]}),
        (dps.LinearClassifier(alpha="cv", class_weight="balanced", random_state=0), NOISE, {}),
        (dps.LinearClassifier(alpha=1e-3), Y, {"X_val": X[:200], "y_val": REVERSED[:200]}),
        (dps.MLPClassifier(8, random_state=0, max_iter=3), Y,
         {"X_val": X[:200], "y_val": REVERSED[:200]}),
        (dps.LinearClassifier(alpha=1e-9, optimizer="adam", early_stopping=True, max_iter=1,
                              tol=None, learning_rate=3.0, validation_fraction=0.3), NOISE, {}),
    ],
)  # fmt: skip
def test_it_is_said_once_and_in_the_report(model: Any, y: Any, given: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match=SAID) as said:
        model.fit(X, y, **given)
    assert len(said) == 1
    report = model.fit_report_
    assert report.no_better[0] >= report.no_better[1]
    assert str(said[0].message) == report.advice[0]
    assert str(said[0].message) in str(report)


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (dps.LinearClassifier(random_state=0), {}),
        (dps.LinearClassifier(alpha=0.1), {"X_val": X[:200], "y_val": Y[:200]}),
        (
            dps.LinearClassifier("squared_hinge", alpha=1e-3),
            {"X_val": X[:200], "y_val": REVERSED[:200]},
        ),
        (dps.MLPClassifier(8, random_state=0), {}),
        (dps.LinearClassifier(random_state=0), {"X_val": X[Y == "no"], "y_val": Y[Y == "no"]}),
        (
            dps.LinearClassifier(alpha=0.1, class_weight={"yes": 1.0, "no": 2.0}),
            {"X_val": X[Y == "no"], "y_val": Y[Y == "no"]},
        ),
        (dps.LinearRegressor(), {}),
    ],
)
def test_nothing_is_said_of_others(model: Any, given: dict[str, Any]) -> None:
    y = (Y == "yes").astype(float) if isinstance(model, dps.LinearRegressor) else Y
    with warnings.catch_warnings(action="error"):
        assert model.fit(X, y, **given).fit_report_.no_better is None
