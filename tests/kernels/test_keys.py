"""Keys of sparse gradients: what a batch touches, and sums over ranks as dense slots have them."""

import numpy as np
import pytest
import scipy.sparse
from compiled import add_touched_batch, deliver_keys, mean_of_slots, merge_keys

from dps._kernels.keys import KeyList
from dps._kernels.rows import KeyedRows
from dps.losses.names import get_loss
from dps.models.base import CSRRows
from dps.models.linear import LinearModel

DTYPES = [np.float32, np.float64]


@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("intercept", [True, False])
def test_a_batch_touches_what_its_gradient_writes(intercept, index, n_outputs):
    rng = np.random.default_rng(0)
    X = scipy.sparse.random_array((50, 40), density=0.1, format="csr", random_state=rng)
    task = "regression" if n_outputs == 1 else "classification"
    loss = get_loss("squared_error" if n_outputs == 1 else "log_loss", task).for_classes(3)
    model = LinearModel(40, n_outputs, loss, intercept)
    y = rng.integers(0, n_outputs, 50).astype(float)
    rows = CSRRows(X.data, X.indices.astype(index), X.indptr.astype(index), 40)
    keys = KeyedRows(model.layout.size // n_outputs)
    for order in (None, np.array([3, 3, 17, 49]), np.array([], np.int64)):
        batch = CSRRows(rows.data, rows.indices, rows.indptr, 40, order)
        targets = y if order is None else y[order]
        grad, params = np.zeros(model.layout.size), rng.standard_normal(model.layout.size)
        loss = model.loss_gradient(params, batch, targets, None, grad)
        keys.begin()
        block = batch.block(targets, None)
        model.kernel.touch_batch(block, order, 0, len(batch), keys)
        assert len(set(keys.array())) == len(keys.array())
        wanted = set(X[order].indices if order is not None else X.indices)
        if intercept and len(batch):
            wanted |= {40}
        assert set(keys.array()) == wanted
        elements = (keys.array()[:, None] * n_outputs + np.arange(n_outputs)).ravel()
        assert set(np.flatnonzero(grad)) <= set(elements)
        at_keys = np.zeros(len(elements))
        same = add_touched_batch(
            model.kernel, block, order, 0, len(batch), keys, params[elements], at_keys
        )
        np.testing.assert_array_equal(at_keys, grad[elements])
        assert same == loss


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("each", [1, 5])
@pytest.mark.parametrize(("size", "n_ranks"), [(0, 1), (1, 1), (7, 3), (64, 2), (1000, 4)])
def test_sums_have_the_bits_of_dense_slots(size, n_ranks, each, dtype):
    rng = np.random.default_rng(size)
    width = -(-size // n_ranks // 32) * 32 or 32
    keys = np.zeros((n_ranks, size), np.int64)
    slots = np.full((n_ranks, size * each), np.nan, dtype)
    counts = np.full((n_ranks, n_ranks), -1, np.int64)
    dense = np.zeros((n_ranks, size, each), dtype)
    rows = rng.integers(0, 3, n_ranks)
    for rank in range(n_ranks):
        chosen = rng.permutation(size)[: rng.integers(0, size + 1)].astype(np.int64)
        values = rng.standard_normal((len(chosen), each)).astype(dtype)
        assert deliver_keys(
            chosen, values.ravel(), width, keys[rank], slots[rank], counts[rank], each
        )
        assert counts[rank].sum() == len(chosen)
        dense[rank, chosen] = values
    expected, total = np.zeros(size * each, dtype), float(max(1, rows.sum()))
    mean_of_slots(dense.reshape(n_ranks, -1), rows, 0, size * each, expected, total)
    for rank in range(n_ranks):
        start, stop = min(size, rank * width), min(size, (rank + 1) * width)
        merged, sums = KeyList(size), np.empty(n_ranks * (stop - start) * each, dtype)
        n = merge_keys(keys, slots, counts, rows, rank, merged, sums, total, each)
        assert len(set(merged.array())) == n
        actual = np.zeros((stop - start, each), dtype)
        actual[merged.array() - start] = sums[: n * each].reshape(n, each)
        np.testing.assert_array_equal(actual.ravel(), expected[start * each : stop * each])


def test_what_is_not_finite_is_seen():
    keys, slot, counts = np.zeros(4, np.int64), np.zeros(4), np.zeros(1, np.int64)
    chosen = np.array([3, 1], np.int64)
    assert deliver_keys(chosen, np.array([1.0, 2.0]), 32, keys, slot, counts)
    assert not deliver_keys(chosen, np.array([1.0, np.inf]), 32, keys, slot, counts)


@pytest.mark.parametrize("wide", [False, True])
def test_each_key_has_one_place_however_many_there_are(wide):
    rng = np.random.default_rng(0)
    keys = KeyList(2**63 - 1 if wide else 3000)
    for size in (1, 5, 3000, 40):  # it grows, and is used again
        keys.begin()
        drawn = rng.integers(0, size, 4 * size)
        # Wide ones are far apart, side by side, and equal in many low or high bits.
        for numbers in (drawn, drawn << 40, rng.integers(0, 1 << 61, 4 * size))[: 1 + 2 * wide]:
            places = keys.add(numbers.tolist())
            np.testing.assert_array_equal(keys.array()[places], numbers)
        assert len(set(keys.array())) == len(keys.array())
