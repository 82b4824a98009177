"""Loss kernels against the definitions in NumPy."""

import pickle

import numpy as np
import pytest
from cases import pairs
from scipy.special import log_softmax

from dps._kernels.losses import LossKernel

LENGTHS = [0, 1, 7, 64, 1000]
DTYPES = [np.float32, np.float64]
EPSILON = 0.25


def margin(function):
    return lambda y, raw: function(y * raw)


MARGINS = {
    "log": margin(lambda z: np.logaddexp(0, -z)),
    "hinge": margin(lambda z: np.maximum(0, 1 - z)),
    "squared_hinge": margin(lambda z: np.maximum(0, 1 - z) ** 2),
    "modified_huber": margin(lambda z: np.where(z >= -1, np.maximum(0, 1 - z) ** 2, -4 * z)),
}
RESIDUALS = {
    "squared": lambda y, raw: 0.5 * (raw - y) ** 2,
    "huber": lambda y, raw: np.where(
        np.abs(raw - y) <= EPSILON,
        0.5 * (raw - y) ** 2,
        EPSILON * np.abs(raw - y) - 0.5 * EPSILON**2,
    ),
    "epsilon_insensitive": lambda y, raw: np.maximum(0, np.abs(raw - y) - EPSILON),
    "quantile": lambda y, raw: np.where(y > raw, EPSILON, EPSILON - 1) * (y - raw),
    "poisson": lambda y, raw: np.exp(raw) - y * (raw + EPSILON),
    "gamma": lambda y, raw: raw + EPSILON + y * np.exp(-raw),
}
LOSSES = {**MARGINS, **RESIDUALS}


def run(name, y, raw, weight, out):
    return LossKernel(name, EPSILON).evaluate(y, raw, weight, out)


def example(name, n, k, dtype):
    rng = np.random.default_rng(0)
    raw = (3 * rng.normal(size=(n, k))).astype(dtype)
    y = (rng.choice([-1, 1], (n, k)) if name in MARGINS else rng.normal(size=(n, k))).astype(dtype)
    weight = rng.uniform(0, 2, n).astype(dtype)
    for array in (raw, y, weight):
        array.flags.writeable = False
    return y, raw, weight


@pairs(
    name=LOSSES,
    dtype=DTYPES,
    n=LENGTHS,
    k=[1, 3],
    weighted=[False, True],
)
def test_kernel_is_the_definition_and_its_slope(name, dtype, n, k, weighted):
    y, raw, weight = example(name, n, k, dtype)
    out = np.full((n, k), np.nan, dtype)
    total = run(name, y, raw, weight if weighted else None, out)
    y, raw = y.astype(float), raw.astype(float)
    scale = weight[:, None].astype(float) if weighted else np.ones((n, 1))
    loss = LOSSES[name]
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    assert total == pytest.approx((scale * loss(y, raw)).sum(), rel=tolerance, abs=tolerance)
    slope = scale * (loss(y, raw + 1e-6) - loss(y, raw - 1e-6)) / 2e-6
    np.testing.assert_allclose(out, slope, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MARGINS)
