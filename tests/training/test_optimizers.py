"""Optimizers, their registry, averaging and the learning rate schedules."""

import math
import pickle
from itertools import pairwise

import numpy as np
import pytest
from cases import pairs

from dps import LinearRegressor, ParameterServer
from dps.optimizers import (
    OPTIMIZERS,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Averaged,
    Constant,
    Cosine,
    InvScaling,
    Momentum,
    ScaledAdagrad,
    Step,
)
from dps.optimizers.names import get_optimizer
from dps.optimizers.schedules import SCHEDULES

ALL = [
    *(kind() for kind in OPTIMIZERS.values()),
    Momentum(nesterov=True),
    Averaged(Adam()),
    Averaged(SGD(), start=3),
]
NO_PENALTY = {"l1": 0.0, "l2": 0.0}


def trained(optimizer, params, grads, cuts=(), **penalty):
    """Apply all gradients, each slice between cuts with a state of its own."""
    params, result = params.copy(), np.empty_like(params)
    edges = [0, *cuts, len(params)]
    for start, stop in pairwise(edges):
        part = params[start:stop]
        state = np.empty((optimizer.state_rows, stop - start), params.dtype)
        optimizer.initialize(state)
        for step, grad in enumerate(grads, 1):
            assert optimizer.update(part, grad[start:stop], state, step=step, lr=0.1, **penalty)
        result[start:stop] = optimizer.result(part, state)
    return params, result


@pairs(
    optimizer=ALL,
    dtype=[np.float32, np.float64],
    penalty=[(0.0, 0.0), (0.01, 0.02)],
)
def test_slices_are_updated_as_the_whole_bit_for_bit(optimizer, dtype, penalty):
    rng = np.random.default_rng(0)
    params, grads = rng.normal(size=101).astype(dtype), rng.normal(size=(9, 101)).astype(dtype)
    penalty = dict(zip(("l1", "l2"), penalty, strict=True))
    whole, reported = trained(optimizer, params, grads, **penalty)
    cut, cut_reported = trained(optimizer, params, grads, cuts=(1, 34, 35, 70), **penalty)
    assert cut.tobytes() == whole.tobytes()
    assert cut_reported.tobytes() == reported.tobytes()


#: Whose limit weight decay does not move.
UNDECAYED = [AdamW(weight_decay=0.0) if isinstance(each, AdamW) else each for each in ALL]


@pytest.mark.parametrize("optimizer", UNDECAYED, ids=repr)
def test_the_lasso_limit_does_not_depend_on_the_optimizer(optimizer):
    # minimise (p - c)^2 / 2 * curvature + l1 |p| + l2 p^2 / 2, element by element
    center, curvature = np.array([2.0, -1.0, 0.1, 0.0]), np.array([1.0, 4.0, 1.0, 0.5])
    l1, l2 = 0.3, 0.5
    pull = center * curvature
    expected = np.sign(pull) * np.maximum(np.abs(pull) - l1, 0) / (curvature + l2)
    params, state = np.ones(4), np.empty((optimizer.state_rows, 4))
    rate = 0.5 if isinstance(optimizer, Adagrad | ScaledAdagrad) else 0.02
    optimizer.initialize(state)
    for step in range(1, 4001):
        grad = curvature * (params - center)
        optimizer.update(params, grad, state, step=step, lr=rate / step**0.25, l1=l1, l2=l2)
    np.testing.assert_allclose(params, expected, atol=2e-3)


def test_adam_walks_as_algorithm_1():
    rng = np.random.default_rng(0)
    grads, p, m, v = rng.normal(size=20), 1.0, 0.0, 0.0
    params, state = np.array([1.0]), np.zeros((2, 1))
    for t, g in enumerate(grads, 1):
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g * g
        p -= 0.1 * (m / (1 - 0.9**t)) / (math.sqrt(v / (1 - 0.999**t)) + 1e-8)
        Adam().update(params, np.array([g]), state, step=t, lr=0.1, **NO_PENALTY)
    assert params[0] == pytest.approx(p, rel=1e-12)


@pytest.mark.parametrize("averaged", [False, True])
def test_weight_decay_shrinks_by_the_rate_behind_adam_s_step(averaged):
    rng = np.random.default_rng(0)
    plain, decayed = Adam(), AdamW(weight_decay=0.3)
    if averaged:
        plain, decayed = Averaged(plain), Averaged(decayed)
    params = rng.normal(size=5)
    state, expected = np.zeros((plain.state_rows, 5)), params.copy()
    own = state.copy()
    for step in range(1, 9):
        grad = rng.normal(size=5)
        plain.update(expected, grad, state, step=step, lr=0.1, **NO_PENALTY)
        expected /= 1 + 0.1 * 0.3
        decayed.update(params, grad, own, step=step, lr=0.1, **NO_PENALTY)
        np.testing.assert_allclose(params, expected, rtol=1e-12)
    with pytest.raises(ValueError, match=r"'weight_decay' parameter of AdamW must be .* Got -1"):
        AdamW(weight_decay=-1)


def test_weight_decay_leaves_intercepts_alone():
    X, y = np.random.default_rng(0).normal(size=(300, 2)), np.full(300, 5.0)
    y += 2 * X[:, 0]
    options = {"learning_rate": 0.1, "max_iter": 200, "tol": None, "penalty": None}
    for average in (False, True):
        model = LinearRegressor(optimizer=AdamW(weight_decay=50.0), average=average, **options)
        model.fit(X, y)
        assert np.abs(model.coef_).max() < 0.1
        np.testing.assert_allclose(model.intercept_, y.mean(), atol=0.05)


def test_a_parameter_server_decays_its_tensors():
    optimizer = AdamW(weight_decay=0.5)
    with ParameterServer({"w": np.ones(4)}, optimizer=optimizer, learning_rate=0.1) as server:
        server.push("w", np.zeros(4))
        np.testing.assert_allclose(server.pull("w"), 1 / 1.05)


