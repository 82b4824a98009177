"""Whole tensors: initial values for shards, and values collected from all shards."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Container, Mapping
from typing import Any

import numpy as np

from dps.errors import DPSError
from dps.optimizers import Optimizer
from dps.parameter_server.shard.layout import TensorSpec
from dps.parameter_server.shard.mirroring import PartSnapshot, pieces_of
from dps.parameter_server.table import EmbeddingTable

#: Elements that are read at a time.
_PIECE = 1 << 20


class CopyLostError(Exception):
    """A copy that is being read is lost: its shard was lost, or a mirror leads now."""


def whole_of(given: Mapping[str, Any]) -> dict[str, PartSnapshot]:
    """Return initial values of tensors; tables begin without rows."""
    return {
        name: PartSnapshot(value.reshape(1, len(value) if value.ndim else 1, -1), None, 0)
        for name, value in given.items()
        if not isinstance(value, EmbeddingTable)
    }


def restore(tensor: TensorSpec, whole: PartSnapshot, call: Callable[..., Any]) -> None:
    """Set the parts of a tensor to saved values.

    whole: all rows; missing optimizer state keeps its initial values.
    call: ``call(tensor, part, method, ...)`` calls a method of a part's shard.
    """
    for part, (_, first, last) in enumerate(tensor.parts):
        if whole.ids is None:
            own = PartSnapshot(whole.values[:, first:last], None, whole.version)
        else:
            mine = tensor.part_of(whole.ids) == part
            own = PartSnapshot(whole.values[:, mine], whole.ids[mine], whole.version)
        for method, *args in pieces_of(own):
            call(tensor, part, method, *args)


def gathered(
    tensor: TensorSpec, optimizer: Optimizer, lost: Container[int], call: Callable[..., Any]
) -> PartSnapshot:
    """Read a tensor in pieces into one array; rows of tables in the order of their ids.

    lost: shards whose rows are zeros in arrays and missing in tables.
    call: ``call(part, method, ...)`` calls a method of the part's shard.
    Raises CopyLostError: call this function again.
    """
    token = secrets.token_hex(8)
    there = [part for part, (shard, _, _) in enumerate(tensor.parts) if shard not in lost]
    frozen: dict[int, Any] = {}
    try:
        for part in there:
            frozen[part] = call(part, "freeze", token)
        ids, n_rows = None, tensor.parts[-1][2]
        places: dict[int, Any] = {}
        if tensor.table is not None:
            unsorted = np.concatenate([np.zeros(0, np.int64), *(frozen[part][1] for part in there)])
            order = np.argsort(unsorted)
            ids, n_rows, place = unsorted[order], len(order), np.empty_like(order)
            place[order] = np.arange(n_rows)
            ends = np.cumsum([frozen[part][0] for part in there])
            places = dict(zip(there, np.split(place, ends), strict=False))
        values = np.zeros((1 + optimizer.state_rows, n_rows, tensor.width), tensor.dtype)
        optimizer.initialize(values[1:].reshape(optimizer.state_rows, n_rows * tensor.width))
        each = max(1, _PIECE // (len(values) * tensor.width))
        longest = max((rows for rows, _, _ in frozen.values()), default=0)
        for start in range(0, longest, each):  # in turn: a copy that is not read is dropped
            for part in there:
                first, rows = tensor.parts[part][1], frozen[part][0]
                if (stop := min(start + each, rows)) > start:
                    into = slice(first + start, first + stop)
                    if ids is not None:
                        into = places[part][start:stop]
                    try:
                        values[:, into] = call(part, "frozen_rows", token, start, stop)
                    except LookupError as error:
                        raise CopyLostError("a shard has no copy of its part") from error
        version = max((version for _, _, version in frozen.values()), default=0)
        return PartSnapshot(values, ids, version)
    finally:
        for part in frozen:
            with contextlib.suppress(DPSError, CopyLostError):
                call(part, "thaw", token)
