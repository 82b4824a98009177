"""Lazy updates against the dense loop: the same updates, with gradients of zero in between."""

import numpy as np
import pytest
from cases import pairs
from compiled import lazy_apply, lazy_flush, lazy_gather
from hypothesis import example, given, strategies as st

from dps._kernels.lazy import LazyUpdate
from dps._kernels.optimizers import UpdateKernel

SIZE, STEPS = 40, 60
KERNELS = {
    "sgd": (UpdateKernel("sgd"), 0),
    "momentum": (UpdateKernel("momentum", momentum=0.9), 1),
    "nesterov": (UpdateKernel("momentum", momentum=0.5, nesterov=True), 1),
    "adagrad": (UpdateKernel("adagrad"), 1),
    "scaled_adagrad": (UpdateKernel("scaled_adagrad"), 2),
}
PENALTIES = [(0.0, 0.0), (0.02, 0.0), (0.0, 0.1), (0.02, 0.1), (0.3, 30.0)]
RATES = {"constant": np.full(STEPS, 0.1), "falling": 0.3 / (1 + np.arange(STEPS))}
RUNS = [(0, 30, True), (30, 33, False), (33, SIZE, True)]


def random_start(rows, dtype, rng):
    params = rng.standard_normal(SIZE).astype(dtype)
    params[::5] = 0
    state = np.full((rows, SIZE), 0.1, dtype)
    state[1:, 1::3] = 0  # of some the unit, too
    return params, state


def dense_step(kernel, params, grad, state, step, lr, l1, l2):
    for first, last, penalised in RUNS:
        kernel.update(
            params[first:last], grad[first:last], state[:, first:last], step=step, lr=lr,
            l1=l1 * penalised, l2=l2 * penalised,
        )  # fmt: skip


@pairs(name=KERNELS, penalty=PENALTIES, falling=[False, True], dtype=[np.float32, np.float64])
def test_what_is_read_written_and_flushed_is_what_the_dense_loop_has(name, penalty, falling, dtype):
    (kernel, rows), (l1, l2) = KERNELS[name], penalty
    rates = RATES["falling" if falling else "constant"]
    rng = np.random.default_rng(0)
    params, state = random_start(rows, dtype, rng)
    expected, expected_state = params.copy(), state.copy()
    since = np.zeros(SIZE, np.int64)
    lazy = LazyUpdate(kernel, l1, l2, RUNS, dtype == np.float32)
    lazy.begin(rates, 0)
    exact = {"rtol": 2e-5 if dtype == np.float32 else 1e-11, "atol": 1e-7}
    for now, lr in enumerate(rates, start=1):
        keys = rng.permutation(SIZE)[: rng.integers(0, 6)].astype(np.int64)
        seen = np.empty(len(keys), dtype)
        lazy_gather(lazy, params, state, since, keys, seen, now=now - 1)
        np.testing.assert_allclose(seen, expected[keys], **exact)
        values = rng.standard_normal(len(keys)).astype(dtype)
        assert lazy_apply(lazy, params, state, since, keys, values, now=now)
        grad = np.zeros(SIZE, dtype)
        grad[keys] = values
        dense_step(kernel, expected, grad, expected_state, now, float(lr), l1, l2)
        np.testing.assert_allclose(params[keys], expected[keys], **exact)
    assert lazy_flush(lazy, params, state, since, 0, 20, now=STEPS)
    assert lazy_flush(lazy, params, state, since, 20, SIZE, now=STEPS)
    np.testing.assert_allclose(params, expected, **exact)
    np.testing.assert_allclose(state, expected_state, **exact)
    np.testing.assert_array_equal(since, STEPS)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [2, 5, 300])
@pytest.mark.parametrize(("kernel", "rows"), KERNELS.values(), ids=KERNELS)
def test_keys_of_rows_have_the_bits_of_keys_of_each_element(kernel, rows, width, dtype):
    rng = np.random.default_rng(width)
    n, runs = 10, [(0, 3 * width + 1, True), (3 * width + 1, 7 * width - 1, False)]
    runs.append((7 * width - 1, n * width, True))
    lazy = LazyUpdate(kernel, 0.02, 0.1, runs, dtype == np.float32)
    lazy.begin(RATES["falling"][:20], 0)
    params = np.tile(rng.standard_normal(n * width).astype(dtype), (2, 1))
    state = np.tile(np.full((rows, n * width), 0.1, dtype), (2, 1, 1))
    by_row, by_element = np.zeros(n, np.int64), np.zeros(n * width, np.int64)
    for now in range(1, 21):
        keys = rng.permutation(n)[: rng.integers(0, 4)].astype(np.int64)
        elements = (keys[:, None] * width + np.arange(width)).ravel()
        values = rng.standard_normal(len(elements)).astype(dtype)
        seen = np.empty((2, len(elements)), dtype)
        for call, vectors in ((lazy_gather, seen), (lazy_apply, [values, values])):
            step = now - (call == lazy_gather)
            call(lazy, params[0], state[0], by_row, keys, vectors[0], now=step)
            call(lazy, params[1], state[1], by_element, elements, vectors[1], now=step)
        np.testing.assert_array_equal(*seen)
    assert lazy_flush(lazy, params[0], state[0], by_row, 0, n * width, now=20)
    assert lazy_flush(lazy, params[1], state[1], by_element, 0, n * width, now=20)
    np.testing.assert_array_equal(*params)
    np.testing.assert_array_equal(*state)
    np.testing.assert_array_equal(by_row, 20)


