"""What training leaves, as a file says it: losses, optimizers, modes, models, states, histories.

Losses, optimizers, schedules and modes go by their names in the registries. Models and states are
looked at closely when they are read: kernels trust them.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps.data.records import Kind, dataclass_kind
from dps.losses import LOSSES, Loss, MarginLoss, Multilabel, OneVsRest
from dps.models import (
    FactorInputs,
    FactorizationMachine,
    Inputs,
    LinearModel,
    Network,
    Table,
)
from dps.modes import MODES
from dps.optimizers import OPTIMIZERS, SCHEDULES, Averaged, Optimizer
from dps.training.checkpoint import Checkpoint
from dps.training.history import ASKED, SHOWN, History
from dps.training.state import TrainState

__all__ = ["KINDS", "count", "floats", "kinds_by_name"]

_RANKS = "rows_per_replica"


def kinds_by_name() -> list[Kind]:
    """Losses, optimizers, schedules and modes that have a name, as the registries are now."""
    registries: list[tuple[str, Any]] = [
        ("loss", LOSSES), ("optimizer", OPTIMIZERS), ("schedule", SCHEDULES), ("mode", MODES),
    ]  # fmt: skip
    return [
        dataclass_kind(f"{what}:{name}", cls)
        for what, registry in registries
        for name, cls in registry.items()
    ]


def floats(value: Any, name: str, *shape: int, finite: bool = True) -> NDArray[np.floating]:
    """An array of float32 or float64 of a shape.

    Raises
    ------
    ValueError
        It is none, or holds NaN or infinity and must not.
    """
    if not isinstance(value, np.ndarray) or value.dtype not in (np.float32, np.float64):
        raise ValueError(f"{name} is no array of float32 or float64")
    if value.shape != shape:
        raise ValueError(f"{name} has the shape {value.shape}, where {shape} belongs")
    if finite and not np.isfinite(value).all():
        raise ValueError(f"{name} holds what is no finite number")
    return value


def count(value: Any, name: str, least: int = 0) -> int:
    """A whole number.

    Raises
    ------
    ValueError
        It is none, or too small.
    """
    if type(value) is not int or not least <= value < 1 << 62:
        raise ValueError(f"{name} is {value!r}, and must be a whole number from {least} on")
    return value


def _of(value: Any, kind: Any, name: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{name} is {value!r}, which does not belong there")
    return value


def _one_vs_rest(base: Any) -> OneVsRest:
    return OneVsRest(_of(base, MarginLoss, "base"))


def _multilabel(base: Any) -> Multilabel:
    return Multilabel(_of(base, MarginLoss, "base"))


def _linear(
    n_features: Any, n_outputs: Any, loss: Any, fit_intercept: Any, dtype: Any, centre: Any,
    scale: Any = None,
) -> LinearModel:  # fmt: skip
    n_features = count(n_features, "n_features", 1)
    if centre is not None:
        floats(centre, "centre", n_features)
    if scale is not None:
        floats(scale, "scale", n_features)
        if not (scale > 0).all():
            raise ValueError("scale is not positive")
    return LinearModel(
        n_features, count(n_outputs, "n_outputs", 1), _of(loss, Loss, "loss"),
        _of(fit_intercept, bool, "fit_intercept"), _of(dtype, np.dtype, "dtype"), centre,
        scale,
    )  # fmt: skip


def _inputs(
    places: Any, centre: Any, spread: Any, edges: Any, width: Any, plain_square: Any
) -> Inputs:
    numbers = len(_of(centre, np.ndarray, "centre").ravel())
    floats(centre, "centre", numbers)
    floats(spread, "spread", numbers)
    if len(_of(edges, tuple, "edges")) != numbers:
        raise ValueError(f"there are {len(edges)} arrays of edges, and {numbers} numbers")
    for each in edges:
        floats(each, "edges", max(2, _of(each, np.ndarray, "edges").size))
        if (np.diff(each) <= 0).any() and not (len(each) == 2 and each[0] == each[1]):
            raise ValueError("edges are not ascending")
    _of(places, np.ndarray, "places")
    wanted = np.r_[numbers - len(places) : numbers]  # plain columns from -1 down, numbers from 0 up
    if places.dtype != np.int64 or not np.array_equal(np.sort(places, axis=None), wanted):
        raise ValueError("places are not those of each number and each plain column once")
    if type(plain_square) is not float or not 0 <= plain_square < np.inf:
        raise ValueError(f"plain_square is {plain_square!r}, and must not be negative")
    return Inputs(places, centre, spread, edges, count(width, "width"), plain_square)


def _network(
    inputs: Any, hidden: Any, n_outputs: Any, loss: Any, activation: Any, dropout: Any,
    dtype: Any, output_shift: Any, output_scale: Any,
) -> Network:  # fmt: skip
    return Network(
        _of(inputs, Inputs, "inputs"),
        *_checked(hidden, n_outputs, loss, activation, dropout, dtype, output_shift, output_scale),
    )


def _checked(
    hidden: Any, n_outputs: Any, loss: Any, activation: Any, dropout: Any, dtype: Any,
    output_shift: Any, output_scale: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """What models with layers have in common, in the order of their parameters."""
    n_outputs = count(n_outputs, "n_outputs", 1)
    sizes = tuple(count(units, "hidden", 1) for units in _of(hidden, tuple, "hidden"))
    if type(dropout) is not float or not 0 <= dropout < 1:
        raise ValueError(f"dropout is {dropout!r}, and must be in [0, 1)")
    if _of(dtype, np.dtype, "dtype") not in (np.float32, np.float64):
        raise ValueError(f"dtype is {dtype}, and must be float32 or float64")
    return (
        sizes, n_outputs, _of(loss, Loss, "loss"), _of(activation, str, "activation"), dropout,
        dtype, floats(output_shift, "output_shift", n_outputs),
        floats(output_scale, "output_scale", n_outputs),
    )  # fmt: skip


def _numbered(value: Any, name: str, n: int) -> NDArray[np.int32]:
    """An array of int32 with a number for each of n columns."""
    array: NDArray[np.int32] = _of(value, np.ndarray, name)
    if array.dtype != np.int32 or array.shape != (n,):
        raise ValueError(f"{name} is of {array.dtype} and {array.shape}, and not of int32, ({n},)")
    return array


def _factor_inputs(
    n_features: Any, places: Any, knots: Any, fields: Any, gain: Any, normalised: Any, held: Any
) -> FactorInputs:
    n = count(n_features, "n_features", 1)
    for each in _of(knots, tuple, "knots"):
        floats(each, "knots", max(1, _of(each, np.ndarray, "knots").size))
        if (np.diff(each) <= 0).any():
            raise ValueError("knots are not ascending")
    if places is not None:
        given = _numbered(places, "places", n)
        if not np.array_equal(np.sort(given[given != -1]), np.arange(len(knots))):
            raise ValueError("places are not those of each number once")
    elif knots:
        raise ValueError("there are knots, and no numbers")
    if fields is not None and not (_numbered(fields, "fields", n) >= 0).all():
        raise ValueError("fields hold a number below 0")
    if fields is not None and fields.max() >= n:
        raise ValueError(f"there are {fields.max() + 1} fields of {n} columns")
    if type(gain) is not float or not 0 < gain < np.inf:
        raise ValueError(f"gain is {gain!r}, and must be above 0")
    inputs = FactorInputs(n, places, knots, fields, gain, _of(normalised, bool, "normalised"), held)
    if held is not None:
        _of(held, np.ndarray, "held")
        below = held.ndim == 1 and held.dtype == np.int64 and (held < inputs.n_rows).all()
        if not below or (held[:1] < 0).any() or (np.diff(held) <= 0).any():
            raise ValueError(f"held are not rows among {inputs.n_rows}, ascending")
    return inputs


def _table(
    rows: Any, width: Any, zeros: Any, scale: Any, min_count: Any, expire: Any, normal: Any
) -> Table:
    if type(scale) is not float or not 0 <= scale < np.inf:
        raise ValueError(f"scale is {scale!r}, and must not be below 0")
    return Table(
        count(rows, "rows", 1), count(width, "width", 1), count(zeros, "zeros"), scale,
        count(min_count, "min_count", 1), count(expire, "expire"), _of(normal, bool, "normal"),
    )  # fmt: skip


def _factorization(
    inputs: Any, n_factors: Any, hidden: Any, n_outputs: Any, loss: Any, activation: Any,
    dropout: Any, dtype: Any, output_shift: Any, output_scale: Any, table: Any,
) -> FactorizationMachine:  # fmt: skip
    if table is not None:
        _of(table, Table, "table")
    made = partial(FactorizationMachine, table=table)
    return made(
        _of(inputs, FactorInputs, "inputs"), count(n_factors, "n_factors", 1),
        *_checked(hidden, n_outputs, loss, activation, dropout, dtype, output_shift, output_scale),
    )  # fmt: skip


def _fields_of_network(network: Network) -> dict[str, Any]:
    return {**vars(network), "hidden": network.sizes[1:-1]}


def _state(
    params: Any, model: Any, state: Any, optimizer: Any, version: Any, epochs: Any, ids: Any
) -> TrainState:
    floats(params, "params", getattr(params, "size", 0))
    if model is not None:
        if not hasattr(model, "layout"):
            raise ValueError(f"model is {model!r}, which is none")
        rows = 0 if ids is None else np.atleast_1d(_of(ids, np.ndarray, "ids")).shape[-1]
        floats(params, "params", model.layout.with_rows(rows).size)
        if params.dtype != model.dtype:
            raise ValueError(f"params are of {params.dtype}, and the model of {model.dtype}")
    if (state is None) != (optimizer is None):
        raise ValueError("a state of an optimizer belongs to an optimizer")
    if state is not None:
        rows = _of(optimizer, Optimizer, "optimizer").state_rows
        # A mean is NaN before the first update.
        floats(state, "state", rows, params.size, finite=False)
        if state.dtype != params.dtype:
            raise ValueError(f"the state is of {state.dtype}, and params of {params.dtype}")
    table = None if model is None else model.layout.table
    if (table is None) != (ids is None):
        raise ValueError("ids belong to a model with a table")
    if table is not None:
        whole = ids.dtype == np.int64 and ids.ndim == 2 and len(ids) == 2
        if not whole or (ids[0, :1] < 0).any() or (np.diff(ids[0]) <= 0).any():
            raise ValueError("ids must be of int64, those of rows ascending from 0 on")
    return TrainState(
        params, model, state, optimizer, count(version, "version"), count(epochs, "epochs"), ids
    )


def _fields_of_history(history: History) -> dict[str, Any]:
    ranks = [record[_RANKS] for record in history]
    return {
        **{name: np.array([record.get(name, np.nan) for record in history]) for name in SHOWN},
        _RANKS: np.array([rows for each in ranks for rows in each], np.int64),
        "n_replicas": np.array([len(each) for each in ranks], np.int64),
    }


def _history(rows_per_replica: Any, n_replicas: Any, **columns: Any) -> History:
    given = {_RANKS: rows_per_replica, "n_replicas": n_replicas}
    dtypes: dict[str, Any] = {**dict.fromkeys(given, np.int64), **SHOWN}
    given |= columns
    for name, column in given.items():
        if _of(column, np.ndarray, name).dtype != dtypes[name]:
            raise ValueError(f"{name} is of {column.dtype}")
    lengths = {name: column.shape for name, column in given.items() if name != _RANKS}
    if len(set(lengths.values())) != 1 or n_replicas.ndim != 1:
        raise ValueError(f"epochs differ in number: {lengths}")
    if (n_replicas < 0).any() or rows_per_replica.shape != (n_replicas.sum(),):
        raise ValueError(f"{_RANKS} are not those of all epochs")
    ends = np.cumsum([0, *n_replicas])
    ranks = [tuple(rows_per_replica[a:b].tolist()) for a, b in pairwise(ends)]
    lists = {name: columns[name].tolist() for name in SHOWN} | {_RANKS: ranks}
    *first, last = SHOWN
    names = [*first, _RANKS, last]
    epochs = [
        dict(zip(names, epoch, strict=True))
        for epoch in zip(*(lists[name] for name in names), strict=True)
    ]
    for record in epochs:
        for asked in ASKED:
            if np.isnan(record[asked]):
                del record[asked]
    return History(epochs)


#: Kinds without a registry.
KINDS = (
    dataclass_kind("loss:one_vs_rest", OneVsRest, _one_vs_rest),
    dataclass_kind("loss:multilabel", Multilabel, _multilabel),
    dataclass_kind("optimizer:averaged", Averaged),
    dataclass_kind("checkpoint_place", Checkpoint),
    dataclass_kind("inputs", Inputs, _inputs),
    dataclass_kind("state", TrainState, _state),
    Kind(
        "model:linear",
        LinearModel,
        ("n_features", "n_outputs", "loss", "fit_intercept", "dtype", "centre", "scale"),
        vars,
        _linear,
    ),
    Kind(
        "model:network",
        Network,
        ("inputs", "hidden", "n_outputs", "loss", "activation", "dropout", "dtype",
         "output_shift", "output_scale"),
        _fields_of_network,
        _network,
    ),
    dataclass_kind("factor_inputs", FactorInputs, _factor_inputs),
    dataclass_kind("table", Table, _table),
    Kind(
        "model:factorization",
        FactorizationMachine,
        ("inputs", "n_factors", "hidden", "n_outputs", "loss", "activation", "dropout", "dtype",
         "output_shift", "output_scale", "table"),
        vars,
        _factorization,
    ),
    Kind(
        "history", History, (*SHOWN, _RANKS, "n_replicas"), _fields_of_history, _history
    ),
)  # fmt: skip
