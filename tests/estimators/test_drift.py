"""A linear model follows a stream whose truth changes."""

import numpy as np
import pytest
from sklearn.metrics import log_loss

from dps import LinearClassifier, LinearRegressor


def parts(turn, rows, n):
    """Parts of a stream whose coefficients turn by so many radians a part."""
    rng = np.random.default_rng(0)
    for number in range(n):
        coef = 2.2 * np.array([np.cos(turn * number), np.sin(turn * number), 0, 0, 0])
        X = rng.normal(size=(rows, 5))
        yield X, X @ coef, rng


@pytest.mark.parametrize(
    ("turn", "rows", "n"), [(0.25, 2000, 40), (0.0, 2000, 20), (0.01, 80, 500)]
)
def test_partial_fit_follows_a_stream(turn, rows, n):
    model, losses, least = LinearClassifier(random_state=0), [], []
    for X, raw, rng in parts(turn, rows, n):
        chances = 1 / (1 + np.exp(-raw))
        y = (rng.random(rows) < chances).astype(int)
        if hasattr(model, "coef_"):
            losses.append(log_loss(y, model.predict_proba(X), labels=[0, 1]))
            least.append(log_loss(y, chances, labels=[0, 1]))
        model.partial_fit(X, y, classes=[0, 1])
    half = n // 2
    assert np.mean(losses[half:]) < 1.08 * np.mean(least[half:])


def test_a_regression_follows_a_stream():
    model = LinearRegressor(random_state=0)
    for X, y, _ in parts(0.25, 2000, 40):
        if hasattr(model, "coef_"):
            score = model.score(X, y)
        model.partial_fit(X, y)
    assert score > 0.9
