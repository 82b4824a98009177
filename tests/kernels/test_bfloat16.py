"""Vectors as bfloat16 against another library's, and rounding errors that are carried on."""

from __future__ import annotations

from typing import Any

import compiled as kernels
import numpy as np
import pytest
from cases import pairs

LENGTHS = [0, 1, 7, 64, 1000]
DTYPES = ["float32", "float64"]
LARGEST = 3.3895313892515355e38


def drawn(n: int, dtype: str, seed: int = 0) -> np.ndarray:
    """Numbers of all magnitudes, not to be written."""
    rng = np.random.default_rng(seed)
    made = (rng.normal(size=n) * 10.0 ** rng.integers(-30, 30, size=n)).astype(dtype)
    made.flags.writeable = False
    return made


def narrow(x: np.ndarray, error: np.ndarray | None = None) -> np.ndarray:
    out = np.empty(len(x), np.uint16)
    kernels.narrowed(x, np.zeros_like(x) if error is None else error, out)
    return out


def wide(x: np.ndarray, dtype: str = "float32") -> np.ndarray:
    out = np.full(len(x), np.nan, dtype)
    kernels.widened(x, out, False)
    return out


def nearest(x: Any) -> np.ndarray:
    """The nearest bfloat16, ties to even, written out."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)).astype(
        np.uint16
    )


def test_each_bfloat16_is_widened_to_its_bits_and_narrowed_to_itself() -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    floats = wide(every)
    np.testing.assert_array_equal(floats.view(np.uint32), every.astype(np.uint32) << 16)
    same = ~np.isnan(floats)
    np.testing.assert_array_equal(wide(every, "float64")[same], floats[same])
    np.testing.assert_array_equal(wide(narrow(floats))[same], floats[same])  # but for -0
    assert np.isnan(wide(narrow(floats))[~same]).all()


def test_rounding_is_that_of_another_library() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    bits = np.random.default_rng(0).integers(0, 1 << 32, 200_000, dtype=np.uint32)
    halves = np.arange(0, 1 << 32, 1 << 16, dtype=np.uint64) + 0x8000  # between two neighbours
    x = np.concatenate([bits, halves.astype(np.uint32)]).view(np.float32)
    x = x[np.abs(x) <= LARGEST]  # neither NaN nor infinite
    np.testing.assert_array_equal(narrow(x), x.astype(bfloat16).view(np.uint16))


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_finite_stays_finite_and_what_is_not_does_not(dtype: str) -> None:
    largest = float(np.finfo(np.float32).max)
    x = np.array([largest, -largest, LARGEST, np.inf, -np.inf, np.nan, 0.0], dtype)
    wanted = [LARGEST, -LARGEST, LARGEST, np.inf, -np.inf, np.nan, 0.0]
    got = wide(narrow(x), dtype)
    np.testing.assert_array_equal(got, np.array(wanted, dtype))
    patterns = np.array([0x7F800001, 0xFFFFFFFF, 0x7FFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(wide(narrow(patterns))).all()


@pairs(dtype=DTYPES, n=LENGTHS)
def test_what_rounding_leaves_over_is_in_the_next_vector(dtype: str, n: int) -> None:
    error = np.zeros(n, dtype)
    for step in range(5):
        x, before = drawn(n, dtype, step), error.copy()
        out = narrow(x, error)
        np.testing.assert_array_equal(out, nearest(x + before))
        np.testing.assert_array_equal(error, x + before - wide(out, dtype))


@pairs(dtype=DTYPES, n=LENGTHS)
def test_two_sides_that_add_the_same_changes_hold_the_same_bits(dtype: str, n: int) -> None:
    ours, theirs = (drawn(n, dtype, 99).copy() for _ in range(2))
    for step in range(5):
        x, before = drawn(n, dtype, step), ours.copy()
        out = np.empty(n, np.uint16)
        kernels.narrowed_change(x, ours, out)
        np.testing.assert_array_equal(out, nearest(x - before))
        kernels.widened(out, theirs, True)
        assert theirs.tobytes() == ours.tobytes() == (before + wide(out, dtype)).tobytes()
    for _ in range(30):  # of what no longer changes all bits arrive in the end
        kernels.narrowed_change(x, ours, out)
    np.testing.assert_allclose(ours, x, rtol=0, atol=1e-40)
