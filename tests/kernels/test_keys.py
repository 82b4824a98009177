"""Keys of sparse gradients: what a batch touches, and sums over ranks as dense slots have them."""

import numpy as np
import pytest
import scipy.sparse

from dps._kernels.keys import KeyList, deliver_keys, merge_keys
from dps._kernels.reduce import mean_of_slots
from dps.losses import get_loss
from dps.models import CSRRows, LinearModel

DTYPES = [np.float32, np.float64]


@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("intercept", [True, False])
def test_a_batch_touches_what_its_gradient_writes(intercept, index, n_outputs):
    rng = np.random.default_rng(0)
    X = scipy.sparse.random_array((50, 40), density=0.1, format="csr", rng=rng)
    task = "regression" if n_outputs == 1 else "classification"
    loss = get_loss("squared_error" if n_outputs == 1 else "log_loss", task).for_classes(3)
    model = LinearModel(40, n_outputs, loss, intercept)
    y = rng.integers(0, n_outputs, 50).astype(float)
    rows = CSRRows(X.data, X.indices.astype(index), X.indptr.astype(index), 40)
    keys = KeyList(model.layout.size)
    for order in (None, np.array([3, 3, 17, 49]), np.array([], np.int64)):
        batch = CSRRows(rows.data, rows.indices, rows.indptr, 40, order)
        targets = y if order is None else y[order]
        grad = np.zeros(model.layout.size)
        model.loss_gradient(rng.standard_normal(len(grad)), batch, targets, None, grad)
        keys.begin()
        model.kernel.touched(batch.block(targets, None), order, 0, len(batch), keys)
        assert len(set(keys.array())) == len(keys.array())
        assert set(np.flatnonzero(grad)) <= set(keys.array())
        columns = set(X[order].indices if order is not None else X.indices)
        wanted = {c * n_outputs + j for c in columns for j in range(n_outputs)}
        if intercept and len(batch):
            wanted |= {40 * n_outputs + j for j in range(n_outputs)}
        assert set(keys.array()) == wanted


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("size", "n_ranks"), [(0, 1), (1, 1), (7, 3), (64, 2), (1000, 4)])
def test_sums_have_the_bits_of_dense_slots(size, n_ranks, dtype):
    rng = np.random.default_rng(size)
    width = -(-size // n_ranks // 32) * 32 or 32
    keys, slots = np.zeros((n_ranks, size), np.int64), np.full((n_ranks, size), np.nan, dtype)
    counts = np.full((n_ranks, n_ranks), -1, np.int64)
    dense = np.zeros((n_ranks, size), dtype)
    rows = rng.integers(0, 3, n_ranks)
    for rank in range(n_ranks):
        chosen = rng.permutation(size)[: rng.integers(0, size + 1)].astype(np.int64)
        values = rng.standard_normal(len(chosen)).astype(dtype)
        assert deliver_keys(chosen, values, width, keys[rank], slots[rank], counts[rank], size)
        assert counts[rank].sum() == len(chosen)
        dense[rank, chosen] = values
    expected, total = np.zeros(size, dtype), float(max(1, rows.sum()))
    mean_of_slots(dense, rows, 0, size, expected, total)
    for rank in range(n_ranks):
        start, stop = min(size, rank * width), min(size, (rank + 1) * width)
        marks = np.zeros(stop - start, np.int64)
        merged, sums = np.empty(stop - start, np.int64), np.empty(stop - start, dtype)
        n = merge_keys(keys, slots, counts, rows, rank, start, marks, merged, sums, total)
        assert len(set(merged[:n])) == n
        actual = np.zeros(stop - start, dtype)
        actual[merged[:n] - start] = sums[:n]
        np.testing.assert_array_equal(actual, expected[start:stop])
        np.testing.assert_array_equal(marks, 0)


def test_what_is_not_finite_is_seen():
    keys, slot, counts = np.zeros(4, np.int64), np.zeros(4), np.zeros(1, np.int64)
    chosen = np.array([3, 1], np.int64)
    assert deliver_keys(chosen, np.array([1.0, 2.0]), 32, keys, slot, counts, 4)
    assert not deliver_keys(chosen, np.array([1.0, np.inf]), 32, keys, slot, counts, 4)


def test_keys_outside_of_the_vector_are_refused():
    keys, slot, counts = np.zeros(4, np.int64), np.zeros(4), np.zeros(1, np.int64)
    for key in (-1, 4):
        with pytest.raises(IndexError, match=f"is {key}, outside"):
            deliver_keys(np.array([key], np.int64), np.ones(1), 32, keys, slot, counts, 4)
    with pytest.raises(ValueError, match="do not fit"):
        deliver_keys(np.zeros(5, np.int64), np.ones(5), 32, keys, slot, counts, 4)
