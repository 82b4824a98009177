"""The proximal step against the dense matrix of the same pairs."""

from itertools import pairwise

import numpy as np
import pytest
from compiled import norm_of, take_in

from dps.training.lbfgs.pairs import CurvaturePairs
from dps.training.lbfgs.proximal import ProximalStep


def dense(kept, n):
    """The BFGS matrix of the last pairs, from the oldest to the newest."""
    step, change = kept[-1]
    B = np.eye(n) * (change @ change) / (step @ change)
    for step, change in kept:
        moved = B @ step
        B += np.outer(change, change) / (change @ step) - np.outer(moved, moved) / (step @ moved)
    return B


def example(n, made, memory):
    """Pairs of a quadratic function, and a step that knows of them."""
    rng = np.random.default_rng(n + made)
    A = rng.normal(size=(n, n))
    A = A @ A.T / n + np.eye(n)
    pairs = CurvaturePairs(n, memory, 1e-10)
    weights = rng.uniform(0.05, 0.5, n)
    weights[0] = 0.0
    step = ProximalStep(pairs, weights)
    ends = rng.normal(size=(made + 1, n))
    for start, end in pairwise(ends):
        assert pairs.add(start, end, A @ start, A @ end)
        take_in(step)
    kept = [(b - a, A @ (b - a)) for a, b in pairwise(ends)][-memory:]
    return step, weights, dense(kept, n) if made else np.eye(n)


def value(B, gradient, weights, at, d):
    return gradient @ d + d @ B @ d / 2 + weights @ np.abs(at + d)


@pytest.mark.parametrize("n", [1, 7, 64])
@pytest.mark.parametrize("made", [0, 1, 4, 9])
def test_steps_lead_to_the_least_of_the_model_and_the_norm(n, made):
    step, weights, B = example(n, made, memory=5)
    rng = np.random.default_rng(0)
    at, gradient, d = np.where(rng.random(n) < 0.5, rng.normal(size=n), 0), rng.normal(size=n), 0
    begun = value(B, gradient, weights, at, np.zeros(n))
    for _ in range(200):  # the model's slope where the last step has led to
        out = np.empty(n)
        told = step.direction(at + d, gradient + B @ np.broadcast_to(d, n), out)
        linear = (gradient + B @ np.broadcast_to(d, n)) @ out
        assert told == pytest.approx(
            linear + weights @ (np.abs(at + d + out) - np.abs(at + d)), abs=1e-9
        )
        assert told <= 0
        d = d + out
    assert value(B, gradient, weights, at, d) <= begun
    slope = gradient + B @ d
    zero = at + d == 0
    assert (np.abs(slope[zero]) <= weights[zero] + 1e-9).all()
    np.testing.assert_allclose(slope[~zero], -weights[~zero] * np.sign((at + d)[~zero]), atol=1e-7)


def test_a_coordinate_that_ends_at_zero_is_zero():
    step, weights, _ = example(7, 4, memory=5)
    at, out = np.full(7, 1e-3), np.empty(7)
    step.direction(at, np.zeros(7), out)
    assert (at + out == 0)[1:].all()  # all but the first have a weight
    assert norm_of(step, at) == pytest.approx(1e-3 * weights.sum())


def test_vectors_of_another_length_are_refused():
    pairs = CurvaturePairs(3, 5, 1e-10)
    with pytest.raises(ValueError, match="weights has length 2, expected 3"):
        ProximalStep(pairs, np.zeros(2))
    with pytest.raises(ValueError, match="gradient has length 2, expected 3"):
        ProximalStep(pairs, np.zeros(3)).direction(np.zeros(3), np.zeros(2), np.zeros(3))
    assert norm_of(ProximalStep(CurvaturePairs(0, 5, 1e-10), np.zeros(0)), np.zeros(0)) == 0.0
