"""The kernel of factorization machines against NumPy, and against finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from cases import pairs
from compiled import add_touched_batch

from dps._kernels.gather import ColumnTable
from dps._kernels.rows import BlockRows, KeyedRows
from dps.losses import Hinge, LogLoss, Loss, SquaredError
from dps.losses.classification import OneVsRest
from dps.losses.names import LOSSES
from dps.models.base import CSRRows, DenseRows
from dps.models.factorization import FactorInputs, FactorizationMachine

RNG = np.random.default_rng(0)
SQUARED = SquaredError()
LOSS_CASES = [*(kind() for kind in LOSSES.values()), OneVsRest(Hinge())]
KNOTS = np.array([-1.0, 0.0, 0.5]), np.array([0.25]), np.array([-0.5, 1.0])
COLUMNS = 6
INPUTS = {
    "plain": FactorInputs(COLUMNS, gain=0.7),
    "plain in fields": FactorInputs(COLUMNS, fields=np.array([0, 1, 1, 2, 0, 2], np.int32)),
    "of one length": FactorInputs(COLUMNS, gain=1.3, normalised=True),
    "numbers": FactorInputs(
        COLUMNS, np.array([2, -1, 0, 1, -1, -1], np.int32), KNOTS, np.arange(6, dtype=np.int32), 0.7
    ),
}
LAYERS: dict[str, tuple[int, ...]] = {"alone": (), "with layers": (5, 4)}


def made(
    inputs: str, layers: str, k: int = 1, loss: Loss = SQUARED, **options: Any
) -> FactorizationMachine:
    return FactorizationMachine(
        INPUTS[inputs], 11, LAYERS[layers], k, loss, **options,
        output_shift=np.linspace(0, 1, k), output_scale=np.linspace(1, 2, k),
    )  # fmt: skip


def rows(n: int, dtype: Any = np.float64) -> Any:
    made: Any = (RNG.normal(size=(n, COLUMNS)) * (RNG.random((n, COLUMNS)) < 0.6)).astype(dtype)
    return made


def csr(X: Any, index: Any = np.int32, order: Any = None) -> CSRRows:
    sparse = scipy.sparse.csr_array(X)
    indices, indptr = sparse.indices.astype(index), sparse.indptr.astype(index)
    return CSRRows(sparse.data, indices, indptr, X.shape[1], order)


def started(machine: FactorizationMachine, dtype: Any = np.float64) -> Any:
    params = 0.5 * machine.initial(RNG) + 0.3 * RNG.standard_normal(machine.layout.size)
    return params.astype(dtype)


def entries(inputs: FactorInputs, X: Any) -> tuple[Any, Any]:
    """A column of values for each row of the table, and the field of each."""
    blocks = []
    for j in range(inputs.n_features):
        place = -1 if inputs.places is None else inputs.places[j]
        if place < 0:
            blocks.append(X[:, [j]])
        else:
            knots = inputs.knots[place]
            unit = np.eye(len(knots))
            blocks.append(np.stack([np.interp(X[:, j], knots, each) for each in unit], axis=1))
    fields = np.zeros(inputs.n_features, int) if inputs.fields is None else inputs.fields
    values = inputs.gain * np.hstack(blocks)
    if inputs.normalised:
        lengths = np.linalg.norm(values, axis=1, keepdims=True)
        values *= inputs.gain / np.where(lengths > 0, lengths, 1)
    return values, np.repeat(fields, [b.shape[1] for b in blocks])


def twin(machine: FactorizationMachine, params: Any, X: Any) -> Any:
    """Raw outputs, as the kernel describes them, in NumPy: of all pairs, one by one."""
    values, fields = entries(machine.inputs, X)
    views, k = machine.layout.views(params), machine.n_outputs
    weights, factors = views["table"][:, :k], views["table"][:, k:]
    raw = views["intercept"] + values @ weights
    mix = views["mix"] if k > 1 else np.ones((1, machine.n_factors))
    gain = 0.25 if machine.hidden else 0.5
    for i in range(values.shape[1]):
        for j in range(i):
            product = gain**2 * factors[i] * factors[j]
            raw = raw + np.outer(values[:, i] * values[:, j], mix @ product)
    if machine.hidden:
        h = np.hstack(
            [values[:, fields == f] @ factors[fields == f] for f in range(fields.max() + 1)]
        )
        for layer, size in enumerate(machine.sizes[:-1]):
            h = h if layer == 0 else np.maximum(h, 0)
            h = size**-0.5 * h @ views[f"weights_{layer}"] + 0.1 * views[f"biases_{layer}"]
        raw = raw + h
    return machine.output_shift + machine.output_scale * raw


@pairs(
    dtype=[np.float32, np.float64],
    inputs=INPUTS,
    layers=LAYERS,
    k=[1, 3],
)
def test_raw_outputs_are_those_of_numpy_for_rows_of_any_form(
    dtype: Any, inputs: str, layers: str, k: int
) -> None:
    machine = made(inputs, layers, k, dtype=dtype, dropout=0.4)
    params = started(machine, dtype)
    for n in (0, 1, 7, 700):
        X = rows(n, dtype)
        tolerance = 1e-4 if dtype == np.float32 else 1e-11
        expected = twin(machine, params.astype(np.float64), X.astype(np.float64))
        for form in (DenseRows(X), csr(X), csr(X, np.int64)):
            found = machine.raw(params, form)
            np.testing.assert_allclose(found, expected, tolerance, tolerance)
    order = RNG.permutation(700)[:300]
    for form in (DenseRows(X, order), csr(X, np.int32, order)):
        np.testing.assert_allclose(machine.raw(params, form), expected[order], tolerance, tolerance)


@pairs(
    loss=LOSS_CASES,
    layers=LAYERS,
    dtype=[np.float32, np.float64],
)
def test_the_gradient_is_that_of_finite_differences(loss: Loss, layers: str, dtype: Any) -> None:
    n, k, inputs = 90, 1, "plain in fields"
    if loss.task == "regression":
        y = np.abs(RNG.normal(size=n)) + 0.1
    else:
        classes = 3 if loss.for_classes(3) == loss else 2
        k, inputs = loss.n_outputs(classes), "numbers"
        y = loss.targets(RNG.integers(0, classes, n).astype(np.float64))
    # In float32 a difference says little: its gradient is that in float64, which is looked at.
    X, weight = rows(n, np.float32).astype(np.float64), RNG.random(n).astype(np.float32)
    machine = made(inputs, layers, k, loss, dropout=0.3 if layers == "with layers" else 0.0)
    params = (started(machine) / 3).astype(np.float32).astype(np.float64)

    def sum_at(point: Any, out: Any, of: Any = np.float64) -> float:
        block = DenseRows(X.astype(of)).block(y.astype(of), weight.astype(of))
        kernel = machine.with_dtype(of).kernel if of == np.float32 else machine.kernel
        return kernel.add_batch(block, None, 0, n, point, out, 5)

    gradient = np.zeros_like(params)
    total = sum_at(params, gradient)
    if dtype == np.float32:
        single = np.zeros(len(params), np.float32)
        assert sum_at(params.astype(np.float32), single, np.float32) == pytest.approx(total, 1e-3)
        np.testing.assert_allclose(single, gradient, 1e-2, 1e-2)
        return
    for at in RNG.choice(len(params), 40, replace=False):
        step = np.zeros(len(params))
        step[at] = 1e-6
        up, down = (sum_at(params + sign * step, np.zeros_like(params)) for sign in (1, -1))
        assert gradient[at] == pytest.approx((up - down) / 2e-6, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("inputs", INPUTS)
def test_the_gradient_has_the_same_bits_for_rows_of_any_form(inputs: str, layers: str) -> None:
    n, machine = 700, made(inputs, layers, dropout=0.2)
    X, y, weight = rows(n), RNG.normal(size=n), RNG.random(n)
    params, order, found = started(machine), RNG.permutation(n), set()
    blocks = [
        BlockRows.dense(X, y, weight),
        BlockRows.dense(np.hstack([X, X])[:, :COLUMNS], y, weight),
        BlockRows.columns(ColumnTable(list(X.T)), y, weight),
        BlockRows.dense(np.frombuffer(b"-" + X.tobytes(), "f8", X.size, 1).reshape(X.shape), y,
                        weight),
    ]  # fmt: skip
    if machine.inputs.places is None:  # else a number that is not stored comes behind the others
        blocks += [csr(X).block(y, weight), csr(X, np.int64).block(y, weight)]
    for block in blocks:
        out = np.ones_like(params)
        loss = machine.kernel.add_batch(block, order, 50, 650, params, out, 3)
        found.add((loss, out.tobytes()))
    assert len(found) == 1


@pairs(
    dtype=[np.float32, np.float64],
    inputs=INPUTS,
    layers=LAYERS,
    k=[1, 3],
)
def test_rows_of_the_table_by_key_give_the_gradient_of_the_whole(
    dtype: Any, inputs: str, layers: str, k: int
) -> None:
    machine, n = made(inputs, layers, k, dtype=dtype), 300
    X, y = rows(n, dtype), RNG.normal(size=(n, k)).astype(dtype)
    params, width = started(machine, dtype), machine.key_width
    dense = machine.layout.offsets["intercept"]
    assert dense == machine.inputs.n_rows * width
    table = np.zeros((machine.inputs.n_rows + -(-(len(params) - dense) // width), width), dtype)
    table.ravel()[: len(params)] = params
    keys, order, kernel = KeyedRows(len(table)), RNG.permutation(n), machine.kernel
    assert kernel.key_width == width
    block = csr(X).block(y, None)
    whole = np.zeros_like(params)
    expected = kernel.add_batch(block, order, 20, 280, params, whole, 0)
    touched = np.zeros_like(table)
    keys.begin()
    kernel.touch_batch(block, order, 20, 280, keys)
    chosen = keys.array()
    assert len(set(chosen)) == len(chosen)
    assert set(range(machine.inputs.n_rows, len(table))) < set(chosen)
    out = np.zeros(len(chosen) * width, dtype)
    loss = add_touched_batch(kernel, block, order, 20, 280, keys, table[chosen].ravel(), out)
    touched[chosen] = out.reshape(-1, width)
    tolerance = 1e-3 if dtype == np.float32 else 1e-10
    assert loss == expected
    np.testing.assert_allclose(touched.ravel()[: len(params)], whole, tolerance, tolerance)
    assert (touched.ravel()[len(params) :] == 0).all()


def test_values_beyond_all_knots_are_those_of_the_last() -> None:
    machine = made("numbers", "alone")
    params, near, far = started(machine), np.zeros((2, COLUMNS)), np.zeros((2, COLUMNS))
    near[0, :] = [1.0, 0, 0.5, 0.25, 0, 0]
    far[0, :] = [1e300, 0, 1e9, -1e300, 0, 0]
    np.testing.assert_array_equal(
        machine.raw(params, DenseRows(near)), machine.raw(params, DenseRows(far))
    )


def test_what_is_no_machine_or_no_batch_of_it_is_refused() -> None:
    machine = made("plain", "alone")
    with pytest.raises(ValueError, match="rows of X has length 2, expected 6"):
        machine.raw(started(machine), DenseRows(np.zeros((1, 2))))
    with pytest.raises(ValueError, match="'activation' parameter must be a str among"):
        FactorizationMachine(FactorInputs(2), 2, (), 1, LogLoss(), "gelu")
    with pytest.raises(ValueError, match="a table of 4294967296 rows is too long"):
        FactorizationMachine(_Long(1 << 32), 2, (), 1, LogLoss())


class _Long(FactorInputs):
    @property
    def n_rows(self) -> int:
        return self.n_features


def test_products_of_tiny_factors_are_zero_and_the_thread_has_such_numbers_again() -> None:
    machine = made("plain", "alone", dtype=np.float32)
    params = np.zeros(machine.layout.size, np.float32)
    machine.layout.views(params)["table"][:, 1:] = 1e-21
    assert twin(machine, params.astype(np.float64), np.ones((1, COLUMNS))) > 0
    assert machine.raw(params, DenseRows(np.ones((1, COLUMNS), np.float32))) == 0
    assert np.float32(1e-38) / np.float32(4) > 0
