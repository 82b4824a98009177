"""Sums over columns against NumPy, for every form that rows have."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from cases import pairs

from dps._kernels.moments import column_moments, column_products
from dps.data.feed.blocks import features_of

KINDS = {
    "dense": lambda X: X,
    "columns first": np.asfortranarray,
    "int8": lambda X: (10 * X).astype(np.int8),
    "frame": pd.DataFrame,
    "bytes": lambda X: np.frombuffer(b"-" + X.tobytes(), X.dtype, X.size, 1).reshape(X.shape),
    "csr": scipy.sparse.csr_array,
}


@pairs(
    kind=KINDS,
    dtype=[np.float32, np.float64],
    weighted=[False, True],
    index=[np.int32, np.int64],
)
def test_column_moments_are_numpys(kind, dtype, weighted, index):
    rng = np.random.default_rng(2)
    X = KINDS[kind]((rng.normal(size=(30, 4)) * (rng.random((30, 4)) < 0.5)).astype(dtype))
    if kind == "csr":
        X.indices, X.indptr = X.indices.astype(index), X.indptr.astype(index)
    order = rng.permutation(30)[:20]
    weight = rng.random(30).astype(dtype)
    block = features_of(X, dtype).block(np.zeros(30, dtype), weight if weighted else None)
    values = X.toarray() if kind == "csr" else np.asarray(X)
    taken, w = values[order].astype(float), weight[order, None] if weighted else np.ones((20, 1))
    for centre in (None, np.array([0.1, -0.2, 3.0, 0.0])):
        sums, squares = np.ones(4), np.ones(4)
        column_moments(block, order, centre, sums, squares)
        away = taken if centre is None else taken - centre
        np.testing.assert_allclose(sums, 1 + (w * away).sum(axis=0), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(squares, 1 + (w * away**2).sum(axis=0), rtol=1e-5)
    scale, products = np.array([1.0, 2.0, 0.5, 4.0]), np.ones((4, 4))
    column_products(block, order, centre, scale, products)
    expected = np.tril((w * away / scale).T @ (away / scale)) + 1
    np.testing.assert_allclose(products, expected, rtol=1e-5, atol=1e-5)


def test_wrong_lengths_are_refused():
    block = features_of(np.zeros((3, 2)), "f8").block(np.zeros(3), None)
    with pytest.raises(ValueError, match="sums has length 3, expected 2"):
        column_moments(block, np.arange(3), None, np.zeros(3), np.zeros(2))
    with pytest.raises(ValueError, match="centre has length 1, expected 2"):
        column_moments(block, np.arange(3), np.zeros(1), np.zeros(2), np.zeros(2))
    with pytest.raises(ValueError, match="a row of products has length 3, expected 2"):
        column_products(block, np.arange(3), np.zeros(2), np.ones(2), np.zeros((2, 3)))
