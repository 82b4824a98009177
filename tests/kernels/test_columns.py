"""The kernel that numbers columns anew, against NumPy."""

import numpy as np
import pytest

from dps._kernels.columns import renumber


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(("n", "total"), [(0, 0), (0, 5), (1, 1), (50, 7), (1000, 100_000)])
def test_columns_are_those_of_unique(n, total, dtype):
    indices = np.random.default_rng(n).integers(0, max(1, total), n).astype(dtype)
    indices.flags.writeable = False
    numbers, among = renumber(indices, total)
    expected, places = np.unique(indices, return_inverse=True)
    np.testing.assert_array_equal(numbers, expected)
    np.testing.assert_array_equal(among, places)
    assert among.dtype == dtype


@pytest.mark.parametrize("column", [-1, 5, 2**31 - 1])
def test_a_column_outside_is_named(column):
    indices = np.array([0, 4, column], np.int32)
    with pytest.raises(IndexError, match=rf"stored value 2 has column {column}, outside \[0, 5\)"):
        renumber(indices, 5)
