"""Linear kernels against NumPy products, on dense and CSR rows."""

import numpy as np
import pytest
import scipy.sparse
from cases import pairs

from dps._kernels import linear as kernels

DTYPES = [np.float32, np.float64]
SHAPES = [(0, 5), (3, 0), (1, 1), (7, 7), (13, 64), (64, 17), (100, 1000)]
OUTPUTS = [1, 2, 3, 5, 10, 17]


def example(m, f, k, dtype, ordered):
    rng = np.random.default_rng(m * 1000 + f)
    rows = m + 5
    X = rng.normal(size=(rows, f + 2)).astype(dtype)[:, :f]
    order = rng.integers(0, rows, m) if ordered else None
    coef, bias = rng.normal(size=(f, k)).astype(dtype), rng.normal(size=k).astype(dtype)
    d = rng.normal(size=(m, k)).astype(dtype)
    for array in (X, coef, bias, d):
        array.flags.writeable = False
    picked = X[order] if ordered else X[:m]
    return X, order, picked.astype(float), coef, bias, d


def as_csr(X, index):
    sparse = scipy.sparse.csr_array(np.where(np.abs(X) > 0.8, X, 0))
    arrays = sparse.data, sparse.indices.astype(index), sparse.indptr.astype(index)
    for array in arrays:
        array.flags.writeable = False
    return sparse, arrays


def close(actual, expected, dtype):
    tolerance = 1e-4 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


@pairs(
    dtype=DTYPES,
    shape=SHAPES,
    k=OUTPUTS,
    ordered=[False, True],
)
def test_dense_products_are_those_of_numpy(dtype, shape, k, ordered):
    X, order, picked, coef, bias, d = example(*shape, k, dtype, ordered)
    out = np.full((shape[0], k), np.nan, dtype)
    kernels.dense_forward(X, order, coef, bias, out)
    close(out, picked @ coef + bias, dtype)
    kernels.dense_forward(X, order, coef, None, out)
    close(out, picked @ coef, dtype)
    grad, grad_bias = np.ones((shape[1], k), dtype), np.ones(k, dtype)
    kernels.dense_backward(X, order, d, grad, grad_bias)
    close(grad, 1 + picked.T @ d, dtype)
    close(grad_bias, 1 + d.sum(axis=0), dtype)
    kernels.dense_backward(X, order, d, grad, None)
    close(grad, 1 + 2 * picked.T @ d, dtype)


@pairs(
    dtype=DTYPES,
    shape=SHAPES,
    k=[1, 3],
    ordered=[False, True],
    index=[np.int32, np.int64],
)
def test_csr_products_are_those_of_numpy(dtype, shape, k, ordered, index):
    X, order, _, coef, bias, d = example(*shape, k, dtype, ordered)
    sparse, arrays = as_csr(X, index)
    picked = sparse.toarray().astype(float)
    picked = picked[order] if ordered else picked[: shape[0]]
    out = np.full((shape[0], k), np.nan, dtype)
    kernels.csr_forward(*arrays, order, coef, bias, out)
    close(out, picked @ coef + bias, dtype)
    grad, grad_bias = np.ones((shape[1], k), dtype), np.ones(k, dtype)
    kernels.csr_backward(*arrays, order, d, grad, grad_bias)
    close(grad, 1 + picked.T @ d, dtype)
    close(grad_bias, 1 + d.sum(axis=0), dtype)
    kernels.csr_forward(*arrays, order, coef, None, out)
    close(out, picked @ coef, dtype)


def test_a_slice_of_indptr_is_a_range_of_rows():
    X = np.random.default_rng(0).normal(size=(10, 4))
    sparse, (data, indices, indptr) = as_csr(X, np.int32)
    coef, out = np.ones((4, 1)), np.empty((3, 1))
    kernels.csr_forward(data, indices, indptr[5:9], None, coef, None, out)
    close(out[:, 0], sparse.toarray()[5:8].sum(axis=1), np.float64)


@pytest.mark.parametrize("k", OUTPUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_wherever_it_is_in_a_batch(dtype, k):
    X, _, _, coef, bias, _ = example(13, 37, k, dtype, False)
    whole, one = np.empty((13, k), dtype), np.empty((1, k), dtype)
    kernels.dense_forward(X, None, coef, bias, whole)
    for i in range(13):
        kernels.dense_forward(X, np.array([i]), coef, bias, one)
        assert one.tobytes() == whole[i].tobytes()


def test_rows_that_are_not_contiguous_are_refused():
    X, out = np.zeros((2, 3)).T, np.zeros((3, 1))
    with pytest.raises(ValueError, match="rows of X must be contiguous"):
        kernels.dense_forward(X, None, np.zeros((2, 1)), None, out)


def test_wrong_shapes_are_refused():
    X, coef, out = np.zeros((3, 2)), np.zeros((2, 1)), np.zeros((3, 1))
    with pytest.raises(ValueError, match="coef has length 3, expected 2"):
        kernels.dense_forward(X, None, np.zeros((3, 1)), None, out)
    with pytest.raises(ValueError, match="rows of coef has length 2, expected 1"):
        kernels.dense_forward(X, None, np.zeros((2, 2)), None, out)
    with pytest.raises(ValueError, match="order has length 1, expected 3"):
        kernels.dense_forward(X, np.zeros(1, np.int64), coef, None, out)
    with pytest.raises(ValueError, match="X has 3 rows, expected at least 4"):
        kernels.dense_forward(X, None, coef, None, np.zeros((4, 1)))
    with pytest.raises(ValueError, match="intercept has length 2, expected 1"):
        kernels.dense_forward(X, None, coef, np.zeros(2), out)
    with pytest.raises(ValueError, match="grad_coef has length 3, expected 2"):
        kernels.dense_backward(X, None, out, np.zeros((3, 1)), None)
    with pytest.raises(ValueError, match="X has 3 rows, expected at least 4"):
        kernels.dense_backward(X, None, np.zeros((4, 1)), coef, None)
    _, arrays = as_csr(X, np.int32)
    with pytest.raises(ValueError, match="indptr has 3 rows, expected at least 4"):
        kernels.csr_forward(*arrays, None, coef, None, np.zeros((4, 1)))
