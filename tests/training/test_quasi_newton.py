"""L-BFGS finds minima, whatever its evaluations are made of; its coordinates are linear."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.optimize import check_grad, minimize
from scipy.special import expit

from dps._kernels.coordinates import Coordinates, Standardised
from dps.losses import SquaredError
from dps.losses.names import LOSSES
from dps.models.base import DenseRows
from dps.models.linear import LinearModel
from dps.training.lbfgs.descent import Search
from dps.training.lbfgs.quasi_newton import LBFGS


def minimum(function: Callable[[Any], tuple[float, Any]], start: Any) -> tuple[Any, int]:
    search = LBFGS(start, tolerance=1e-14, precision=1e-16)
    for evaluations in range(2000):
        if search.converged:
            return search.best, evaluations
        search.observe(*function(search.point))
    raise AssertionError("the search does not end")


def quadratic(spread: float) -> Callable[[Any], tuple[float, Any]]:
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.normal(size=(20, 20)))[0]
    A = axes @ np.diag(np.geomspace(1, spread, 20)) @ axes.T
    return lambda x: (float(x @ A @ x) / 2, A @ x)


def logistic(x: Any) -> tuple[float, Any]:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(50, 5)) * [1, 10, 0.1, 1, 1]
    s = np.where(rng.random(50) < 0.5, -1.0, 1.0)
    raw = s * (X @ x)
    value = np.logaddexp(0, -raw).sum() + float(x @ x) / 2
    return float(value), X.T @ (-s * expit(-raw)) + x


@pytest.mark.parametrize("spread", [1.0, 1e2, 1e4])
def test_a_quadratic_of_any_shape(spread: float) -> None:
    best, evaluations = minimum(quadratic(spread), np.ones(20))
    assert quadratic(spread)(best)[0] < 1e-10
    assert evaluations < 1000  # scipy's L-BFGS-B takes 757 for 1e4


def test_a_logistic_regression_ends_where_scipy_does() -> None:
    best, _ = minimum(logistic, np.zeros(5))
    peer = minimize(logistic, np.zeros(5), jac=True, options={"gtol": 1e-10})
    assert logistic(best)[0] == pytest.approx(peer.fun, rel=1e-10)


def test_an_l1_norm_ends_where_scipy_does_with_its_zeros() -> None:
    weights = np.array([3.0, 1.0, 20.0, 0.0, 5.0])

    def split(v: Any) -> tuple[float, Any]:
        value, slope = logistic(v[:5] - v[5:])
        return value + weights @ (v[:5] + v[5:]), np.concatenate([slope + weights, weights - slope])

    search = LBFGS(np.zeros(5), 1e-14, 1e-16, weights=weights)
    while not search.converged:
        search.observe(*logistic(search.point))
    peer = minimize(split, np.zeros(10), jac=True, bounds=[(0, None)] * 10, tol=1e-14)
    assert logistic(search.best)[0] + weights @ np.abs(search.best) <= peer.fun * (1 + 1e-9)
    assert ((search.best == 0) == (np.abs(peer.x[:5] - peer.x[5:]) < 1e-6)).all()
    assert 0 < (search.best == 0).sum() < 5


def test_a_point_without_a_value_shortens_the_step() -> None:
    def barrier(x: Any) -> tuple[float, Any]:
        if x[0] <= 0:
            return float("nan"), None
        return float(x[0] - np.log(x[0])), 1 - 1 / x

    best, _ = minimum(barrier, np.array([0.01]))
    assert best[0] == pytest.approx(1.0, abs=1e-5)
    with pytest.raises(ValueError, match="gradient has length 2, expected 1"):
        LBFGS(np.zeros(1), 0.0, 0.0).observe(1.0, np.zeros(2))
    with pytest.raises(ValueError, match="no value where the search starts"):
        LBFGS(np.zeros(1), 0.0, 0.0).observe(float("inf"), None)


def test_the_best_point_never_gets_worse() -> None:
    search = LBFGS(np.full(5, 3.0), tolerance=1e-12, precision=0.0)
    values = []
    while not search.converged:
        value, gradient = logistic(search.point)
        if search.observe(value, gradient):
            values.append(value)
            assert logistic(search.best)[0] == value
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("mixed", [True, False])
def test_coordinates_are_those_of_standardised_features(
    outputs: int, intercept: bool, mixed: bool
) -> None:
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(40, 3)) * [1, 10, 0.1] + [0, 100, 1], rng.normal(size=(40, outputs))
    X[:, 1] += 9 * X[:, 0]
    model = LinearModel(3, outputs, SquaredError(), fit_intercept=intercept)
    products = np.corrcoef(X.T) if mixed else None
    coordinates = model.standardised(X.mean(axis=0), X.var(axis=0), 0.0, products=products)
    assert isinstance(coordinates, Standardised)
    n = model.layout.size
    point = rng.normal(size=n)
    params = coordinates.params(point)
    np.testing.assert_allclose(coordinates.point(params), point)
    u = point[: 3 * outputs].reshape(3, outputs)
    spread = X.std(axis=0) if intercept else np.sqrt((X**2).mean(axis=0))
    Z = (X - X.mean(axis=0) * intercept) / spread
    if mixed:
        value, direction = np.linalg.eigh(Z.T @ Z / 40)
        Z = Z @ (direction / np.sqrt(value)) @ direction.T
    raw = Z @ u + (point[3 * outputs :] if intercept else 0)
    np.testing.assert_allclose(model.raw(params, DenseRows(X)), raw)

    def value(point: Any) -> float:
        params, unused = coordinates.params(point), np.zeros(n)
        return float(model.loss_gradient(params, DenseRows(X), y, None, unused))

    def gradient(point: Any) -> Any:
        grad = np.zeros(n)
        params = coordinates.params(point)
        model.loss_gradient(params, DenseRows(X), y, None, grad)
        return coordinates.gradient(grad)

    assert check_grad(value, gradient, point) < 1e-3 * np.abs(gradient(point)).max()


def test_coordinates_take_whole_vectors_of_doubles() -> None:
    plain, one = Coordinates(2), Standardised(np.ones(1), np.ones(1), 1.0, 1, True)
    point = np.array([1.0, 2.0])
    for coordinates in (plain, one):
        with pytest.raises(ValueError, match="point has length 1, expected 2"):
            coordinates.params(np.ones(1))
        with pytest.raises(ValueError, match="must be contiguous, aligned float64, got float32"):
            coordinates.gradient(np.ones(2, np.float32))
    for way in (plain.params, plain.point, plain.gradient):
        np.testing.assert_array_equal(way(point), point)
    with pytest.raises(ValueError, match="scale has length 2, expected 1"):
        Standardised(np.ones(1), np.ones(2), 1.0, 1, True)
    with pytest.raises(ValueError, match="one output at least, got 0"):
        Standardised(np.ones(1), np.ones(1), 1.0, 0, True)


def test_a_search_ends_where_values_are_rounding_errors() -> None:
    rng = np.random.default_rng(0)

    def function(x: Any) -> tuple[float, Any]:
        noise = 1e-13 * rng.normal(size=6)
        return 1 + float(x @ x) / 2 + noise[0], x + noise[1:]

    search, looks = LBFGS(np.ones(5), 1e-30, 1e-16), 0
    while not search.converged and looks < 100:
        search.observe(*function(search.point))
        looks += 1
    assert looks < 20
    np.testing.assert_allclose(search.best, 0, atol=1e-6)


def test_a_search_in_no_dimensions_is_over_at_once() -> None:
    search = LBFGS(np.empty(0), 1e-9, 0.0)
    while not search.converged:
        search.observe(1.0, np.empty(0))
    assert search.best.shape == (0,)


def test_a_constant_feature_is_left_as_it_is() -> None:
    mean, variance = np.array([5.0, 0.0]), np.array([0.0, 4.0])
    model = LinearModel(2, 1, SquaredError())
    assert model.standardised(mean, variance, 0.0).scale.tolist() == [1.0, 2.0]
    assert model.standardised(mean, variance, 5.0).scale.tolist() == [5.0**0.5, 3.0]


@pytest.mark.parametrize(
    "name", [n for n, kind in LOSSES.items() if kind.curvature < np.inf and kind.domain is None]
)
def test_no_second_derivative_is_larger_than_the_curvature(name: str) -> None:
    loss = LOSSES[name]()
    rng = np.random.default_rng(4)
    k = 3 if name == "softmax" else 1
    raw = rng.uniform(-3, 3, (500, k))
    y = rng.integers(0, 3, 500) if name == "softmax" else rng.choice([-1.0, 1.0], (500, 1))
    low, high, step = np.empty_like(raw), np.empty_like(raw), np.zeros(k)
    step[0] = 1e-6
    loss.evaluate(y.astype(float), raw - step, None, low)
    loss.evaluate(y.astype(float), raw + step, None, high)
    second = (high - low)[:, 0] / 2e-6
    assert 0.9 * loss.curvature < second.max() < loss.curvature + 1e-6


def test_passes_that_promise_what_no_digit_shows_come_to_an_end() -> None:
    start, precision = np.zeros(2), 4 * float(np.finfo(float).eps)
    search = Search(
        start, Coordinates(2), np.zeros(2), 1e-11, precision, -np.inf, patience=5, relative=1e-12,
        l1=np.full(2, 1e-14),
    )  # fmt: skip
    search.resume(1.0, 1)
    passes = 0
    while not search.enough:
        search.observe(0.39, np.full(2, 1e-6))  # a slope, and a value that stays
        passes += 1
        assert passes <= 10