def test_momentum_and_adagrad_start_as_published():
    params, state = np.zeros(1), np.zeros((1, 1))
    for step in (1, 2, 3):
        Momentum(momentum=0.5, nesterov=True).update(
            params, np.ones(1), state, step=step, lr=1.0, **NO_PENALTY
        )
    assert params[0] == -(1.5 + 1.75 + 1.875)
    params, state = np.zeros(1), np.empty((1, 1))
    Adagrad().initialize(state)
    Adagrad().update(params, np.full(1, 2.0), state, step=1, lr=1.0, **NO_PENALTY)
    assert params[0] == pytest.approx(-2 / math.sqrt(4.1), rel=1e-15)


@pytest.mark.parametrize("start", [0, 3, 20])
def test_averaged_reports_the_mean_after_start(start):
    rng = np.random.default_rng(0)
    optimizer, walk = Averaged(SGD(), start=start), []
    params, state = rng.normal(size=5), np.empty((1, 5))
    optimizer.initialize(state)
    np.testing.assert_array_equal(optimizer.result(params, state), params)
    for step in range(1, 11):
        optimizer.update(params, rng.normal(size=5), state, step=step, lr=0.1, **NO_PENALTY)
        walk.append(params.copy())
    expected = np.mean(walk[start:], axis=0) if start < 10 else params
    np.testing.assert_allclose(optimizer.result(params, state), expected, rtol=1e-12)


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_configuration_travels(optimizer):
    assert pickle.loads(pickle.dumps(optimizer)) == optimizer
    assert type(optimizer)(**optimizer.get_params(deep=False)) == optimizer
    assert optimizer.default_schedule(0.0) > 0
    assert get_optimizer(optimizer) is optimizer


def test_optimizers_are_found_by_name_and_others_are_listed():
    assert get_optimizer("adam") == Adam()
    message = (
        r"The 'optimizer' parameter must be an Optimizer or a str among "
        r"\['adagrad', 'adam', 'adamw', 'momentum', 'scaled_adagrad', 'sgd'\]. Got 'adm' instead."
    )
    with pytest.raises(ValueError, match=message):
        get_optimizer("adm")
    with pytest.raises(ValueError, match="Got 3 instead"):
        get_optimizer(3)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: Adam(beta1=1.5),
            ValueError,
            "The 'beta1' parameter of Adam must be a float in the range [0.0, 1.0). "
            "Got 1.5 instead.",
        ),
        (
            lambda: Adam(epsilon="small"),
            TypeError,
            "The 'epsilon' parameter of Adam must be a float in the range [0.0, inf). "
            "Got 'small' instead.",
        ),
        (
            lambda: Adagrad(initial_accumulator=0),
            ValueError,
            "The 'initial_accumulator' parameter of Adagrad must be a float in the range "
            "(0.0, inf). Got 0 instead.",
        ),
        (
            lambda: Momentum(momentum=float("nan")),
            ValueError,
            "The 'momentum' parameter of Momentum must be a float in the range [0.0, 1.0). "
            "Got nan instead.",
        ),
        (
            lambda: Averaged(SGD(), start=-1),
            ValueError,
            "The 'start' parameter of Averaged must be an int in the range [0, inf). "
            "Got -1 instead.",
        ),
        (
            lambda: Averaged(SGD(), start=True),
            TypeError,
            "The 'start' parameter of Averaged must be an int in the range [0, inf). "
            "Got True instead.",
        ),
        (
            lambda: Averaged("sgd"),
            TypeError,
            "The 'base' parameter of Averaged must be an Optimizer. Got 'sgd' instead.",
        ),
        (
            lambda: Step(0.1, factor=1.5),
            ValueError,
            "The 'factor' parameter of Step must be a float in the range (0.0, 1.0]. "
            "Got 1.5 instead.",
        ),
        (
            lambda: Constant(True),
            TypeError,
            "The 'rate' parameter of Constant must be a float in the range (0.0, inf). "
            "Got True instead.",
        ),
    ],
)
def test_bad_parameters_are_named_with_their_value(make, error, message):
    with pytest.raises(error) as caught:
        make()
    assert str(caught.value) == message


def test_schedules_are_their_formulas():
    assert [Constant(0.2)(t) for t in (0.0, 7.0)] == [0.2, 0.2]
    assert [InvScaling(0.2)(t) for t in (0.0, 3.0)] == [0.2, 0.1]
    assert [Step(1.0, 0.5, 2.0)(t) for t in (0.0, 1.9, 2.0, 4.0)] == [1.0, 1.0, 0.5, 0.25]
    cosine = Cosine(1.0, epochs=4.0, final=0.2)
    assert [cosine(t) for t in (0.0, 2.0, 4.0, 9.0)] == pytest.approx([1.0, 0.6, 0.2, 0.2])
    assert set(SCHEDULES) == {"constant", "invscaling", "step", "cosine"}


@pytest.mark.parametrize("schedule", [Constant(0.1), InvScaling(0.1), Step(0.1), Cosine(0.1, 5)])
def test_schedules_travel_and_start_at_their_rate(schedule):
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    assert schedule(0.0) == 0.1
    assert type(schedule) in SCHEDULES.values()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_units_of_tiny_features_leave_what_has_no_gradient_where_it_is(dtype):
    state, params = np.empty((2, 3), dtype), np.ones(3, dtype)
    ScaledAdagrad().set_units(state, np.array([1.0, 1e15, 1e19]))
    assert ScaledAdagrad().update(params, np.zeros(3, dtype), state, step=1, lr=0.1, **NO_PENALTY)
    assert params.tolist() == [1.0] * 3
