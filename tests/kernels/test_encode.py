"""Rows put together from numbers, codes, bags and interactions: what NumPy says of them."""

import numpy as np
import pytest
import scipy.sparse

from dps._kernels.encode import RowEncoder
from dps._kernels.gather import ColumnTable

LENGTHS = [0, 1, 7, 64, 1000]
MASK = (1 << 64) - 1


def splitmix(x):
    """The reference implementation, https://prng.di.unimi.it/splitmix64.c, in Python's integers."""
    z = (x + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def awkward(array):
    """The same values, read-only and at an odd address."""
    room = np.zeros(array.nbytes + 1, np.uint8)
    odd = room[1:].view(array.dtype)
    odd[:] = array
    odd.flags.writeable = False
    return odd


def problem(n):
    rng = np.random.default_rng(n)
    number = np.where(rng.random(n) < 0.2, np.nan, rng.normal(size=n))
    codes = [rng.integers(-1, 5, n).astype(kind) for kind in (np.int8, np.int16, np.int32)]
    hashes = [rng.integers(0, MASK, 5, np.uint64) for _ in range(2)]
    starts = np.concatenate([[0], np.cumsum(rng.integers(0, 4, n))])
    tokens = rng.integers(-1, 3, starts[-1]).astype(np.int32)
    return number, codes, hashes, starts, tokens


def encode(n, problem, dtype, index, change=lambda array: array):
    number, codes, hashes, starts, tokens = problem
    numbers = ColumnTable([change(number), change(np.arange(n, dtype=np.int16))])
    rows = RowEncoder(n, numbers)
    rows.add_number(0, 0, 9.0, True)
    rows.add_codes(change(codes[0]), change(np.array([7, 2, 3, 4, 5, -1], np.int32)))
    rows.add_number(1, 8, 0.0, False)
    rows.add_cross([change(codes[1]), change(codes[2])], [change(h) for h in hashes], 10, 6)
    rows.add_bags(change(starts), change(tokens), change(np.array([20, 17, 18, 19], np.int32)))
    indices, data = np.full(rows.bound, -1, index), np.full(rows.bound, np.nan, dtype)
    indptr = np.full(n + 1, -1, index)
    stored = rows.encode(indices, data, indptr)
    assert stored == indptr[-1]
    return scipy.sparse.csr_matrix((data[:stored], indices[:stored], indptr), (n, 21))


def twin(n, problem):
    number, codes, hashes, starts, tokens = problem
    X = np.zeros((n, 21))
    gap, rows = np.isnan(number), np.arange(n)
    X[:, 0], X[gap, 1] = np.where(gap, 9.0, number), 1
    place = np.array([2, 3, 4, 5, -1, 7])[codes[0]]
    X[rows[place >= 0], place[place >= 0]] = 1
    X[:, 8] = rows
    for row in np.flatnonzero((codes[1] >= 0) & (codes[2] >= 0)):
        first, second = int(hashes[0][codes[1][row]]), int(hashes[1][codes[2][row]])
        X[row, 10 + splitmix((splitmix(first) + second) & MASK) % 6] = 1
    for row in rows:
        for token in tokens[starts[row] : starts[row + 1]]:
            X[row, [17, 18, 19, 20][token]] += 1
    return X


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", LENGTHS)
def test_rows_are_those_of_numpy(n, dtype, index):
    given = problem(n)
    expected = twin(n, given).astype(dtype)
    for change in (lambda array: array, awkward):
        actual = encode(n, given, dtype, index, change)
        assert actual.dtype == dtype
        np.testing.assert_array_equal(actual.toarray(), expected)


def test_columns_ascend_within_a_row_where_no_bag_is():
    n, codes = 50, np.zeros(50, np.int8)
    rows = RowEncoder(n, ColumnTable([np.full(n, np.nan)]))
    rows.add_number(0, 0, 1.0, True)
    rows.add_codes(codes, np.array([-1, 4], np.int32))
    rows.add_cross([codes, codes], [np.ones(1, np.uint64)] * 2, 5, 3)
    indices, data, indptr = np.empty(4 * n, np.int32), np.empty(4 * n), np.empty(n + 1, np.int32)
    assert rows.encode(indices, data, indptr) == rows.bound == 4 * n
    assert (np.diff(indices.reshape(n, 4)) > 0).all()


def test_lengths_and_dtypes_are_checked():
    rows = RowEncoder(3, ColumnTable([]))
    table, codes = np.array([-1, 0], np.int32), np.zeros(3, np.int8)
    with pytest.raises(ValueError, match="codes has length 2, expected 3"):
        rows.add_codes(codes[:2], table)
    with pytest.raises(TypeError, match="codes have dtype int64"):
        RowEncoder(3, ColumnTable([])).add_codes(codes.astype(np.int64), table)
    with pytest.raises(ValueError, match="not inside 1 tokens"):
        rows.add_bags(np.array([0, 1, 2, 2]), np.zeros(1, np.int32), table)
    with pytest.raises(IndexError, match="no column 0"):
        rows.add_number(0, 0, 0.0, False)
    with pytest.raises(ValueError, match="must be a bucket"):
        rows.add_cross([codes], [np.zeros(1, np.uint64)], 0, 0)
    full = RowEncoder(3, ColumnTable([]))
    full.add_codes(codes, table)
    with pytest.raises(ValueError, match="need room, there is 0"):
        full.encode(np.empty(0, np.int32), np.empty(0), np.empty(4, np.int32))
    with pytest.raises(ValueError, match="numbers has length 2"):
        RowEncoder(3, ColumnTable([np.zeros(2)]))


def test_sequences_are_the_first_values_of_each_row():
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 6, 400)
    starts = np.r_[0, np.cumsum(lengths)]
    tokens, values = rng.integers(-1, 9, starts[-1]).astype(np.int32), rng.normal(size=9)
    rows = RowEncoder(400, ColumnTable([]))
    rows.add_sequence(starts, tokens, values, 5, 3)
    indices, data = np.empty(rows.bound, np.int32), np.empty(rows.bound)
    indptr = np.empty(401, np.int32)
    stored = rows.encode(indices, data, indptr)
    assert stored == indptr[-1]
    for row in range(400):
        codes = [t for t in tokens[starts[row] : starts[row + 1]] if t >= 0][:3]
        here = slice(indptr[row], indptr[row + 1])
        assert data[here].tolist() == [values[code] for code in codes]
        assert indices[here].tolist() == [5, 6, 7][: len(codes)]
