"""The network's kernel against one written in NumPy, and against finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from cases import pairs

from dps.losses import Huber, LogLoss, SquaredError
from dps.losses.classification import Softmax
from dps.models.base import CSRRows, DenseRows
from dps.models.network import Inputs, Network

ACTIVATIONS = {
    "identity": lambda z: z,
    "relu": lambda z: np.maximum(z, 0),
    "tanh": np.tanh,
    "logistic": lambda z: 1 / (1 + np.exp(-z)),
    "silu": lambda z: z / (1 + np.exp(-z)),
}
RNG = np.random.default_rng(0)
EDGES = tuple(np.sort(RNG.normal(size=bins + 1)) for bins in (5, 1, 9))


def numbers(width: int = 4, places: Any = (0, 1, 2)) -> Inputs:
    plain = float(sum(place < 0 for place in places)) / 2
    return Inputs(
        np.array(places), RNG.normal(size=3) / 5, np.array([1.3, 0.7, 2.0]), EDGES, width, plain
    )


def twin(network: Network, params: Any, X: Any) -> Any:
    """Raw outputs, as `Network` and its kernel describe them, in NumPy."""
    inputs, views = network.inputs, network.layout.views(params)
    number = inputs.places >= 0
    x = np.empty((len(X), inputs.n_numbers))
    plain = np.empty((len(X), inputs.n_plain))
    x[:, inputs.places[number]] = X[:, number]
    plain[:, -1 - inputs.places[~number]] = X[:, ~number]
    dense = [np.clip((x - inputs.centre) * inputs.spread, -3, 3)]
    for j in range(inputs.n_numbers if inputs.width else 0):
        edges = inputs.edges[j]
        inside = np.clip((x[:, [j]] - edges[:-1]) / np.diff(edges), 0, 1)
        dense.append(inside @ views["embedding"][inputs.bins[j] : inputs.bins[j + 1]])
    rows = np.hstack([plain, np.hstack(dense) * (6 * views["scale"])])
    last = len(network.sizes) - 2
    for layer, gain in enumerate(network.gains):
        rows = gain * rows @ views[f"weights_{layer}"] + 0.1 * views[f"biases_{layer}"]
        rows = rows if layer == last else ACTIVATIONS[network.activation](rows)
    return network.output_shift + network.output_scale * rows


def started(network: Network, dtype: Any = np.float64) -> Any:
    params = network.initial(RNG) + 0.1 * RNG.standard_normal(network.layout.size)
    return params.astype(dtype)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [0, 4])
def test_raw_outputs_are_those_of_numpy(activation: str, dtype: Any, width: int) -> None:
    X = RNG.normal(size=(1300, 3)).astype(dtype)  # of more than two blocks
    network = Network(
        numbers(width), (8, 6), 2, SquaredError(), activation, 0.4, dtype,
        np.array([1.0, 2.0]), np.array([3.0, 0.5]),
    )  # fmt: skip
    params = started(network, dtype)
    expected = twin(network, params.astype(np.float64), X.astype(np.float64))
    tolerance = 3e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(network.raw(params, DenseRows(X)), expected, tolerance, tolerance)
    order = RNG.permutation(1300)[:700]
    picked = network.raw(params, DenseRows(X, order))
    np.testing.assert_allclose(picked, expected[order], tolerance, tolerance)


@pytest.mark.parametrize("rows", [0, 1, 7, 513])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_sparse_rows_are_those_of_numpy(rows: int, index: Any) -> None:
    X = RNG.normal(size=(rows, 6)) * (RNG.random((rows, 6)) < 0.5)
    network = Network(numbers(4, (0, -1, 1, -2, -3, 2)), (8,), 3, Softmax())
    params = started(network)
    made = scipy.sparse.csr_array(X)
    csr = CSRRows(made.data, made.indices.astype(index), made.indptr.astype(index), 6)
    np.testing.assert_allclose(network.raw(params, csr), twin(network, params, X), atol=1e-12)


def test_values_outside_of_all_bins_and_constant_columns_are_finite() -> None:
    inputs = Inputs(
        np.arange(2), np.array([0.0, 7.0]), np.array([1.0, 0.0]),
        (np.array([-1.0, 0.0, 1.0]), np.array([7.0, 7.0])), 3, 0.0,
    )  # fmt: skip
    network = Network(inputs, (4,), 1, SquaredError())
    params = started(network)
    near = network.raw(params, DenseRows(np.array([[3.0, 7.0], [-3.0, 7.0]])))
    far = network.raw(params, DenseRows(np.array([[1e300, 7.0], [-1e300, -1e9]])))
    assert np.isfinite(far).all()
    np.testing.assert_array_equal(near, far)


@pairs(
    kind=["dense", "csr", "picked"],
    dropout=[0.0, 0.3],
    activation=ACTIVATIONS,
)
def test_the_gradient_is_that_of_finite_differences(
    activation: str, dropout: float, kind: str
) -> None:
    rows, k = 600, 2 if kind == "dense" else 1
    loss: Any = Huber() if kind == "dense" else LogLoss()
    y: Any = RNG.normal(size=(rows, k)) if kind == "dense" else RNG.choice([-1.0, 1.0], rows)
    weight = RNG.random(rows)
    X: Any
    if kind == "csr":
        made = scipy.sparse.random_array((rows, 6), density=0.5, format="csr", random_state=1)
        X = CSRRows(made.data, made.indices, made.indptr, 6, RNG.permutation(rows))
        inputs = numbers(4, (0, -1, 1, -2, -3, 2))
    else:
        X, inputs = DenseRows(RNG.normal(size=(rows, 3)), RNG.permutation(rows)), numbers()
    network = Network(
        inputs, (5, 4), k, loss, activation, dropout, np.float64, np.ones(k), np.full(k, 2.0)
    )
    params, gradient = started(network), np.zeros(network.layout.size)
    assert X.order is not None
    block = type(X)(**{n: None if n == "order" else getattr(X, n) for n in X.__slots__})

    def sum_at(point: Any, out: Any) -> float:
        rows_of = block.block(y, weight)
        return network.kernel.add_batch(rows_of, X.order, 0, rows, point, out, 5)

    sum_at(params, gradient)
    for at in RNG.choice(len(params), 40, replace=False):
        step = np.zeros(len(params))
        step[at] = 1e-5
        up, down = (
            sum_at(params + step, np.zeros(len(params))),
            sum_at(params - step, np.zeros(len(params))),
        )
        assert gradient[at] == pytest.approx((up - down) / 2e-5, rel=2e-3, abs=2e-3)


def test_what_is_dropped_follows_from_the_key() -> None:
    X, y = DenseRows(RNG.normal(size=(700, 3))), RNG.normal(size=700)
    network = Network(numbers(), (64,), 1, SquaredError(), "relu", 0.5)
    params = started(network)

    def gradient(key: int) -> Any:
        out = np.zeros(len(params))
        network.kernel.add_batch(X.block(y, None), None, 0, 700, params, out, key)
        return out

    assert (gradient(1) == gradient(1)).all()
    assert (gradient(1) != gradient(2)).any()
    # Units are dropped half of the time, and the rest counts twice: means stay.
    mean = np.mean([network.kernel.add_batch(
        X.block(np.zeros(700), None), None, 0, 700, params, np.zeros(len(params)), key
    ) for key in range(200)])  # fmt: skip
    whole = network.evaluate(params, X, np.zeros(700), None)
    assert mean > whole  # the square of what varies by chance
    raw = network.raw(params, X)
    assert np.isfinite(raw).all()


def test_a_network_refuses_rows_of_another_kind() -> None:
    network = Network(numbers(4, (0, -1, 1, -2, -3, 2)), (4,), 1, SquaredError())
    out = np.zeros(network.layout.size)
    with pytest.raises(ValueError, match="plain columns takes CSR rows"):
        network.loss_gradient(out, DenseRows(np.zeros((2, 6))), np.zeros(2), None, out)
    with pytest.raises(ValueError, match="rows of X has length 2, expected 3"):
        Network(numbers(), (4,), 1, SquaredError()).raw(out, DenseRows(np.zeros((2, 2))))
    with pytest.raises(ValueError, match="'activation' parameter must be a str among"):
        Network(numbers(), (4,), 1, SquaredError(), "gelu")


def test_products_of_tiny_weights_are_zero_and_the_thread_has_such_numbers_again() -> None:
    network = Network(numbers(0), (1,), 1, SquaredError(), dtype=np.float32)
    params = np.zeros(network.layout.size, np.float32)
    views = network.layout.views(params)
    views["scale"][:], views["weights_0"][:], views["weights_1"][:] = 1, 1e-21, 1e-21
    rows = np.full((1, 3), 5.0, np.float32)
    assert twin(network, params.astype(np.float64), rows) > 0
    assert network.raw(params, DenseRows(rows)) == 0
    assert np.float32(1e-38) / np.float32(4) > 0
