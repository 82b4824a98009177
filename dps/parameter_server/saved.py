"""A server in files: a record that describes it, and arrays of whole tensors.

Files do not mention shards, so any number of shards can load them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from dps.errors import NonFiniteError
from dps.files.directories import read_directory, write_directory
from dps.files.records import Kind, RecordReader, RecordWriter
from dps.optimizers import OPTIMIZERS, Optimizer
from dps.parameter_server.arguments import Initial, initial_values, learning_rate_of
from dps.parameter_server.shard.layout import ServerSpec
from dps.parameter_server.shard.mirroring import PartSnapshot
from dps.parameter_server.table import EmbeddingTable

if TYPE_CHECKING:
    from dps._typing import PathLike

#: Largest plausible number of rows or pushes.
_LARGEST_COUNT = 1 << 62


@dataclass(frozen=True)
class SavedServer:
    """A server as read from files."""

    tensors: Initial
    whole: dict[str, PartSnapshot]
    optimizer: Optimizer
    rate: float
    notes: dict[str, bytes]

    @property
    def without_state(self) -> dict[str, PartSnapshot]:
        """The tensors for another optimizer: parameters without state, with updates from 0."""
        return {
            name: PartSnapshot(each.values[:1], each.ids, 0) for name, each in self.whole.items()
        }


@dataclass(frozen=True)
class _Tensor:
    """A tensor in a record."""

    shape: tuple[int, ...]
    values: Any  # (1 + state_rows, rows, width)
    version: int
    table: EmbeddingTable | None
    ids: Any  # (rows,)


@dataclass(frozen=True)
class _Server:
    optimizer: Optimizer
    learning_rate: float
    tensors: dict[str, _Tensor]
    notes: dict[str, Any]


_KINDS = [
    Kind.of("parameter_server", _Server),
    Kind.of("tensor", _Tensor),
    Kind.of("table", EmbeddingTable),
    *(Kind.of(f"optimizer:{name}", cls) for name, cls in OPTIMIZERS.items()),
]


def write_server(
    path: PathLike,
    spec: ServerSpec,
    tensors: Mapping[str, PartSnapshot],
    notes: Mapping[str, bytes],
) -> None:
    """Write all tensors and notes.

    Raises TypeError: the optimizer is a user's own.
    Raises NonFiniteError: an element is NaN or infinite.
    """
    records = {}
    for tensor in spec.tensors:
        whole = tensors[tensor.name]
        bad = np.flatnonzero(~np.isfinite(whole.values).all(axis=(0, 2)))
        if len(bad):
            row = bad[0] if whole.ids is None else whole.ids[bad[0]]
            raise NonFiniteError(
                f"{tensor.name!r} is NaN or infinite in {len(bad)} rows, at first in {row}: "
                "assign finite values to them, then save it again"
            )
        table = None
        if tensor.table is not None:
            made = tensor.table
            table = EmbeddingTable(
                dim=made.width,
                init="normal" if made.normal else "zeros" if made.zeros else "uniform",
                scale=made.scale,
                capacity=tensor.shape[0],
                random_state=tensor.seed,
                dtype=tensor.dtype,
            )
        records[tensor.name] = _Tensor(tensor.shape, whole.values, whole.version, table, whole.ids)
    writer = RecordWriter(_KINDS)
    texts = {name: np.frombuffer(note, np.uint8) for name, note in notes.items()}
    record = writer(_Server(spec.optimizer, spec.rate, records, texts), "server")
    write_directory(path, record, writer.arrays)


def read_server(path: PathLike) -> SavedServer:
    """Read a saved server.

    Raises FileNotFoundError: there is none.
    Raises ValueError: it is damaged, or something else.
    """
    record, arrays = read_directory(path)
    if not isinstance(record, dict) or record.get("kind") != "parameter_server":
        raise ValueError(f"{path} holds no parameter server")
    server = RecordReader(_KINDS, arrays)(record, "server")
    if not isinstance(server.optimizer, Optimizer):
        raise ValueError(f"{path} is damaged: its optimizer is none")
    try:
        rate = learning_rate_of(server.optimizer, server.learning_rate)
        rows = 1 + server.optimizer.state_rows
        tensors = {name: _checked(name, each, rows) for name, each in server.tensors.items()}
        notes = {name: _bytes(name, each) for name, each in server.notes.items()}
        initial = initial_values(
            {
                name: each.table or each.values[0].reshape(each.shape)
                for name, each in tensors.items()
            }
        )
    except (TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    whole = {
        name: PartSnapshot(each.values, each.ids, each.version) for name, each in tensors.items()
    }
    return SavedServer(initial, whole, server.optimizer, rate, notes)


def _bytes(name: object, note: Any) -> bytes:
    """Return a note of a file."""
    known = isinstance(name, str) and isinstance(note, np.ndarray) and note.dtype == np.uint8
    if not known or note.ndim != 1:
        raise ValueError(f"the note {name!r} is none")
    return bytes(note)


def _checked(name: str, tensor: object, state_rows: int) -> _Tensor:
    """Return a tensor of a file after checks that its arrays agree."""
    if not isinstance(tensor, _Tensor):
        raise ValueError(f"{name!r} is no tensor")
    values, ids, shape = tensor.values, tensor.ids, tensor.shape
    if not isinstance(values, np.ndarray) or values.dtype not in (np.float32, np.float64):
        raise ValueError(f"{name!r} holds no numbers")
    if not isinstance(shape, tuple) or not all(
        type(n) is int and 0 < n < _LARGEST_COUNT for n in shape
    ):
        raise ValueError(f"{name!r} has the shape {shape!r}")
    if type(tensor.version) is not int or not 0 <= tensor.version < _LARGEST_COUNT:
        raise ValueError(f"{name!r} has had {tensor.version!r} pushes")
    if tensor.table is None and ids is not None:
        raise ValueError(f"{name!r} is no table, and has ids")
    rows = shape[0] if shape else 1
    if tensor.table is not None:
        if not isinstance(tensor.table, EmbeddingTable) or not isinstance(ids, np.ndarray):
            raise ValueError(f"{name!r} is no table")
        known = ids.dtype == np.int64 and ids.ndim == 1 and np.unique(ids).size == ids.size
        if not known or (ids.size and not 0 <= ids.min() <= ids.max() < 1 << 62):
            raise ValueError(f"{name!r} has ids that are none")
        if (tensor.table.capacity, tensor.table.dim) != shape or tensor.table.dtype != values.dtype:
            raise ValueError(f"{name!r} of the shape {shape} is {tensor.table}")
        rows = ids.size
        if rows > shape[0]:  # it had room for more rows than requested; so will the new one
            shape = (rows, *shape[1:])
            tensor = replace(tensor, shape=shape, table=replace(tensor.table, capacity=rows))
    width = prod(shape[1:])
    if values.shape != (state_rows, rows, width) or not np.isfinite(values).all():
        raise ValueError(f"{name!r} of the shape {shape} has values of the shape {values.shape}")
    return tensor