@pytest.mark.parametrize("name", ["sgd", "adagrad", "scaled_adagrad"])
def test_without_a_penalty_the_bits_are_those_of_the_dense_loop(name):
    kernel, rows = KERNELS[name]
    rng = np.random.default_rng(1)
    params, state = random_start(rows, np.float64, rng)
    expected, expected_state = params.copy(), state.copy()
    since = np.zeros(SIZE, np.int64)
    lazy = LazyUpdate(kernel, 0.0, 0.0, RUNS, False)
    lazy.begin(RATES["falling"], 0)
    for now, lr in enumerate(RATES["falling"], start=1):
        keys = rng.permutation(SIZE)[:3].astype(np.int64)
        grad = np.zeros(SIZE)
        grad[keys] = rng.standard_normal(3)
        lazy_apply(lazy, params, state, since, keys, grad[keys], now=now)
        dense_step(kernel, expected, grad, expected_state, now, lr, 0.0, 0.0)
    lazy_flush(lazy, params, state, since, 0, SIZE, now=STEPS)
    np.testing.assert_array_equal(params, expected)
    np.testing.assert_array_equal(state, expected_state)


def test_updates_are_counted_over_the_life_of_the_parameters():
    rng = np.random.default_rng(2)
    params = rng.standard_normal(SIZE)
    life = 10**12
    state, since = np.zeros((0, SIZE)), np.full(SIZE, life + 50)
    lazy = LazyUpdate(UpdateKernel("sgd"), 0.0, 0.5, RUNS, False)
    lazy.begin(RATES["falling"], life)
    out, keys = np.empty(SIZE), np.arange(SIZE, dtype=np.int64)
    lazy_gather(lazy, params, state, since, keys, out, now=life + 60)
    shrink = np.where((keys >= 30) & (keys < 33), 1.0, np.prod(1 + 0.5 * RATES["falling"][50:]))
    np.testing.assert_allclose(out, params / shrink, rtol=1e-13)


def test_long_epochs_with_strong_penalties_neither_overflow_nor_underflow():
    n = 20_000
    lazy = LazyUpdate(UpdateKernel("sgd"), 0.0, 1.0, [(0, 2, True)], False)
    lazy.begin(np.full(n, 0.1), 0)
    params, state = np.ones(2), np.zeros((0, 2))
    since, out = np.array([0, n - 5]), np.empty(2)
    lazy_gather(lazy, params, state, since, np.array([0, 1], np.int64), out, now=n)
    np.testing.assert_allclose(out, [0.0, 1.1**-5], rtol=1e-12)


def test_lazy_adam_moves_only_what_is_touched_and_pays_missed_penalties():
    kernel = UpdateKernel("adam", beta1=0.9, beta2=0.99, lazy=True)
    lazy = LazyUpdate(kernel, 0.0, 0.1, [(0, 2, True)], False)
    lazy.begin(np.full(10, 0.05), 0)
    params, state, since = np.ones(2), np.full((2, 2), 0.3), np.zeros(2, np.int64)
    alone, alone_state = params[:1].copy(), state[:, :1].copy()
    key = np.array([0], np.int64)
    for now in (1, 2, 3):
        lazy_apply(lazy, params, state, since, key, np.ones(1), now=now)
        kernel.update(alone, np.ones(1), alone_state, step=now, lr=0.05, l1=0.0, l2=0.1)
    assert (params[1], state[0, 1], state[1, 1]) == (1.0, 0.3, 0.3)
    assert params[0] == alone[0]
    lazy_flush(lazy, params, state, since, 0, 2, now=3)
    size = 0.05 / (np.sqrt(0.3 / (1 - 0.99**3)) + 1e-8)
    np.testing.assert_allclose(params[1], (1 + 0.1 * size) ** -3, rtol=1e-12)
    assert (state[0, 1], state[1, 1]) == (0.3, 0.3)


def test_a_dense_adam_is_refused():
    with pytest.raises(ValueError, match="adam has no lazy updates"):
        LazyUpdate(UpdateKernel("adam"), 0.0, 0.0, RUNS, False)
    with pytest.raises(ValueError, match="sgd has no lazy updates"):
        LazyUpdate(UpdateKernel("sgd").averaged(0), 0.0, 0.0, RUNS, False)


def test_an_overflow_is_seen():
    lazy = LazyUpdate(UpdateKernel("momentum", momentum=0.9), 0.0, 0.0, RUNS, False)
    lazy.begin(np.full(3, 1e10), 0)
    params, state, since = np.zeros(SIZE), np.full((1, SIZE), 1e305), np.zeros(SIZE, np.int64)
    assert not lazy_flush(lazy, params, state, since, 0, SIZE, now=3)


