"""The gradient of linear models against NumPy, over several blocks of rows."""

import numpy as np
import pytest
from cases import pairs

from dps._kernels.gather import ColumnTable
from dps._kernels.linear_gradient import LinearGradient
from dps._kernels.losses import LossKernel
from dps._kernels.rows import BlockRows

FEATURES = 600


def example(rows, stored, dtype, index):
    """CSR arrays of rows with up to ``stored`` values, some empty; the same rows dense."""
    rng = np.random.default_rng(rows)
    lengths = rng.integers(0, stored + 1, rows)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(index)
    indices = [np.sort(rng.choice(FEATURES, n, replace=False)) for n in lengths]
    data = rng.normal(size=indptr[-1]).astype(dtype)
    dense = np.zeros((rows, FEATURES))
    dense[np.repeat(np.arange(rows), lengths), np.concatenate(indices)] = data
    return (data, np.concatenate(indices).astype(index), indptr), dense


def moved(X):
    """The same rows, where no element is aligned."""
    return np.frombuffer(b"-" + X.tobytes(), X.dtype, X.size, 1).reshape(X.shape)


#: The forms in which the kernel takes dense rows.
DENSE = {
    "dense": BlockRows.dense,
    "strided": lambda X, *rest: BlockRows.dense(np.hstack([X, X])[:, : X.shape[1]], *rest),
    "bytes": lambda X, *rest: BlockRows.dense(moved(X), *rest),
    "columns": lambda X, *rest: BlockRows.columns(ColumnTable(list(X.T)), *rest),
}


