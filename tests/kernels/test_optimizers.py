"""Optimizer kernels against the formulas in NumPy, in both dtypes and in slices."""

import math

import numpy as np
import pytest
from cases import pairs

from dps._kernels.optimizers import UpdateKernel

LENGTHS = [0, 1, 7, 64, 1000]
DTYPES = [np.float32, np.float64]
PENALTIES = [(0.0, 0.0), (0.3, 0.0), (0.0, 0.7), (0.3, 0.7)]


def shrink(p, s, l1, l2):
    return np.sign(p) * np.maximum(np.abs(p) - s * l1, 0) / (1 + s * l2)


def sgd(p, g, lr, l1, l2):
    return shrink(p - lr * g, lr, l1, l2), []


def momentum(p, g, v, lr, l1, l2, nesterov, mu=0.9):
    v = mu * v + g
    return shrink(p - lr * (g + mu * v if nesterov else v), lr / (1 - mu), l1, l2), [v]


def adagrad(p, g, total, lr, l1, l2):
    total = total + g * g
    return shrink(p - lr * g / np.sqrt(total), lr / np.sqrt(total), l1, l2), [total]


def scaled_adagrad(p, g, total, unit, lr, l1, l2):
    moved, (total,) = adagrad(p, g, total, lr * unit, l1, l2)
    return moved, [total, unit]


def adam(p, g, m, v, lr, l1, l2, decay, step=3, beta1=0.9, beta2=0.999, epsilon=1e-8):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * (g + l2 * p) ** 2
    root = np.sqrt(v / (1 - beta2**step)) + epsilon
    moved = (p - lr * m / (1 - beta1**step) / root) / (1 + lr * decay)
    return shrink(moved, lr / root, l1, l2), [m, v]


def kernel(name, **options):
    def run(p, g, s, lr, l1, l2):
        return UpdateKernel(name, **options).update(p, g, s, step=3, lr=lr, l1=l1, l2=l2)

    return run


CASES = {
    "sgd": (0, kernel("sgd"), lambda p, g, s, *rates: sgd(p, g, *rates)),
    "momentum": (
        1,
        kernel("momentum", momentum=0.9),
        lambda p, g, s, *rates: momentum(p, g, s[0], *rates, False),
    ),
    "nesterov": (
        1,
        kernel("momentum", momentum=0.9, nesterov=True),
        lambda p, g, s, *rates: momentum(p, g, s[0], *rates, True),
    ),
    "adagrad": (1, kernel("adagrad"), lambda p, g, s, *rates: adagrad(p, g, s[0], *rates)),
    "scaled_adagrad": (
        2,
        kernel("scaled_adagrad"),
        lambda p, g, s, *rates: scaled_adagrad(p, g, *s, *rates),
    ),
    "adam": (2, kernel("adam"), lambda p, g, s, *rates: adam(p, g, *s, *rates, 0.0)),
    "adamw": (2, kernel("adam", decay=0.3), lambda p, g, s, *rates: adam(p, g, *s, *rates, 0.3)),
}


def example(n, rows, dtype, seed=0):
    rng = np.random.default_rng(seed)
    params, grad = rng.normal(size=(2, n)).astype(dtype)
    state = rng.uniform(0.1, 1.0, size=(rows, n)).astype(dtype)
    grad.flags.writeable = False
    return params, grad, state


@pairs(
    name=CASES,
    dtype=DTYPES,
    n=LENGTHS,
    penalty=PENALTIES,
)
def test_kernel_is_the_formula(name, dtype, n, penalty):
    rows, kernel, formula = CASES[name]
    params, grad, state = example(n, rows, dtype)
    expected, expected_state = formula(
        params.astype(float), grad.astype(float), state.astype(float), 0.1, *penalty
    )
    assert kernel(params, grad, state, 0.1, *penalty) is True
    tolerance = 2e-6 if dtype == np.float32 else 1e-14
    np.testing.assert_allclose(params, expected, rtol=tolerance, atol=tolerance)
    for actual, wanted in zip(state, expected_state, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=tolerance, atol=tolerance)


@pairs(
    name=CASES,
    dtype=DTYPES,
    penalty=PENALTIES,
)
def test_slices_end_with_the_bits_of_the_whole(name, dtype, penalty):
    rows, kernel, _ = CASES[name]
    whole, grad, state = example(1000, rows, dtype)
    cut, _, cut_state = example(1000, rows, dtype)
    kernel(whole, grad, state, 0.1, *penalty)
    for start, stop in [(0, 1), (1, 4), (4, 5), (5, 67), (67, 998), (998, 1000)]:
        kernel(cut[start:stop], grad[start:stop], cut_state[:, start:stop], 0.1, *penalty)
    assert whole.tobytes() == cut.tobytes()
    assert state.tobytes() == cut_state.tobytes()


def bits_of_sgd(p, g, state, lr, l2, dtype):
    return p - dtype(lr) * g, dtype(lr), []


def bits_of_momentum(p, g, state, lr, l2, dtype):
    v = dtype(0.9) * state[0] + g
    return p - dtype(lr) * v, dtype(lr / (1 - 0.9)), [v]


def bits_of_nesterov(p, g, state, lr, l2, dtype):
    v = dtype(0.9) * state[0] + g
    return p - dtype(lr) * (g + dtype(0.9) * v), dtype(lr / (1 - 0.9)), [v]


