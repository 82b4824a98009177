"""Whole tensors: what a server begins with, put on its shards, and what shards have, put together.

It must not know how a shard is reached, or files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dps.optimizers import Optimizer
from dps.parameter_server.table import Table
from dps.server.mirroring import Taken, pieces_of
from dps.server.tensors import TensorSpec


def whole_of(given: Mapping[str, Any]) -> dict[str, Taken]:
    """What tensors begin with; tables begin without rows."""
    return {
        name: Taken(value.reshape(1, len(value) if value.ndim else 1, -1), None, 0)
        for name, value in given.items()
        if not isinstance(value, Table)
    }


def restore(tensor: TensorSpec, whole: Taken, call: Callable[..., Any]) -> None:
    """Have the parts of a tensor begin with what it was.

    Parameters
    ----------
    tensor : TensorSpec
    whole : Taken
        All rows; optimizer state that is not there stays as it is at first.
    call : callable
        ``call(tensor, part, method, ...)`` calls a method of the shard's on a part.
    """
    for part, (_, first, last) in enumerate(tensor.parts):
        if whole.ids is None:
            own = Taken(whole.values[:, first:last], None, whole.version)
        else:
            mine = tensor.part_of(whole.ids) == part
            own = Taken(whole.values[:, mine], whole.ids[mine], whole.version)
        for method, *args in pieces_of(own):
            call(tensor, part, method, *args)


def unknown_part(tensor: TensorSpec, part: int, optimizer: Optimizer) -> Taken:
    """What stands for a part that is lost: zeros, or no rows of a table."""
    _, first, last = tensor.parts[part]
    rows = 0 if tensor.table is not None else last - first
    values = np.zeros((1 + optimizer.state_rows, rows * tensor.width), tensor.dtype)
    optimizer.initialize(values[1:])
    ids = None if tensor.table is None else np.zeros(0, np.int64)
    return Taken(values.reshape(len(values), rows, tensor.width), ids, 0)


def joined(tensor: TensorSpec, taken: Sequence[Taken]) -> Taken:
    """The parts of a tensor, put together; of a table in order of ids."""
    values = np.concatenate([part.values for part in taken], axis=1)
    version = max(part.version for part in taken)
    if tensor.table is None:
        return Taken(values, None, version)
    ids = np.concatenate([part.ids for part in taken if part.ids is not None])
    order = np.argsort(ids)
    return Taken(values[:, order], ids[order], version)