def test_one_column_of_codes_is_one_versus_rest(name, dtype):
    _, raw, weight = example(name, 64, 3, dtype)
    codes = np.random.default_rng(1).integers(0, 3, (64, 1)).astype(dtype)
    signs = np.where(codes == np.arange(3), 1, -1).astype(dtype)
    expected, actual = np.empty_like(raw), np.empty_like(raw)
    wanted = run(name, signs, raw, weight, expected)
    assert run(name, codes, raw, weight, actual) == wanted
    assert actual.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_log_loss_is_stable_far_from_zero(dtype):
    raw = np.array([[1e4], [-1e4], [50.0], [-50.0]], dtype)
    out = np.empty_like(raw)
    total = run("log", np.ones_like(raw), raw, None, out)
    assert total == pytest.approx(1e4 + 50, rel=1e-6)
    np.testing.assert_allclose(out.ravel(), [0, -1, -np.exp(-50.0), -1], rtol=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", RESIDUALS)
def test_a_raw_output_that_is_not_finite_shows_in_the_sum(name, value):
    raw = np.array([[0.0], [value]])
    assert not np.isfinite(run(name, np.zeros_like(raw), raw, None, np.empty_like(raw)))


@pytest.mark.parametrize("name", MARGINS)
def test_a_raw_output_of_nan_shows_in_the_sum(name):
    raw = np.array([[0.0], [np.nan]])
    assert np.isnan(run(name, np.ones_like(raw), raw, None, np.empty_like(raw)))


@pairs(
    dtype=DTYPES,
    n=LENGTHS,
    k=[1, 2, 10],
    weighted=[False, True],
)
def test_softmax_is_the_cross_entropy_and_its_slope(dtype, n, k, weighted):
    rng = np.random.default_rng(0)
    raw = (5 * rng.normal(size=(n, k))).astype(dtype)
    codes = rng.integers(0, k, n)
    weight = rng.uniform(0, 2, n).astype(dtype)
    out = np.empty((n, k), dtype)
    total = run("softmax", codes.astype(dtype)[:, None], raw, weight if weighted else None, out)
    scale = weight.astype(float) if weighted else np.ones(n)
    logs = log_softmax(raw.astype(float), axis=1) if n else raw.astype(float)
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    expected = -(scale * logs[np.arange(n), codes]).sum()
    assert total == pytest.approx(expected, rel=tolerance, abs=tolerance)
    slope = scale[:, None] * (np.exp(logs) - (codes[:, None] == np.arange(k)))
    np.testing.assert_allclose(out, slope, rtol=1e-4, atol=1e-6)


def test_bad_shapes_are_refused():
    raw = np.zeros((3, 2))
    with pytest.raises(ValueError, match="y has length 2, expected 3"):
        run("squared", np.zeros((2, 2)), raw, None, raw.copy())
    with pytest.raises(ValueError, match="rows of y have length 3, expected 2"):
        run("squared", np.zeros((3, 3)), raw, None, raw.copy())
    with pytest.raises(ValueError, match="weight has length 2, expected 3"):
        run("squared", raw, raw, np.ones(2), raw.copy())
    with pytest.raises(ValueError, match="rows of out has length 1, expected 2"):
        run("softmax", np.zeros((3, 1)), raw, None, np.zeros((3, 1)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_exp_and_log1p_are_good_to_a_few_units_in_the_last_place(dtype):
    # With y = -1 and one row a call, loss and slope are log1p(exp(raw)) and its logistic.
    limit = 87 if dtype == np.float32 else 700
    raw = -np.concatenate([np.geomspace(1e-8, limit, 2000), np.linspace(0, limit, 2000)])
    raw = raw.astype(dtype).reshape(-1, 1)
    out, y = np.empty_like(raw), np.full_like(raw, -1)
    losses = np.array(
        [run("log", y[i : i + 1], raw[i : i + 1], None, out[i : i + 1]) for i in range(4000)]
    )
    exact = raw.astype(np.longdouble)
    ulp = np.finfo(dtype).eps
    np.testing.assert_allclose(losses, np.log1p(np.exp(exact)).ravel().astype(float), rtol=4 * ulp)
    logistic = (np.exp(exact) / (1 + np.exp(exact))).astype(float)
    np.testing.assert_allclose(out.astype(float), logistic, rtol=5 * ulp)


@pytest.mark.parametrize("dtype", DTYPES)
def test_exp_of_what_is_too_small_is_zero(dtype):
    least = np.log(np.finfo(dtype).tiny)
    raw = np.array([[1.01 * least], [2 * least], [-1e30], [-np.inf], [0.99 * least]], dtype)
    out, y = np.empty_like(raw), np.full_like(raw, -1)
    assert run("log", y, raw, None, out) == pytest.approx(np.exp(0.99 * least))
    np.testing.assert_array_equal(out[:4], 0)
    pair = np.empty((5, 2), dtype)
    run("softmax", np.zeros((5, 1), dtype), np.hstack([0 * y, raw]), None, pair)
    np.testing.assert_array_equal(pair[:4, 1], 0)
    assert pair[4, 1] > 0


@pytest.mark.parametrize("name", ["log", "softmax"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_and_infinity_are_not_hidden(name, dtype):
    raw = np.array([[np.nan, 0], [0, 0], [1, 0]] * 50, dtype)
    out = np.empty_like(raw)
    y = np.zeros((150, 1), dtype) if name == "softmax" else np.ones_like(raw)
    assert np.isnan(run(name, y, raw, None, out))
    assert np.isnan(out[::3, 0]).all()
    assert np.isfinite(out[1::3]).all()
    raw[:] = 0
    raw[0, 0] = -np.inf
    assert run(name, y, raw, None, out) == np.inf


@pytest.mark.parametrize("dtype", DTYPES)
def test_log_loss_has_the_same_bits_alone_and_in_a_block(dtype):
    y, raw, _ = example("log", 1000, 1, dtype)
    together, alone = np.empty_like(raw), np.empty_like(raw)
    run("log", y, raw, None, together)
    for i in range(1000):
        run("log", y[i : i + 1], raw[i : i + 1], None, alone[i : i + 1])
    assert together.tobytes() == alone.tobytes()


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="there is no loss 'lof'"):
        LossKernel("lof")


def rounded(z, width):
    """``max(z, 0)`` with a parabola in place of the kink, and its slope."""
    t = np.clip(z / width + 0.5, 0, 1)
    return np.where(t < 1, width * t**2 / 2, z), t


def parts(name, y, raw):
    """The arguments of ``max(z, 0)`` in a loss, their slopes in raw, and the linear part."""
    r = raw - y
    return {
        "hinge": ([(1 - y * raw, -y)], 0 * r, 0 * r),
        "epsilon_insensitive": ([(r - EPSILON, 1), (-r - EPSILON, -1)], 0 * r, 0 * r),
        "quantile": ([(r, 1)], -EPSILON * r, 0 * r - EPSILON),
    }[name]


@pairs(
    name=["hinge", "epsilon_insensitive", "quantile"],
    dtype=DTYPES,
    n=LENGTHS,
    width=[0.1, 2.0],
)
def test_kinks_are_rounded_by_parabolas(name, dtype, n, width):
    y, raw, weight = example(name, n, 3, dtype)
    pieces, linear, slope = parts(name, y.astype(float), raw.astype(float))
    value, gap = linear, 0
    for z, way in pieces:
        near, t = rounded(z, width)
        value, slope = value + near, slope + t * way
        gap = gap + np.maximum(z, 0) - t * z
    out = np.empty_like(raw)
    total = LossKernel(name, EPSILON, width).evaluate(y, raw, weight, out)
    tolerance = 1e-4 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(total, (weight[:, None] * value).sum(), rtol=tolerance)
    np.testing.assert_allclose(out, weight[:, None] * slope, atol=10 * tolerance)
    total = LossKernel(name, EPSILON, width, gap=True).evaluate(y, raw, weight, out)
    np.testing.assert_allclose(
        total, (weight[:, None] * gap).sum(), rtol=tolerance, atol=n * tolerance
    )
    assert total >= 0


def test_only_kinks_are_rounded_and_nan_stays():
    with pytest.raises(ValueError, match="'squared' has no kink"):
        LossKernel("squared", width=0.1)
    bad, out = np.array([[np.nan]]), np.empty((1, 1))
    assert np.isnan(LossKernel("hinge", width=0.1).evaluate(np.ones((1, 1)), bad, None, out))
    again = pickle.loads(pickle.dumps(LossKernel("quantile", 0.3, 0.1, True)))
    assert again.__reduce__() == LossKernel("quantile", 0.3, 0.1, True).__reduce__()