SHAPES = {
    "constant": lambda i: 0.1 + 0.0 * i,
    "falling": lambda i: 0.3 / np.sqrt(1 + i),
    "rising": lambda i: 0.2 * i / len(i),  # from zero
    "waves": lambda i: np.where(i // 50 % 2, 0.0, 0.1),
}
GAPS = st.one_of(st.integers(0, 5), st.integers(100, 4000))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(
    name=st.sampled_from(["sgd", "momentum", "nesterov", "adagrad"]),
    momentum=st.sampled_from([0.0, 0.5, 0.9, 0.99]),
    penalty=st.sampled_from([*PENALTIES, (1e-4, 1e-3), (0.02, 1e-12)]),
    shape=st.sampled_from(list(SHAPES)),
    base=st.sampled_from([0, 3]),
    gaps=st.lists(GAPS, min_size=1, max_size=5),
    seed=st.integers(0, 2**32 - 1),
)
@example("momentum", 0.99, (0.0, 0.0), "rising", 0, [0, 3000], 0)
@example("momentum", 0.99, (0.02, 0.0), "waves", 3, [60, 3000], 1)
@example("nesterov", 0.99, (1e-4, 1e-3), "falling", 0, [3000, 4000], 2)
@example("sgd", 0.0, (0.02, 1e-12), "constant", 0, [5, 4000], 3)
@example("adagrad", 0.0, (0.02, 1e-12), "falling", 0, [5, 4000], 4)
def test_any_sequence_ends_where_the_dense_loop_does(
    dtype, name, momentum, penalty, shape, base, gaps, seed
):
    """Gaps are the steps before, between and behind gradients; the loop runs in double."""
    options = {"momentum": {"momentum": momentum}, "nesterov": {"momentum": momentum}}.get(name, {})
    kind = "momentum" if options else name
    kernel = UpdateKernel(kind, nesterov=name == "nesterov", **options)
    rng = np.random.default_rng(seed)
    params, state = random_start(int(name != "sgd"), dtype, rng)
    expected, expected_state = params.astype(float), state.astype(float)
    since = np.full(SIZE, base)
    steps = sum(gaps) + len(gaps) - 1
    rates = SHAPES[shape](np.arange(steps))
    lazy = LazyUpdate(kernel, *penalty, RUNS, dtype == np.float32)
    lazy.begin(np.append(rng.random(base), rates), 0)
    scale = np.abs(expected)
    touched = set(np.cumsum(np.add(gaps, 1))[:-1])
    for step, lr in enumerate(rates, start=1):
        grad = np.zeros(SIZE)
        if step in touched:
            keys = rng.permutation(SIZE)[:20].astype(np.int64)
            values = rng.standard_normal(20).astype(dtype)
            grad[keys] = values
            assert lazy_apply(lazy, params, state, since, keys, values, now=base + step)
        dense_step(kernel, expected, grad, expected_state, step, lr, *penalty)
        np.maximum(scale, np.abs(expected), out=scale)
    assert lazy_flush(lazy, params, state, since, 0, SIZE, now=base + steps)
    error = 2e-4 if dtype == np.float32 else 1e-11
    np.testing.assert_array_less(np.abs(params - expected), error * scale + 1e-30)
    np.testing.assert_allclose(state, expected_state, rtol=error, atol=1e-30)


def test_a_step_of_any_size_is_no_step_where_none_was_missed():
    """Without an epsilon, Adam's proximal step is infinite before the first gradient."""
    kernel = UpdateKernel("adam", epsilon=0.0, lazy=True)
    lazy = LazyUpdate(kernel, 0.1, 0.0, [(0, 2, True)], False)
    lazy.begin(np.full(2, 0.05), 0)
    params, state, since = np.ones(2), np.zeros((2, 2)), np.zeros(2, np.int64)
    key, out = np.array([0], np.int64), np.empty(1)
    lazy_gather(lazy, params, state, since, key, out, now=0)
    assert out[0] == 1.0
    assert lazy_apply(lazy, params, state, since, key, np.ones(1), now=1)
    alone, alone_state = np.ones(1), np.zeros((2, 1))
    kernel.update(alone, np.ones(1), alone_state, step=1, lr=0.05, l1=0.1, l2=0.0)
    assert params[0] == alone[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_penalty_leaves_no_subnormal_number_and_the_thread_may_have_them_afterwards(dtype):
    smallest = np.finfo(dtype).tiny
    lazy = LazyUpdate(UpdateKernel("sgd"), 0.0, 1.0, [(0, 3, True)], dtype == np.float32)
    lazy.begin(np.full(2, 0.1), 0)
    params, state = np.full(3, smallest, dtype), np.zeros((0, 3), dtype)
    since, out = np.zeros(3, np.int64), np.ones(1, dtype)
    lazy_gather(lazy, params, state, since, np.array([0]), out, now=1)
    lazy_apply(lazy, params, state, since, np.array([1]), np.zeros(1, dtype), now=1)
    np.testing.assert_array_equal(np.append(out, params), [0, smallest, 0, smallest])
    lazy_flush(lazy, params, state, since, 0, 3, now=2)
    np.testing.assert_array_equal(params, 0)
    assert smallest / dtype(2) > 0
