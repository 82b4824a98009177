"""A pass adds models in kernels and in Python up alike, and says that it is alive meanwhile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from dps._kernels.linear_gradient import LinearGradient
from dps._runtime.python import PythonGradient
from dps.data.feed.blocks import Block, features_of
from dps.errors import StoppedError
from dps.losses import LogLoss
from dps.models.linear import LinearModel
from dps.training.lbfgs.passes import GradientSum, Pass, StreamedPass
from dps.training.replica.steps import gradient_of

FEATURES = 3
SUMMED = 1 << 16


def blocks(kind: str, dtype: str, lengths: list[int]) -> list[Block]:
    rng = np.random.default_rng(0)
    made = []
    for number, rows in enumerate(lengths):
        X = rng.normal(size=(rows, FEATURES)).astype(dtype)
        if kind == "csr":
            X = sp.csr_array(np.where(rng.random(X.shape) < 0.4, X, 0).astype(dtype))
        y = rng.choice([-1.0, 1.0], size=(rows, 1)).astype(dtype)
        weight = rng.random(rows).astype(dtype) if number % 2 else None
        made.append(Block(number, features_of(X, dtype), y, weight, 0, rows))
    return made


def model(dtype: str = "float32") -> LinearModel:
    return LinearModel(FEATURES, 1, LogLoss(), dtype=dtype)


def sum_of(gradient: Any, beat: Any = lambda: None) -> GradientSum:
    return GradientSum(gradient, SUMMED, beat, 0.0)


def added_up(how: Any, params: Any, parts: list[tuple[Any, ...]]) -> tuple[float, Any]:
    how.begin(params)
    for part in parts:
        how.add(*part)
    return how.end()


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["dense", "csr"])
def test_the_kernel_and_python_have_the_same_bits(kind: str, dtype: str, shuffled: bool) -> None:
    # Below, at and above the rows of one sum; blocks of which a rank has some rows alone.
    some = blocks(kind, dtype, [100, 1 << 16, 70_000, 5, 150_000])
    rng = np.random.default_rng(1)
    parts: list[tuple[Any, ...]] = [
        (b, rng.permutation(len(b.y))[: len(b.y) // 2] if shuffled else None, 0, len(b.y) // 2)
        for b in some
    ]
    params = rng.normal(size=FEATURES + 1).astype(dtype)
    linear = model(dtype)
    by_kernel = sum_of(gradient_of(linear))
    in_python = sum_of(PythonGradient(linear, 1 << 16))
    for _ in range(2):  # nothing is left of the pass before
        loss, gradient = added_up(by_kernel, params, parts)
        expected_loss, expected = added_up(in_python, params, parts)
        assert loss == expected_loss
        np.testing.assert_array_equal(gradient, expected)
        assert gradient.dtype == dtype
        for passes in (Pass(by_kernel, parts), StreamedPass(by_kernel, lambda: parts, 9)):
            again, sums = passes.sums(params)
            assert again == loss
            np.testing.assert_array_equal(sums, expected)


def test_sums_of_many_rows_are_added_in_double() -> None:
    n = 40 << 16
    X = np.full((n, 1), 0.1, np.float32)
    block = Block(0, features_of(X, "f4"), np.full((n, 1), -1, np.float32), None, 0, n)
    linear = LinearModel(1, 1, LogLoss(), fit_intercept=False, dtype="f4")
    for how in map(sum_of, (gradient_of(linear), PythonGradient(linear, 8192))):
        gradient = added_up(how, np.zeros(1, np.float32), [(block, None, 0, n)])[1]
        # In float32 all through the error is 2.8e-3.
        assert gradient[0] == pytest.approx(0.05 * n, rel=1e-4)


@pytest.mark.parametrize("kind", [gradient_of, lambda model: PythonGradient(model, 9)])
def test_a_long_pass_beats_and_hears_that_it_was_stopped(kind: Any) -> None:
    beats = []

    def beat() -> None:
        beats.append(1)
        if len(beats) == 3:
            raise StoppedError("the fit was stopped")

    linear = model()
    how = sum_of(kind(linear), beat)
    block = blocks("dense", "float32", [200_000])[0]
    with pytest.raises(StoppedError):
        added_up(how, linear.initial(), [(block, None, 0, 200_000)])
    assert len(beats) == 3


def test_what_a_kernel_cannot_add_is_an_error() -> None:
    linear = model()
    how = sum_of(gradient_of(linear))
    block = blocks("dense", "float32", [10])[0]
    with pytest.raises(RuntimeError, match="begin a pass"):
        how.add(block, None, 0, 10)
    with pytest.raises(ValueError, match="params has length 3, expected 4"):
        how.begin(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="params must be contiguous, aligned float32, got float64"):
        how.begin(np.zeros(4))
    how.begin(linear.initial())
    with pytest.raises(ValueError, match=r"\[0, 11\) is not inside 10 rows"):
        how.add(block, None, 0, 11)
    with pytest.raises(ValueError, match="y must be float32"):
        how.add(blocks("dense", "float64", [10])[0], None, 0, 10)


def test_what_a_model_in_python_raises_ends_the_pass() -> None:
    class Broken(LinearModel):
        def loss_gradient(self, *args: Any, **options: Any) -> float:
            raise OSError("no such disk")

    block = blocks("dense", "float32", [10])[0]
    how = sum_of(gradient_of(Broken(FEATURES, 1, LogLoss(), dtype="float32")))
    for _ in range(2):
        with pytest.raises(OSError, match="no such disk"):
            added_up(how, np.zeros(FEATURES + 1, np.float32), [(block, None, 0, 10)])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["dense", "csr"])
def test_scaled_features_add_up_over_blocks_of_any_length(kind: str, dtype: str) -> None:
    some = blocks(kind, dtype, [5, 1, 40, 30])
    parts: list[tuple[Any, ...]] = [(b, None, 0, len(b.y)) for b in some]
    scale, rng = np.array([0.5, 2.0, 8.0]), np.random.default_rng(1)
    first, params = rng.normal(size=(2, FEATURES + 1)).astype(dtype)
    single = dtype == "float32"
    gradient = LinearGradient(FEATURES, 1, LogLoss().native, True, single, scale=scale)
    plain = np.concatenate([params[:-1] / scale, params[-1:]]).astype(dtype)
    loss, expected = added_up(sum_of(gradient_of(model(dtype))), plain, parts)
    expected[:-1] /= scale
    for most in (7, SUMMED):  # rows after which the sum goes on in double
        how = GradientSum(gradient, most, lambda: None, 9.0)
        how.begin(first)
        how.add(*parts[0])  # a pass that is given up leaves nothing
        found = added_up(how, params, parts)
        assert found[0] == pytest.approx(loss, rel=1e-5)
        np.testing.assert_allclose(found[1], expected, rtol=2e-4, atol=1e-5)
