"""Equal sparse matrices mean the same, however their entries are stored."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
from scipy.sparse import csr_matrix
from sklearn.base import clone

import dps

X = scipy.sparse.random(400, 300, 0.05, "csr", random_state=0)
Y = np.asarray(X.sum(axis=1)).ravel() > np.median(np.asarray(X.sum(axis=1)))


def in_parts() -> Any:
    """The same matrix, each entry in two parts of which the second comes later in the row."""
    made = csr_matrix(X.shape)
    made.data = np.repeat(X.data / 2, 2)
    made.indices, made.indptr = np.repeat(X.indices, 2), X.indptr * 2
    for start, stop in zip(made.indptr[:-1], made.indptr[1:], strict=True):
        made.indices[start:stop] = np.tile(made.indices[start:stop:2], 2)
        made.data[start:stop] = np.tile(made.data[start:stop:2], 2)
    assert abs(made.copy() - X).max() < 1e-15
    return made


def on_dask(matrix: Any) -> Any:
    halves = [da.from_array(matrix[:200], chunks=-1), da.from_array(matrix[200:], chunks=-1)]
    return da.concatenate(halves)


MODELS = {
    "linear": dps.LinearClassifier(max_iter=20),
    "steps": dps.LinearClassifier(optimizer="adagrad", max_iter=2, tol=None, random_state=0),
    "network": dps.MLPClassifier((8,), max_iter=2, random_state=0),
    "machine": dps.FMClassifier(4, max_iter=3, random_state=0),
    "unscaled machine": dps.FMClassifier(4, max_iter=3, normalize=False, random_state=0),
    "table": dps.FMClassifier(4, max_iter=3, max_embeddings=2000, random_state=0),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("container", [lambda matrix: matrix, on_dask], ids=["local", "dask"])
@pytest.mark.parametrize("name", MODELS)
def test_entries_in_parts_train_and_predict_as_their_sums(name: str, container: Any) -> None:
    y = Y if container is not on_dask else da.from_array(Y, chunks=200)
    one, other = clone(MODELS[name]), clone(MODELS[name])
    one.fit(container(X), y)
    other.fit(container(in_parts()), y)
    expected = one.predict_proba(X)
    np.testing.assert_array_equal(one.predict_proba(in_parts()), expected)
    np.testing.assert_array_equal(other.predict_proba(X), expected)
