"""Models: gradients by finite differences for each model and loss, and the layout."""

import pickle
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse
from cases import pairs

from dps import LinearRegressor
from dps.losses import Hinge, SquaredError
from dps.losses.classification import OneVsRest
from dps.losses.names import LOSSES
from dps.models import Layout, Tensor
from dps.models.base import CSRRows, DenseRows
from dps.models.linear import LinearModel

LOSS_CASES = [*(kind() for kind in LOSSES.values()), OneVsRest(Hinge())]
ROWS = {
    "dense": lambda X, order: DenseRows(X, order),
    "csr32": lambda X, order: csr(X, order, np.int32),
    "csr64": lambda X, order: csr(X, order, np.int64),
}


def csr(X, order, index):
    sparse = scipy.sparse.csr_array(X)
    indices, indptr = sparse.indices.astype(index), sparse.indptr.astype(index)
    return CSRRows(sparse.data, indices, indptr, X.shape[1], order)


def example(loss, rows, ordered, n=30, f=4, dtype=np.float64):
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(n, f)) * (rng.uniform(size=(n, f)) < 0.6)).astype(dtype)
    order = rng.permutation(n)[: n // 2] if ordered else None
    m = n // 2 if ordered else n
    if loss.task == "regression":
        outputs, y = 1, rng.normal(size=m)
    else:
        classes = 3 if loss.for_classes(3) == loss else 2
        outputs = loss.n_outputs(classes)
        y = loss.targets(rng.integers(0, classes, m).astype(dtype))
    weight = rng.uniform(0.5, 2, m).astype(dtype)
    return ROWS[rows](X, order), X if order is None else X[order], y.astype(dtype), weight, outputs


@pairs(
    loss=LOSS_CASES,
    rows=ROWS,
    ordered=[False, True],
    fit_intercept=[True, False],
)
def test_gradient_is_the_finite_difference(loss, rows, ordered, fit_intercept):
    batch, _, y, weight, outputs = example(loss, rows, ordered)
    model = LinearModel(4, outputs, loss, fit_intercept)
    params = np.random.default_rng(2).normal(size=model.layout.size)
    grad, unused, h = np.zeros_like(params), np.zeros_like(params), 1e-6
    model.loss_gradient(params, batch, y, weight, grad)
    for i in range(len(params)):
        ends = []
        for shift in (h, -h):
            moved = params.copy()
            moved[i] += shift
            ends.append(model.loss_gradient(moved, batch, y, weight, unused))
        assert grad[i] == pytest.approx((ends[0] - ends[1]) / (2 * h), abs=1e-5)


@pairs(
    loss=LOSS_CASES,
    rows=ROWS,
    ordered=[False, True],
    scaled=[False, True],
)
def test_a_centre_and_a_scale_change_no_raw_output(loss, rows, ordered, scaled):
    batch, _, y, weight, outputs = example(loss, rows, ordered)
    rng = np.random.default_rng(3)
    centre, scale = rng.normal(size=4), rng.uniform(0.1, 10, 4) if scaled else None
    plain = LinearModel(4, outputs, loss)
    model = LinearModel(4, outputs, loss, centre=centre, scale=scale)
    moved = rng.normal(size=plain.layout.size)
    params = model.from_plain(moved)
    np.testing.assert_allclose(model.plain(params), moved, rtol=1e-12)
    np.testing.assert_allclose(model.raw(params, batch), plain.raw(moved, batch), rtol=1e-12)
    grads = np.zeros((2, len(moved)))
    losses = [
        each.loss_gradient(at, batch, y, weight, grad)
        for each, at, grad in zip((plain, model), (moved, params), grads, strict=True)
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-12)
    coef, intercept = (plain.layout.views(grads[0])[name] for name in ("coef", "intercept"))
    of_model = (coef - np.outer(centre, intercept)) / (1.0 if scale is None else scale[:, None])
    np.testing.assert_allclose(model.layout.views(grads[1])["coef"], of_model, atol=1e-11)
    np.testing.assert_allclose(model.layout.views(grads[1])["intercept"], intercept, atol=1e-12)


def test_a_centre_and_a_scale_travel_and_a_centre_asks_for_an_intercept():
    made = LinearModel(2, 1, SquaredError(), centre=np.ones(2), scale=np.full(2, 3.0))
    model = pickle.loads(pickle.dumps(made))
    assert (model.centre.tolist(), model.scale.tolist()) == ([1.0, 1.0], [3.0, 3.0])
    with pytest.raises(ValueError, match="without an intercept has no centre"):
        LinearModel(2, 1, SquaredError(), fit_intercept=False, centre=np.ones(2))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rows", ROWS)
def test_raw_is_the_product_and_gradients_are_added(rows, dtype):
    batch, X, y, weight, _ = example(SquaredError(), rows, True, dtype=dtype)
    model = LinearModel(4, 1, SquaredError(), dtype=dtype)
    params = np.arange(5, dtype=dtype)
    np.testing.assert_allclose(model.raw(params, batch), X @ params[:4, None] + 4, rtol=1e-5)
    grad = np.zeros_like(params)
    first = model.loss_gradient(params, batch, y, weight, grad)
    once = grad.copy()
    assert model.loss_gradient(params, batch, y, weight, grad) == first
    np.testing.assert_allclose(grad, 2 * once, rtol=1e-5)


def test_batches_of_any_size_use_one_scratch_memory():
    model, rng = LinearModel(3, 1, SquaredError()), np.random.default_rng(0)
    params = rng.normal(size=4)
    for n in (5, 0, 2, 9, 9, 1):
        X, y, grad = rng.normal(size=(n, 3)), rng.normal(size=n), np.zeros(4)
        loss = model.loss_gradient(params, DenseRows(X), y, None, grad)
        residual = X @ params[:3] + params[3] - y
        assert loss == pytest.approx(0.5 * residual @ residual)
        np.testing.assert_allclose(grad, [*(X.T @ residual), residual.sum()], atol=1e-12)


def test_changed_parameters_are_seen_although_the_array_is_the_same():
    model, X = LinearModel(1, 1, SquaredError(), fit_intercept=False), DenseRows(np.ones((1, 1)))
    params, grad, y = np.zeros(1), np.zeros(1), np.ones(1)
    assert model.loss_gradient(params, X, y, None, grad) == 0.5
    params[0] = 1
    assert model.loss_gradient(params, X, y, None, grad) == 0
    assert model.loss_gradient(np.zeros(1), X, y, None, np.zeros(1)) == 0.5


def test_scratch_memory_is_not_pickled():
    model = LinearModel(3, 1, SquaredError(), dtype=np.float32)
    X, params = np.ones((1000, 3), np.float32), model.initial()
    expected = np.zeros_like(params)
    y = np.ones(1000, np.float32)
    loss = model.loss_gradient(params, DenseRows(X), y, None, expected)
    assert len(pickle.dumps(model)) < 1000 < X.nbytes
    copy, actual = pickle.loads(pickle.dumps(model)), np.zeros_like(params)
    assert copy.loss_gradient(params, DenseRows(X), y, None, actual) == loss
    np.testing.assert_array_equal(actual, expected)


def test_a_linear_model_of_integers_is_refused():
    with pytest.raises(ValueError, match="'dtype' parameter of LinearModel must be float32"):
        LinearModel(3, 1, SquaredError(), dtype=np.int64)


LAYOUT = Layout(
    (
        Tensor("first", (2, 3), penalised=True),
        Tensor("second", (4,), penalised=True),
        Tensor("empty", (0, 2), penalised=False),
        Tensor("bias", (2,), penalised=False),
        Tensor("last", (1, 2), penalised=True),
    )
)


def test_views_share_the_memory_of_the_vector():
    flat = np.arange(14.0)
    views = LAYOUT.views(flat)
    assert list(views) == ["first", "second", "empty", "bias", "last"]
    assert LAYOUT.offsets == {"first": 0, "second": 6, "empty": 10, "bias": 10, "last": 12}
    np.testing.assert_array_equal(views["first"], [[0, 1, 2], [3, 4, 5]])
    views["bias"][:] = -1
    np.testing.assert_array_equal(flat[10:12], -1)
    with pytest.raises(ValueError, match="contiguous vector of length 14"):
        LAYOUT.views(flat[:13])
    with pytest.raises(ValueError, match="contiguous vector of length 14"):
        LAYOUT.views(np.zeros(28)[::2])


def test_segments_are_maximal_runs():
    assert LAYOUT.segments(0, 14) == [(0, 10, True), (10, 12, False), (12, 14, True)]
    flags = [True] * 10 + [False] * 2 + [True] * 2
    for start in range(15):
        for stop in range(start, 15):
            runs = LAYOUT.segments(start, stop)
            covered = [flag for a, b, flag in runs for _ in range(a, b)]
            assert covered == flags[start:stop]
            assert all(a[1] == b[0] and a[2] != b[2] for a, b in pairwise(runs))
    with pytest.raises(ValueError, match=r"\[3, 15\) is not inside a layout of size 14"):
        LAYOUT.segments(3, 15)


def test_digest_is_the_same_in_another_process_and_tells_layouts_apart():
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).digest)"
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(LAYOUT), capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == LAYOUT.digest
    assert Layout(LAYOUT.tensors[:-1]).digest != LAYOUT.digest
    assert Layout((Tensor("a", (2,), True),)).digest != Layout((Tensor("a", (2,), False),)).digest


def test_tensors_of_one_name_are_refused():
    with pytest.raises(ValueError, match="must have different names"):
        Layout((Tensor("a", (1,), True), Tensor("a", (2,), True)))


def test_a_model_that_draws_is_given_a_generator_of_its_batch(monkeypatch):
    # One that drops features by chance, in Python.
    drawn = []

    class Dropping(LinearModel):
        draws = True

        def loss_gradient(self, params, X, y, weight, out, rng=None):
            drawn.append(int(rng.integers(2**62)))
            return super().loss_gradient(params, X, y, weight, out)

    monkeypatch.setattr("dps.estimators.linear.LinearModel", Dropping)
    X, y = np.eye(8), np.arange(8.0)

    def train():
        drawn.clear()
        model = LinearRegressor(
            optimizer="sgd", batch_size=2, n_replicas=1, max_iter=3, tol=None, random_state=0
        )
        model.fit(X, y)
        return list(drawn)

    first = train()
    assert len(set(first)) == len(first) >= 12  # another one each step of each epoch
    assert train() == first
