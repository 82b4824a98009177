"""Files of training: losses, optimizers, modes, models, states, histories.

Losses, optimizers, schedules and modes are stored by name. Models and states are checked closely
when they are read, because kernels trust them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from dps._checks import count, floats
from dps.files.records import Kind
from dps.losses.classification import Multilabel, OneVsRest
from dps.losses.names import LOSSES
from dps.models import TableSpec
from dps.models.factorization import FactorInputs, FactorizationMachine
from dps.models.linear import LinearModel
from dps.models.network import Inputs, Network
from dps.modes import MODES
from dps.optimizers import OPTIMIZERS, Averaged
from dps.optimizers.schedules import SCHEDULES
from dps.training.checkpoint.options import Checkpoint
from dps.training.epochs.records import ASKED, SHOWN, History
from dps.training.state import TrainState

_RANKS = "rows_per_replica"


def kinds_by_name() -> list[Kind]:
    """Losses, optimizers, schedules and modes by name, from the current registries."""
    registries: list[tuple[str, Any]] = [
        ("loss", LOSSES), ("optimizer", OPTIMIZERS), ("schedule", SCHEDULES), ("mode", MODES),
    ]  # fmt: skip
    return [
        Kind.of(f"{what}:{name}", cls)
        for what, registry in registries
        for name, cls in registry.items()
    ]


def _check_state(made: TrainState) -> None:
    params, model, state, ids = made.params, made.model, made.state, made.ids
    floats(params, "params", params.size)
    count(made.version, "version")
    count(made.epochs, "epochs")
    count(made.rows, "rows")
    if made.times is not None and not 0 < made.times < np.inf:
        raise ValueError(f"times is {made.times!r}, and must be above 0")
    if model is not None:
        if not hasattr(model, "layout"):
            raise ValueError(f"model is {model!r}, which is none")
        rows = 0 if ids is None else np.atleast_1d(ids).shape[-1]
        floats(params, "params", model.layout.with_rows(rows).size)
        if params.dtype != model.dtype:
            raise ValueError(f"params are of {params.dtype}, and the model of {model.dtype}")
    if (state is None) != (made.optimizer is None):
        raise ValueError("a state of an optimizer belongs to an optimizer")
    if state is not None and made.optimizer is not None:
        # A mean is NaN before the first update.
        floats(state, "state", made.optimizer.state_rows, params.size, finite=False)
        if state.dtype != params.dtype:
            raise ValueError(f"the state is of {state.dtype}, and params of {params.dtype}")
    if (model is None or model.layout.table is None) != (ids is None):
        raise ValueError("ids belong to a model with a table")
    if ids is not None:
        whole = ids.dtype == np.int64 and ids.ndim == 2 and len(ids) == 2
        if not whole or (ids[0, :1] < 0).any() or (np.diff(ids[0]) <= 0).any():
            raise ValueError("ids must be of int64, those of rows ascending from 0 on")


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
        if getattr(column, "dtype", None) != dtypes[name]:
            raise ValueError(f"{name} is no array of {dtypes[name]}: {column!r}")
    lengths = {name: column.shape for name, column in given.items() if name != _RANKS}
    if len(set(lengths.values())) != 1 or n_replicas.ndim != 1:
        raise ValueError(f"epochs differ in number: {lengths}")
    if (n_replicas < 0).any() or rows_per_replica.shape != (n_replicas.sum(),):
        raise ValueError(f"{_RANKS} are not those of all epochs")
    ends = np.cumsum([0, *n_replicas])
    ranks = [tuple(rows_per_replica[a:b].tolist()) for a, b in pairwise(ends)]
    lists = {name: columns[name].tolist() for name in SHOWN} | {_RANKS: ranks}
    *first, kept, last = SHOWN
    names = [*first, _RANKS, kept, last]
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
    Kind.of("loss:one_vs_rest", OneVsRest),
    Kind.of("loss:multilabel", Multilabel),
    Kind.of("optimizer:averaged", Averaged),
    Kind.of("checkpoint_place", Checkpoint),
    Kind.of("state", TrainState, _check_state),
    Kind.of("model:linear", LinearModel),
    Kind.of("inputs", Inputs),
    Kind.of("model:network", Network),
    Kind.of("factor_inputs", FactorInputs),
    Kind.of("table", TableSpec),
    Kind.of("model:factorization", FactorizationMachine),
    Kind("history", History, (*SHOWN, _RANKS, "n_replicas"), _fields_of_history, _history),
)
