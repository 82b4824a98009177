"""A trained factorization machine as ONNX, from the columns of arrays or dataframes.

The graph computes what ``_kernels/factorization.pyx`` says on dense rows: z becomes the entries of
all rows of the table, in which the knots around a number share a one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dps.estimators.export.encoder import onnx_types, plain_encoder
from dps.losses import LogLoss
from dps.losses.classification import Softmax
from dps.losses.regression import LogLinkLoss
from dps.models.factorization import FactorizationMachine

if TYPE_CHECKING:
    from dps.estimators.base.estimator import DistributedEstimator

#: Largest number of elements of a table in a file: 512 MiB of float32.
_MOST_ELEMENTS = 1 << 27
_ACTIVATIONS = {"relu": "Relu", "tanh": "Tanh", "logistic": "Sigmoid"}
_OPSET, _IR = 18, 9


def onnx_machine(estimator: DistributedEstimator) -> Any:
    """Return the ``onnx.ModelProto`` of a fitted machine; see `_Factorization.to_onnx`."""
    from onnx import TensorProto, compose, helper

    machine: FactorizationMachine = estimator._model
    if machine.inputs.n_rows * machine.key_width > _MOST_ELEMENTS:
        raise ValueError(
            f"the table has {machine.inputs.n_rows:,} rows of {machine.key_width}, and ONNX's rows "
            f"are dense: up to {_MOST_ELEMENTS:,} elements are sensible. Keep the model with save"
        )
    encoder, plain = estimator.encoder_, None
    if encoder is not None:
        features: Sequence[Any] = encoder._layout.features
        plain = plain_encoder(encoder)
        if plain is None or any(getattr(each, "logarithm", False) for each in features):
            raise ValueError(
                "buckets, infrequent categories, lists, dates in parts, logarithms and "
                "interactions have no ONNX: encode with FrameEncoder first, and train on what it "
                "returns"
            )
    single = machine.dtype == np.float32
    number = TensorProto.FLOAT if single or plain is not None else TensorProto.DOUBLE
    graph = _Graph(machine.dtype)
    given = "X" if single or plain is None else graph.add("Cast", "X", to=TensorProto.DOUBLE)
    raw = _raw(graph, machine, estimator._params, given)
    outputs = _finished(graph, estimator, raw)
    made = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "factorization machine",
            [helper.make_tensor_value_info("X", number, [None, machine.n_features])],
            outputs,
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR,
    )
    if plain is None:
        return made
    import skl2onnx

    before = skl2onnx.to_onnx(
        plain, initial_types=onnx_types(encoder), target_opset={"": _OPSET, "ai.onnx.ml": 3}
    )
    before.ir_version = _IR
    before = compose.add_prefix(before, "encoder_", rename_inputs=False)
    return compose.merge_models(before, made, io_map=[(before.graph.output[0].name, "X")])


class _Graph:
    """Nodes and constants of a graph."""

    def __init__(self, dtype: Any) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._dtype = dtype

    def add(self, operation: str, *inputs: Any, output: str = "", **options: object) -> str:
        """Add a node; arrays and numbers among its inputs become constants."""
        from onnx import helper

        output = output or f"machine_{len(self.nodes)}"
        names = [each if isinstance(each, str) else self._constant(each) for each in inputs]
        self.nodes.append(helper.make_node(operation, names, [output], **options))
        return output

    def _constant(self, values: Any) -> str:
        from onnx import numpy_helper

        values, name = np.asarray(values), f"machine_constant_{len(self.constants)}"
        if values.dtype.kind == "f":
            values = values.astype(self._dtype)
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name


def _raw(graph: _Graph, machine: FactorizationMachine, params: Any, given: str) -> str:
    """Add raw outputs (n, n_outputs)."""
    many, views = machine.n_outputs, machine.layout.views(np.asarray(params, np.float64))
    z, rows = _entries(graph, machine, given)
    table = views["table"]
    if machine.inputs.held is not None:
        held, table = table[:-1], np.zeros((machine.inputs.n_rows, machine.key_width))
        table[machine.inputs.held] = held
    table = table[rows]
    weights, factors = table[:, :many], table[:, many:]
    pooled, fields = [], np.zeros(len(rows), np.int64)
    if machine.hidden and machine.inputs.fields is not None:
        fields = np.repeat(machine.inputs.fields, machine.inputs.rows_of_columns)[rows]
    for field in range(int(fields.max(initial=0)) + 1):
        at = np.flatnonzero(fields == field)
        part = z if len(at) == len(rows) else graph.add("Gather", z, at, axis=1)
        pooled.append(graph.add("MatMul", part, factors[at]))
    total = pooled[0] if len(pooled) == 1 else graph.add("Sum", *pooled)
    squares = graph.add("MatMul", graph.add("Mul", z, z), factors**2)
    pairs = graph.add("Sub", graph.add("Mul", total, total), squares)
    mix = views["mix"] if many > 1 else np.ones((1, machine.n_factors))
    raw = graph.add("MatMul", pairs, machine.factor_gain**2 / 2 * mix.T)
    raw = graph.add("Add", raw, graph.add("MatMul", z, weights))
    raw = graph.add("Add", raw, views["intercept"])
    if machine.hidden:
        layers = machine.layers
        assert layers is not None
        above = pooled[0] if len(pooled) == 1 else graph.add("Concat", *pooled, axis=1)
        for number, gain in enumerate(layers.gains):
            weights, biases = views[f"weights_{number}"], views[f"biases_{number}"]
            above = graph.add("MatMul", above, gain * weights)
            above = graph.add("Add", above, layers.bias_gain * biases)
            if number + 1 < len(layers.gains):
                above = _activated(graph, machine.activation, above)
        raw = graph.add("Add", raw, above)
    scaled = graph.add("Mul", raw, np.asarray(machine.output_scale, np.float64))
    return graph.add("Add", scaled, np.asarray(machine.output_shift, np.float64))


def _entries(
    graph: _Graph, machine: FactorizationMachine, given: str
) -> tuple[str, NDArray[np.int64]]:
    """Add values (n, n_rows); return them, and the table row of each of their columns."""
    inputs = machine.inputs
    z, rows = given, np.arange(inputs.n_features)
    if inputs.places is not None and len(inputs.numbers):
        plain = np.flatnonzero(inputs.places < 0)
        counts = [len(knots) for knots in inputs.knots]
        firsts = inputs.first_rows
        spans = [np.arange(n) + firsts[c] for c, n in zip(inputs.numbers, counts, strict=True)]
        rows = np.concatenate([firsts[plain], *spans])
        z = _hats(graph, inputs, given)
        if len(plain):
            z = graph.add("Concat", graph.add("Gather", given, plain, axis=1), z, axis=1)
    if inputs.normalised:
        length = graph.add("ReduceL2", z, np.array([1]), keepdims=1)
        length = graph.add("Max", length, np.asarray(np.finfo(np.float32).tiny, np.float64))
        z = graph.add("Div", z, length)
    return graph.add("Mul", z, np.asarray(float(inputs.gain))), rows


def _hats(graph: _Graph, inputs: Any, given: str) -> str:
    """Add the weight of each knot for a number, between zero and one.

    Ramps rise from 0 to 1 between two knots. The weight of a knot is the difference between its
    ramp and the next one.
    """
    knots = [np.asarray(each, np.float64) for each in inputs.knots]
    gaps = np.array([len(each) - 1 for each in knots])
    of = np.repeat(inputs.numbers, gaps)
    starts = np.concatenate([each[:-1] for each in knots])
    widths = np.concatenate([np.diff(each) for each in knots])
    one = graph.add("Gather", given, inputs.numbers[:1], axis=1)
    one = graph.add("Add", graph.add("Mul", one, np.asarray(0.0)), np.asarray(1.0))
    parts = [one, graph.add("Mul", one, np.asarray(0.0))]
    if len(of):
        ramps = graph.add("Sub", graph.add("Gather", given, of, axis=1), starts)
        ramps = graph.add("Div", ramps, widths)
        parts.append(graph.add("Clip", ramps, np.asarray(0.0), np.asarray(1.0)))
    ramps = graph.add("Concat", *parts, axis=1)
    before, behind, first = [], [], 2
    for n in gaps:
        before += [0, *range(first, first + n)]
        behind += [*range(first, first + n), 1]
        first += n
    left = graph.add("Gather", ramps, np.array(before), axis=1)
    return graph.add("Sub", left, graph.add("Gather", ramps, np.array(behind), axis=1))


def _activated(graph: _Graph, activation: str, values: str) -> str:
    if activation == "silu":
        return graph.add("Mul", values, graph.add("Sigmoid", values))
    return values if activation == "identity" else graph.add(_ACTIVATIONS[activation], values)


def _finished(graph: _Graph, estimator: DistributedEstimator, raw: str) -> list[Any]:
    """Add outputs with skl2onnx's names: label and probabilities or scores, or variable."""
    from onnx import TensorProto, helper

    loss = estimator._model.loss
    loss = getattr(loss, "base", loss)  # the loss of several columns
    number = helper.np_dtype_to_tensor_dtype(estimator._model.dtype)
    many = estimator._model.n_outputs
    if not estimator._classification:
        graph.add("Exp" if isinstance(loss, LogLinkLoss) else "Identity", raw, output="variable")
        return [helper.make_tensor_value_info("variable", number, [None, many])]
    code = graph.add("Cast", graph.add("Greater", raw, np.asarray(0.0)), to=TensorProto.INT64)
    if estimator.multilabel_:
        graph.add("Identity", code, output="label")
        label = helper.make_tensor_value_info("label", TensorProto.INT64, [None, many])
    else:
        classes = np.asarray(estimator.classes_)
        if classes.dtype.kind in "iu":
            classes = classes.astype(np.int64)
        elif classes.dtype.kind not in "bf":
            classes = np.array([str(each) for each in classes], object)
        if many == 1:
            code = graph.add("Squeeze", code, np.array([1]))
        else:
            code = graph.add("ArgMax", raw, axis=1, keepdims=0)
        graph.add("Gather", classes, code, output="label")
        kind = graph.constants[-1].data_type
        label = helper.make_tensor_value_info("label", kind, [None])
    name = "probabilities" if loss.has_probabilities else "scores"
    if isinstance(loss, Softmax):
        chance = graph.add("Softmax", raw, axis=1)
    elif isinstance(loss, LogLoss):
        chance = graph.add("Sigmoid", raw)
    elif loss.has_probabilities:  # the modified Huber loss
        half = graph.add("Add", graph.add("Mul", raw, np.asarray(0.5)), np.asarray(0.5))
        chance = graph.add("Clip", half, np.asarray(0.0), np.asarray(1.0))
    else:
        chance = raw
    if loss.has_probabilities and many == 1 and not estimator.multilabel_:
        other = graph.add("Sub", np.asarray(1.0), chance)
        chance = graph.add("Concat", other, chance, axis=1)
    graph.add("Identity", chance, output=name)
    return [label, helper.make_tensor_value_info(name, number, [None, None])]
