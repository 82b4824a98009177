"""The column table against NumPy's conversion."""

import pickle

import numpy as np
import pytest

from dps._kernels.gather import ColumnTable

CODES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
CODES += ["float32", "float64"]
LENGTHS = [0, 1, 7, 64, 1000]
DTYPES = [np.float32, np.float64]


def unaligned(array):
    raw = np.empty(array.nbytes + 1, np.uint8)[1:].view(array.dtype)
    raw[...] = array
    return raw


def columns(n):
    rng = np.random.default_rng(0)
    made = []
    for code in CODES:
        column = rng.integers(0, 100, 3 * n).astype(code)
        made += [column[:n], column[::3], column[n - 1 :: -1][:n] if n else column]
        made.append(unaligned(column[:n]))
    for column in made:
        column.flags.writeable = False
    return made


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_those_of_numpy(dtype, n, ordered):
    table, made = ColumnTable(columns(n)), columns(n)
    order = np.random.default_rng(1).permutation(n) if ordered else None
    start, stop = n // 3, n
    out = np.full((stop - start, len(made)), np.nan, dtype)
    table.rows(order, start, stop, out)
    expected = np.column_stack(made).astype(dtype)
    expected = (expected[order] if ordered else expected)[start:stop]
    np.testing.assert_array_equal(out, expected)
    assert len(table) == n
    assert table.n_columns == len(made)


def test_extreme_integers_are_converted_as_numpy_does():
    made = [np.array([np.iinfo(code).min, np.iinfo(code).max], code) for code in CODES[1:9]]
    out = np.empty((2, len(made)))
    ColumnTable(made).rows(None, 0, 2, out)
    np.testing.assert_array_equal(out, np.column_stack([c.astype(float) for c in made]))


@pytest.mark.parametrize("dtype", ["complex128", "object", "float16", ">f8", "datetime64[s]", "U3"])
def test_other_dtypes_are_refused_by_name(dtype):
    column = np.zeros(3, dtype)
    with pytest.raises(TypeError, match="column 1 has dtype") as caught:
        ColumnTable([np.zeros(3), column])
    assert repr(column.dtype) in str(caught.value)


def test_bad_shapes_and_ranges_are_refused():
    with pytest.raises(ValueError, match="column 0 has 2 dimensions"):
        ColumnTable([np.zeros((2, 2))])
    with pytest.raises(ValueError, match="column 1 has length 2, expected 3"):
        ColumnTable([np.zeros(3), np.zeros(2)])
    table = ColumnTable([np.zeros(3), np.zeros(3)])
    with pytest.raises(ValueError, match=r"\[2, 4\) is not inside 3 rows"):
        table.rows(None, 2, 4, np.zeros((2, 2)))
    with pytest.raises(ValueError, match="out has 1 rows, expected at least 2"):
        table.rows(None, 0, 2, np.zeros((1, 2)))
    with pytest.raises(ValueError, match="rows of out has length 3, expected 2"):
        table.rows(None, 0, 2, np.zeros((2, 3)))


def test_a_table_keeps_its_columns_alive_and_can_be_pickled():
    table = ColumnTable([np.arange(1000.0), np.arange(1000)])
    copy = pickle.loads(pickle.dumps(table))
    for each in (table, copy):
        out = np.empty((2, 2))
        each.rows(np.array([5, 999]), 0, 2, out)
        np.testing.assert_array_equal(out, [[5, 5], [999, 999]])


def test_a_table_without_columns_has_no_rows():
    assert len(ColumnTable([])) == 0
    ColumnTable([]).rows(None, 0, 0, np.empty((0, 0)))
