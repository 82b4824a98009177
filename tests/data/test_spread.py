"""The spread of columns in a sample of their rows, against NumPy on all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st
from scipy.sparse import csr_array

from dps.data.survey.spread import Spread, some_of


def columns(rows: int) -> Any:
    """Numbers far from zero, large, small, a rare one, a constant one, and none."""
    rng = np.random.default_rng(rows)
    return np.c_[
        rng.normal(size=rows) + 100, 1e3 * rng.normal(size=rows), 1e-3 * rng.normal(size=rows),
        rng.random(rows) < 0.01, np.full(rows, 7.0), np.zeros(rows),
    ]  # fmt: skip


FORMS = {
    "array": lambda X: X,
    "float32": lambda X: X.astype(np.float32),
    "fortran": np.asfortranarray,
    "frame": pd.DataFrame,
    "csr": csr_array,
}


@pytest.mark.parametrize("form", FORMS)
def test_means_and_deviations_are_those_of_all_rows_where_all_are_looked_at(form: str) -> None:
    X = columns(2000)
    parts = [FORMS[form](X[:300]), FORMS[form](X[300:])]
    sums = [Spread.of(part, "f4" if form == "float32" else "f8") for part in parts]
    found = Spread.merge(sums)
    centre = found.centre("f8")
    np.testing.assert_allclose(centre[[0, 4]], X[:, [0, 4]].mean(axis=0), rtol=1e-5)
    assert centre[[1, 2, 3, 5]].tolist() == [0.0] * 4  # where zero is as good
    scale = found.scale(centre, "f8")
    np.testing.assert_allclose(scale[:3], X[:, :3].std(axis=0), rtol=1e-4)
    assert scale[3] == 1.0  # of ones, however rare
    assert scale[4] == 7.0
    assert scale[2] < scale[5] < scale[1]  # nothing is known of it


def test_about_zero_it_is_the_size_of_what_is_not_zero() -> None:
    X = csr_array(np.array([[0.0, 3.0], [0.0, 5.0], [2.0, 0.0]]))
    X.data[0] = 0.0  # stored, and a zero all the same
    found = Spread.merge([Spread.of(X, "f8")])
    np.testing.assert_allclose(found.scale(None, "f8"), [2.0, 5.0])


def test_a_sample_of_many_rows_comes_from_all_over() -> None:
    rows = 200_000
    X = np.c_[np.arange(rows), np.random.default_rng(0).normal(size=rows), np.ones((rows, 18))]
    sums = Spread.of(X, "f8")
    assert sums.rows < rows / 4
    found = Spread.merge([sums])
    centre = found.centre("f8")
    np.testing.assert_allclose(centre[0], rows / 2, rtol=0.01)
    scale = found.scale(centre, "f8")
    np.testing.assert_allclose(scale[:2], X[:, :2].std(axis=0), rtol=0.02)


@given(st.integers(1, 3000), st.integers(1, 3000))
def test_no_row_of_a_sample_comes_twice(rows: int, most: int) -> None:
    some = some_of(rows, min(rows, most))
    assert len(some) == min(rows, most)
    assert (np.diff(some) > 0).all()
    assert 0 <= some[0] <= some[-1] < rows


def test_what_rounding_leaves_of_a_constant_column_is_no_deviation() -> None:
    X = np.full((1000, 1), 1e6 + 0.1, np.float32)
    found = Spread.merge([Spread.of(X, "f4")])
    assert found.scale(found.centre("f4"), "f4") == np.float32(1e6 + 0.1)


def test_wide_rows_are_summed_up_by_the_columns_that_occur() -> None:
    X = csr_array((np.ones(3), ([0, 1, 2], [5, 5, 90_000])), shape=(3, 100_000))
    sums = Spread.of(X, "f8")
    assert sums.columns.tolist() == [5, 90_000]
    assert sums.count.tolist() == [2.0, 1.0]


@pytest.mark.parametrize("form", ["array", "csr"])
@pytest.mark.parametrize("value", [1e-200, 1e200, 1e308])
def test_a_scale_is_always_a_positive_number(value: float, form: str) -> None:
    X = np.c_[np.full((40, 4), 3.0), np.zeros(40), value * (np.arange(1.0, 41) / 40)]
    spread = Spread.merge([Spread.of(FORMS[form](X), "f8")])
    for centre in (None, spread.centre("f8")):
        scale = spread.scale(centre, "f8")
        assert np.isfinite(scale).all()
        assert (scale > 0).all()
        assert centre is None or np.isfinite(centre).all()
