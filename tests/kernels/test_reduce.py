"""Reduction kernels against NumPy sums in rank order."""

import compiled as kernels
import numpy as np
import pytest
from cases import pairs

LENGTHS = [0, 1, 7, 64, 1000, 5000]
DTYPES = [np.float32, np.float64]


def summed(slots, rows):
    total = None
    for slot, count in zip(slots, rows, strict=True):
        if count:
            total = slot.copy() if total is None else total + slot
    return np.zeros(slots.shape[1], slots.dtype) if total is None else total


def example(ranks, n, dtype):
    wide = np.random.default_rng(0).normal(size=(ranks, n + 3)).astype(dtype)
    slots = wide[:, :n]
    slots.flags.writeable = False
    return slots


@pairs(
    dtype=DTYPES,
    n=LENGTHS,
    rows=[[4], [4, 5, 6], [0, 5, 0, 7], [0, 0], []],
)
def test_slots_are_summed_in_rank_order_bit_for_bit(dtype, n, rows):
    slots, counts = example(len(rows), n, dtype), np.array(rows, np.int64)
    start, stop = n // 3, n
    expected = summed(slots, rows)[start:stop]
    out = np.full(stop - start, np.nan, dtype)
    kernels.mean_of_slots(slots, counts, start, stop, out)
    assert out.tobytes() == expected.tobytes()
    kernels.mean_of_slots(slots, counts, start, stop, out, float(sum(rows)))
    if any(rows):
        expected = expected / dtype(sum(rows))
    assert out.tobytes() == expected.tobytes()


def test_a_mean_over_no_rows_is_zero():
    slots, out = np.ones((2, 3)), np.full(3, np.nan)
    kernels.mean_of_slots(slots, np.zeros(2, np.int64), 0, 3, out, 0.0)
    np.testing.assert_array_equal(out, 0)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_divide_is_numpy_division(dtype, n):
    src = example(1, n, dtype)[0]
    out = np.empty(n, dtype)
    kernels.divide(src, 3.0, out)
    assert out.tobytes() == (src / dtype(3)).tobytes()


@pairs(
    dtype=DTYPES,
    n=LENGTHS,
    value=[1.0, np.nan, np.inf, -np.inf, "largest"],
)
def test_what_is_not_finite_is_told_wherever_it_is(dtype, n, value):
    value = np.finfo(dtype).max if value == "largest" else value
    for at in {0, n // 2, n - 1} & set(range(n)):
        x = example(1, n, dtype)[0].copy()
        x[at] = value
        x.flags.writeable = False
        copy = np.zeros(n, dtype)
        assert kernels.all_finite(x) is bool(np.isfinite(value))
        assert kernels.copy_finite(x, copy) is bool(np.isfinite(value))
        assert copy.tobytes() == x.tobytes()
    assert kernels.all_finite(np.zeros(n, dtype)) is True