@pytest.mark.parametrize(("rows", "f"), [(1, 1), (7, 100), (3000, 7), (3001, 37), (90, 5000)])
@pairs(
    dtype=[np.float32, np.float64],
    k=[1, 3, 20],
    ordered=[False, True],
)
def test_a_dense_gradient_is_that_of_numpy_in_the_same_bits_in_each_form(
    dtype, rows, f, k, ordered
):
    rng = np.random.default_rng(f)
    X, y = rng.normal(size=(rows, f)).astype(dtype), rng.normal(size=(rows, k)).astype(dtype)
    weight = rng.random(rows).astype(dtype)
    params = (rng.normal(size=(f + 1) * k) / np.sqrt(f)).astype(dtype)
    kernel = LinearGradient(f, k, LossKernel("squared"), True, dtype == np.float32)
    order = rng.permutation(rows) if ordered else None
    # Some rows come behind the batch: it may ask for them, and must not add them.
    start, stop = rows // 10, rows - rows // 20
    picks = (np.arange(rows) if order is None else order)[start:stop]
    found = set()
    for form in DENSE.values():
        out = np.ones_like(params)
        loss = kernel.add_batch(form(X, y, weight), order, start, stop, params, out)
        found.add((loss, out.tobytes()))
    assert len(found) == 1
    coef, bias = params[:-k].astype(float).reshape(f, k), params[-k:]
    error = X[picks].astype(float) @ coef + bias - y[picks]
    slope = weight[picks, None] * error
    expected = np.concatenate([(X[picks].T @ slope).ravel(), slope.sum(axis=0)])
    tolerance = 1e-3 if dtype == np.float32 else 1e-10
    np.testing.assert_allclose(out, 1 + expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(loss, (slope * error).sum() / 2, rtol=tolerance)


@pytest.mark.parametrize(("rows", "stored"), [(1, 3), (1300, 9), (700, 500)])
@pairs(
    dtype=[np.float32, np.float64],
    k=[1, 3],
    ordered=[False, True],
    index=[np.int32, np.int64],
)
def test_csr_gradient_is_that_of_numpy(dtype, rows, stored, k, ordered, index):
    arrays, X = example(rows, stored, dtype, index)
    rng = np.random.default_rng(0)
    y, weight = rng.normal(size=(rows, k)).astype(dtype), rng.random(rows).astype(dtype)
    params = rng.normal(size=(FEATURES + 1) * k).astype(dtype) / 10
    start, stop = rows // 10, rows
    order = rng.permutation(rows) if ordered else None
    picks = (np.arange(rows) if order is None else order)[start:stop]
    kernel = LinearGradient(FEATURES, k, LossKernel("squared"), True, dtype == np.float32)
    out = np.ones_like(params)
    block = BlockRows.csr(*arrays, FEATURES, y, weight)
    loss = kernel.add_batch(block, order, start, stop, params, out)
    coef, bias = params[:-k].astype(float).reshape(FEATURES, k), params[-k:]
    error = X[picks] @ coef + bias - y[picks]
    slope = weight[picks, None] * error
    expected = np.concatenate([(X[picks].T @ slope).ravel(), slope.sum(axis=0)])
    tolerance = 1e-3 if dtype == np.float32 else 1e-10
    np.testing.assert_allclose(out, 1 + expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(loss, (slope * error).sum() / 2, rtol=tolerance)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_csr_gradient_has_the_same_bits_wherever_its_rows_lie(dtype):
    (data, indices, indptr), _ = example(900, 400, dtype, np.int32)
    y = np.ones(900, dtype)
    params = np.linspace(-1, 1, FEATURES, dtype=dtype)
    kernel = LinearGradient(FEATURES, 1, LossKernel("log"), False, dtype == np.float32)
    found = []
    for skipped in (0, 1, 3):  # values and indices start at other addresses
        values, columns = (
            np.concatenate([np.zeros(skipped, array.dtype), array])[skipped:]
            for array in (data, indices)
        )
        for first in (0, 100):
            block = BlockRows.csr(
                values, columns, indptr[100 - first :], FEATURES, y[100 - first :]
            )
            out = np.zeros_like(params)
            kernel.add_batch(block, None, first, first + 700, params, out)
            found.append(out.tobytes())
    assert len(set(found)) == 1


@pairs(
    dtype=[np.float32, np.float64],
    k=[1, 3],
    form=[*DENSE, "csr"],
    ordered=[False, True],
)
def test_about_a_centre_the_gradient_is_that_of_rows_less_it(dtype, k, form, ordered):
    rows = 700
    rng = np.random.default_rng(k)
    if form == "csr":
        arrays, X = example(rows, 8, dtype, np.int32)
    else:
        X = (rng.normal(size=(rows, 30)) + 5).astype(dtype)
    f = X.shape[1]
    y, weight = rng.normal(size=(rows, k)).astype(dtype), rng.random(rows).astype(dtype)
    params = (rng.normal(size=(f + 1) * k) / np.sqrt(f)).astype(dtype)
    order = rng.permutation(rows) if ordered else None
    centre = X.mean(axis=0, dtype=float)

    def gradient(block, centre):
        kernel = LinearGradient(
            f, k, LossKernel("squared"), True, params.dtype == np.float32, centre
        )
        out = np.ones_like(params)
        loss = kernel.add_batch(block, order, 50, 650, params, out)
        return loss, out

    given = BlockRows.csr(*arrays, f, y, weight) if form == "csr" else DENSE[form](X, y, weight)
    found = gradient(given, centre)
    less = (X.astype(float) - centre).astype(dtype)
    expected = gradient(BlockRows.dense(less, y, weight), None)
    tolerance = 2e-3 if dtype == np.float32 else 1e-10
    np.testing.assert_allclose(found[0], expected[0], rtol=tolerance)
    np.testing.assert_allclose(found[1], expected[1], rtol=tolerance, atol=tolerance * 10)


def test_a_centre_is_one_of_all_columns_and_of_an_intercept():
    loss = LossKernel("squared")
    with pytest.raises(ValueError, match="centre"):
        LinearGradient(3, 1, loss, True, False, np.zeros(2))
    with pytest.raises(ValueError, match="only an intercept can be at a centre"):
        LinearGradient(3, 1, loss, False, False, np.zeros(3))
    assert LinearGradient(3, 1, loss, True, False).keyed
    assert not LinearGradient(3, 1, loss, True, False, np.zeros(3)).keyed
