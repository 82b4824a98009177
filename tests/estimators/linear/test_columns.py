"""Without the columns that do not occur, a fit of sparse rows ends where it would with them."""

import warnings
from dataclasses import dataclass

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
from sklearn.exceptions import ConvergenceWarning

from dps import LinearClassifier, LinearRegressor
from dps.cluster import threads
from dps.data import columns
from dps.optimizers import Constant, Optimizer

ROWS, WIDTH, USED = 300, 5000, 700


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    narrow = scipy.sparse.random_array((ROWS, USED), density=0.01, format="csr", random_state=rng)
    places = np.sort(rng.permutation(WIDTH)[:USED])
    X = scipy.sparse.csr_array(
        (narrow.data, places[narrow.indices].astype(np.int32), narrow.indptr), (ROWS, WIDTH)
    )
    y = (narrow @ rng.standard_normal(USED) > 0) + (np.arange(ROWS) % 3 == 0)
    return X, y.astype(int)


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "lbfgs"},
        {"optimizer": "adagrad", "max_iter": 3, "tol": None},
        {"optimizer": "momentum", "penalty": "l1", "max_iter": 3, "tol": None},
    ],
    ids=["lbfgs", "adagrad", "momentum"],
)
@pytest.mark.parametrize("kind", [LinearClassifier, LinearRegressor])
def test_the_result_is_that_of_all_columns(kind, options, data, monkeypatch):
    X, y = data
    used = columns.occurring(X)[1]
    assert used is not None
    assert len(used.numbers) <= USED
    some = kind(random_state=0, alpha=1e-2, n_replicas=2, **options).fit(X, y)
    monkeypatch.setattr(columns, "occurring", lambda X: (X, None))
    every = kind(random_state=0, alpha=1e-2, n_replicas=2, **options).fit(X, y)
    assert some.coef_.shape == every.coef_.shape
    np.testing.assert_allclose(some.coef_, every.coef_, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(some.intercept_, every.intercept_, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(some.predict(X), every.predict(X), rtol=1e-6, atol=1e-8)
    assert some.n_features_in_ == WIDTH


@pytest.mark.parametrize("validated", [False, True])
def test_long_rows_on_workers_are_trained_on_columns_that_occur(data, client, validated):
    X, y = data
    wide = scipy.sparse.csr_matrix((X.data, X.indices * 300, X.indptr), (ROWS, 300 * WIDTH))
    assert wide.shape[1] >= columns.LONG
    rows = da.from_array(wide, chunks=(100, wide.shape[1]), asarray=False)
    val = {"X_val": wide[:50], "y_val": y[:50]} if validated else {}
    options = {"random_state": 0, "alpha": 1e-2}
    model = LinearClassifier(**options, client=client).fit(rows, y, **val)
    peer = LinearClassifier(**options).fit(X, y)
    assert model.coef_.shape == (1, wide.shape[1])
    np.testing.assert_allclose(model.coef_[:, ::300], peer.coef_, rtol=1e-4, atol=1e-6)
    assert np.count_nonzero(model.coef_) <= USED
    assert model.plan_.ranks
    model.partial_fit(wide, y)


def test_a_column_out_of_range_is_named_whatever_is_left_out(data, client):
    X, y = data
    wide = scipy.sparse.csr_matrix((X.data, X.indices.copy(), X.indptr), (ROWS, columns.LONG))
    wide.indices[7] = -3
    rows = da.from_array(wide, chunks=(ROWS, wide.shape[1]), asarray=False)
    with pytest.raises(ValueError, match="partition 0"):
        LinearClassifier(client=client).fit(rows, y)
    good = scipy.sparse.csr_matrix((X.data, X.indices, X.indptr), wide.shape)
    with pytest.raises(ValueError, match="X_val"):
        LinearClassifier(client=client).fit(
            da.from_array(good, chunks=(ROWS, wide.shape[1]), asarray=False), y, X_val=wide, y_val=y
        )


def test_where_vectors_are_most_of_the_work_one_replica_does_it(monkeypatch):
    monkeypatch.setattr(threads, "usable_cores", lambda: 2)
    rng = np.random.default_rng(0)
    shape, stored = (4000, 1 << 16), 80
    places = rng.integers(0, shape[1], (shape[0], stored)).astype(np.int32)
    places.sort(axis=1)
    X = scipy.sparse.csr_array(
        (np.ones(places.size), places.ravel(), np.arange(shape[0] + 1) * stored), shape
    )
    y = rng.integers(0, 2, shape[0])

    def replicas(**options):
        model = LinearClassifier(alpha=1e-6, random_state=0, max_iter=1, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return len(model.fit(X, y).plan_.ranks)

    assert replicas() == replicas(mode="allreduce") == 1
    assert replicas(n_replicas=2) == replicas(batch_size=4000) == replicas(mode="async") == 2
    assert replicas(optimizer="lbfgs") == 2


def test_later_parts_may_have_other_columns(data):
    X, y = data
    model = LinearClassifier(random_state=0, optimizer="momentum")
    halves = [slice(0, 150), slice(150, 300)]
    for part in halves:
        model.partial_fit(X[part], y[part], classes=[0, 1, 2])
    warm = LinearClassifier(random_state=0, warm_start=True, max_iter=2, tol=None)
    for part in halves:
        warm.fit(X[part], y[part])
    for fitted in (model, warm):
        seen = np.unique(X.indices)
        assert np.abs(fitted.coef_[:, seen]).max() > 0
        assert np.abs(np.delete(fitted.coef_, seen, axis=1)).max() == 0


def test_narrow_dense_and_often_used_columns_are_left_alone(data):
    X, _ = data
    for other in (X.toarray(), X[:, :4000], X.tocsc(), scipy.sparse.csr_array((3, 5000))):
        same, used = columns.occurring(other)
        assert same is other
        assert used is None


def test_an_optimizer_in_python_sees_all_columns(data):
    """The effect of an optimizer without gradients is unknown, so it sees all columns."""

    @dataclass(frozen=True)
    class Drifting(Optimizer):
        default_schedule = Constant(0.1)

        def update(self, params, grad, state, *, step, lr, l1, l2):
            params += lr * (1 - grad)
            return True

    model = LinearRegressor(optimizer=Drifting(), max_iter=1, tol=None).fit(*data)
    assert model.coef_.all()


@pytest.mark.parametrize("options", [{}, {"mode": "async"}])
def test_a_column_that_lies_far_from_zero_moves_the_intercept_of_all_columns(options):
    rng = np.random.default_rng(0)
    group, far = rng.integers(50, size=4000), rng.normal(size=4000) + 10
    at = np.column_stack([100 * group, np.full(4000, 5999)])
    values = np.column_stack([np.ones(4000), far])
    X = scipy.sparse.csr_array((values.ravel(), at.ravel(), np.arange(0, 8001, 2)), (4000, 6000))
    y = rng.normal(size=50)[group] + far - 10 + 0.3 * rng.logistic(size=4000) > 0
    shorter, _ = columns.occurring(X)
    assert shorter.shape[1] == 51
    model, peer = (
        LinearClassifier(random_state=0, **options).fit(rows, y) for rows in (X, X.toarray())
    )
    reached = model.score(X, y)
    assert reached == pytest.approx(peer.score(X.toarray(), y), abs=0.01)
    assert model.partial_fit(X, y).score(X, y) > reached - 0.02