def bits_of_adagrad(p, g, state, lr, l2, dtype):
    total = state[0] + g * g
    size = dtype(lr) / np.sqrt(total)
    return p - size * g, size, [total]


def bits_of_scaled_adagrad(p, g, state, lr, l2, dtype):
    total = state[0] + g * g
    size = dtype(lr) * state[1] / np.sqrt(total)
    return p - size * g, size, [total, state[1]]


def bits_of_adam(p, g, state, lr, l2, dtype):
    m = dtype(0.9) * state[0] + dtype(1 - 0.9) * g
    total = g + l2 * p
    v = dtype(0.999) * state[1] + dtype(1 - 0.999) * (total * total)
    denominator = np.sqrt(v) * dtype(1 / math.sqrt(1 - 0.999**3)) + dtype(1e-8)
    moved = p - dtype(lr / (1 - 0.9**3)) * m / denominator
    return moved, dtype(lr) / denominator, [m, v]


def bits_of_adamw(p, g, state, lr, l2, dtype):
    moved, size, state = bits_of_adam(p, g, state, lr, l2, dtype)
    return moved / (dtype(1) + dtype(lr) * dtype(0.3)), size, state


BITS = {
    "sgd": bits_of_sgd,
    "momentum": bits_of_momentum,
    "nesterov": bits_of_nesterov,
    "adagrad": bits_of_adagrad,
    "scaled_adagrad": bits_of_scaled_adagrad,
    "adam": bits_of_adam,
    "adamw": bits_of_adamw,
}


@pairs(
    name=CASES,
    dtype=DTYPES,
    n=LENGTHS,
    penalty=PENALTIES,
)
def test_kernel_has_the_bits_of_numpy(name, dtype, n, penalty):
    """Whatever the instruction set: NumPy, too, rounds each operation once, in the arrays' type."""
    rows, kernel, _ = CASES[name]
    params, grad, state = example(n, rows, dtype)
    params[:2] = -0.0
    l1, l2 = map(dtype, penalty)
    expected, size, expected_state = BITS[name](params, grad, state, 0.1, l2, dtype)
    if any(penalty):
        shrunk = np.maximum(np.abs(expected) - size * l1, dtype(0))
        expected = np.copysign(shrunk, expected) / (dtype(1) + size * l2)
    kernel(params, grad, state, 0.1, *penalty)
    assert params.tobytes() == expected.tobytes()
    assert state.tobytes() == np.array(expected_state, dtype).tobytes()


@pairs(
    name=CASES,
    dtype=DTYPES,
    penalty=[(0.0, 0.0), (0.3, 0.7)],
    at=[0, 500, 999],
    value=[np.nan, np.inf, -np.inf],
)
def test_a_parameter_that_is_not_finite_is_told(name, dtype, penalty, at, value):
    rows, kernel, _ = CASES[name]
    params, grad, state = example(1000, rows, dtype)
    params[at] = value
    assert kernel(params, grad, state, 0.1, *penalty) is False


@pytest.mark.parametrize("name", CASES)
def test_an_l1_penalty_ends_at_exact_zeros(name):
    rows, kernel, _ = CASES[name]
    params, grad, state = example(64, rows, np.float64)
    assert kernel(params, grad, state, 0.1, 1e6, 0.0) is True
    assert np.count_nonzero(params) == 0


@pytest.mark.parametrize("start", [0, 2])
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_average_is_the_running_mean(dtype, n, start):
    steps = np.random.default_rng(0).normal(size=(5, n)).astype(dtype)
    params, state = np.zeros(n, dtype), np.full((1, n), np.nan, dtype)
    seen, mean = [], params
    for step, grad in enumerate(steps, 1):
        UpdateKernel("sgd").averaged(start).update(params, grad, state, step=step, lr=0.1)
        seen.append(params.copy())
        expected = np.mean(seen[start:] or seen[-1:], axis=0)
        np.testing.assert_allclose(state[0], expected, rtol=1e-5, atol=1e-6)
        first = step <= start + 1
        mean = params.copy() if first else mean + (params - mean) / dtype(step - start)
        assert state[0].tobytes() == mean.tobytes()


def test_what_does_not_fit_is_refused():
    params, kernel = np.zeros(3), UpdateKernel("momentum")
    with pytest.raises(ValueError, match="grad has length 2, expected 3"):
        kernel.update(params, np.zeros(2), np.zeros((1, 3)), step=1, lr=0.1)
    with pytest.raises(ValueError, match="rows of state has length 2, expected 3"):
        kernel.update(params, params, np.zeros((1, 2)), step=1, lr=0.1)
    with pytest.raises(ValueError, match="state has length 0, expected 1"):
        kernel.update(params, params, np.zeros((0, 3)), step=1, lr=0.1)
    with pytest.raises(ValueError, match="rows of state must be contiguous"):
        kernel.update(params, params, np.zeros((3, 2)).T[:1], step=1, lr=0.1)
    with pytest.raises(ValueError, match="step counts updates from 1, got 0"):
        kernel.update(params, params, np.zeros((1, 3)), step=0, lr=0.1)
    with pytest.raises(ValueError, match="there is no optimizer 'adamw'"):
        UpdateKernel("adamw")
