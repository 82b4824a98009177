"""The direction of L-BFGS against the matrix that BFGS keeps, written out."""

import numpy as np
import pytest

from dps.training.lbfgs.pairs import CurvaturePairs


def chain(n, count, seed=0):
    """Points along a path over a convex quadratic, and the gradients there."""
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(n, n))
    curvature = half @ half.T + n * np.eye(n)
    points = np.cumsum(rng.normal(size=(count + 1, n)), axis=0)
    return points, points @ curvature


def direction(pairs, gradient):
    out = np.empty_like(gradient)
    slope = pairs.direction(gradient, out)
    assert slope == pytest.approx(gradient @ out, rel=1e-12)
    return out


def inverse(steps, changes):
    """BFGS's estimate of the inverse Hessian (Nocedal and Wright, 2006, equation 6.17)."""
    n = steps.shape[1]
    estimate = np.eye(n) * (steps[-1] @ changes[-1]) / (changes[-1] @ changes[-1])
    for s, y in zip(steps, changes, strict=True):
        rho = 1 / (s @ y)
        left = np.eye(n) - rho * np.outer(s, y)
        estimate = left @ estimate @ left.T + rho * np.outer(s, s)
    return estimate


@pytest.mark.parametrize("n", [1, 7, 8, 50])
@pytest.mark.parametrize("count", [1, 3, 4, 11])
def test_the_newest_pairs_are_the_matrix_of_bfgs(n, count):
    points, gradients = chain(n, count)
    pairs = CurvaturePairs(n, 4, 1e-10)
    for k in range(count):
        assert pairs.add(points[k], points[k + 1], gradients[k], gradients[k + 1])
        assert len(pairs) == min(k + 1, 4)
    first = max(0, count - 4)
    expected = inverse(np.diff(points, axis=0)[first:], np.diff(gradients, axis=0)[first:])
    asked = np.random.default_rng(1).normal(size=n)
    np.testing.assert_allclose(direction(pairs, asked), -expected @ asked, rtol=1e-7, atol=1e-12)


def test_a_pair_without_curvature_leaves_the_others_as_they_are():
    points, gradients = chain(9, 3)
    pairs = CurvaturePairs(9, 3, 1e-10)
    for k in range(3):
        pairs.add(points[k], points[k + 1], gradients[k], gradients[k + 1])
    before = direction(pairs, gradients[0])
    assert not pairs.add(points[0], points[1], gradients[1], gradients[0])  # curves downward
    assert not pairs.add(points[0], points[1], gradients[0], gradients[0])  # does not curve
    assert not pairs.add(points[0], points[0], gradients[0], gradients[1])  # is no step
    across = np.eye(9)[0] * 1e-12 + np.eye(9)[1]
    assert not pairs.add(np.zeros(9), np.eye(9)[0], np.zeros(9), across)  # but for rounding
    np.testing.assert_array_equal(direction(pairs, gradients[0]), before)


def test_nothing_known_is_steepest_descent():
    gradient = np.arange(5.0)
    np.testing.assert_array_equal(direction(CurvaturePairs(5, 2, 0.0), gradient), -gradient)
    assert CurvaturePairs(0, 2, 0.0).direction(np.empty(0), np.empty(0)) == 0


def test_what_does_not_fit_is_an_error():
    pairs = CurvaturePairs(3, 2, 0.0)
    three, four = np.zeros(3), np.zeros(4)
    with pytest.raises(ValueError, match="after has length 4, expected 3"):
        pairs.add(three, three, three, four)
    with pytest.raises(ValueError, match="out has length 4, expected 3"):
        pairs.direction(three, four)
    with pytest.raises(ValueError, match="no memory of 0 pairs"):
        CurvaturePairs(3, 0, 0.0)
