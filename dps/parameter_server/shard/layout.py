"""The layout of a server of named tensors: which shard has which rows.

A tensor's part at a shard is a store of its own, so each part has its own version and optimizer
state. A part is a run of whole rows; for a table, the ids that hash to its shard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod

import numpy as np
from numpy.typing import NDArray

from dps._kernels.optimizers import KINDS_OF_RUNS
from dps._kernels.table import owners
from dps.errors import ServerLostError
from dps.models.layout import TableSpec
from dps.optimizers import Optimizer
from dps.optimizers.update import Update
from dps.server.placement import Placement
from dps.server.store.store import Arena, StoreSpec

#: Shard, first row and end.
TensorRange = tuple[int, int, int]

#: A user's rule: returns the shard of a tensor from its name and shape.
Rule = Callable[[str, tuple[int, ...]], int]

#: A hash table has this much more room, because a full one is slow.
_ROOM = 1.25


@dataclass(frozen=True)
class TensorSpec:
    """A tensor, or a table."""

    name: str
    # For a table the least number of rows that there must be room for, and the elements of a row.
    shape: tuple[int, ...]
    dtype: str  # {"float32", "float64"}
    # Shard, first row and end of each part, in order of rows; for a table one part per shard, with
    # rows from 0 on.
    parts: tuple[TensorRange, ...]
    table: TableSpec | None = None
    seed: int = 0  # for a table's new rows
    # Token of the call that created it, so that no other call claims it. "": initial values are
    # zeros.
    creation: str = ""

    @cached_property
    def width(self) -> int:
        """Elements of a row."""
        return prod(self.shape[1:])

    @cached_property
    def rows(self) -> int:
        """Rows of the first axis; a scalar has one."""
        return self.shape[0] if self.shape else 1

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """First row of each part except the first."""
        return np.array([first for _, first, _ in self.parts[1:]], np.int64)

    def part_of(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the part of each key."""
        if self.table is not None:
            return owners(keys, len(self.parts))
        return np.searchsorted(self.starts, keys, "right")

    def where(self, number: int) -> str:
        """Describe a part in words."""
        _, first, last = self.parts[number]
        if self.table is not None:
            return f"{self.name!r}, ids of part {number + 1} of {len(self.parts)}"
        return f"{self.name}[{first}:{last}]"

    def store(self, owner: str, number: int, optimizer: Optimizer) -> StoreSpec:
        """Return the specification of a part's store."""
        shard, first, last = self.parts[number]
        arena = None
        if self.table is not None:
            start = np.zeros((optimizer.state_rows, 1))
            optimizer.initialize(start)
            rows = last - first
            arena = Arena(self.table, rows, rows, self.seed, tuple(map(float, start[:, 0])))
        return StoreSpec(
            owner, shard, (last - first) * self.width, self.dtype, optimizer.state_rows,
            digest=self.name, key_width=self.width, n_snapshots=0, arena=arena,
        )  # fmt: skip


@dataclass(frozen=True)
class ServerSpec:
    """A server of named tensors."""

    id: str  # hexadecimal; names of files contain it
    name: str | None
    tensors: tuple[TensorSpec, ...]
    optimizer: Optimizer
    rate: float  # learning rate
    n_shards: int
    timeout: float = 60.0  # seconds that a function may take on a part while others wait for it
    silence: float = 2.0  # seconds without any answer after which another host is lost

    def __str__(self) -> str:
        return f"server {self.name!r}" if self.name else "a server without a name"

    def held(self, shard: int) -> list[tuple[TensorSpec, int]]:
        """Return the tensors with a part on a shard, and the numbers of these parts, in order."""
        return [
            (tensor, number)
            for tensor in self.tensors
            for number, (owner, _, _) in enumerate(tensor.parts)
            if owner == shard
        ]

    def lost(self, shard: int, what: str, worker: str) -> ServerLostError:
        """Return the error of a shard that cannot be reached, with its tensors."""
        parts = ", ".join(tensor.where(number) for tensor, number in self.held(shard))
        return ServerLostError(
            f"shard {shard} of {self} cannot be reached ({what}): it holds {parts}", worker=worker
        )

    def update(self, size: int) -> Update:
        """Return how gradients are applied to a part of some size."""
        return Update(self.optimizer, 0.0, 0.0, ((0, size, KINDS_OF_RUNS["penalised"]),))


def table_parts(rows: int, n_shards: int) -> tuple[TensorRange, ...]:
    """Return room for a table's rows on each shard; hashing gives some shards a few more."""
    each = ceil(_ROOM * rows / n_shards) + 64
    return tuple((shard, 0, each) for shard in range(n_shards))


def _contiguous(
    shapes: Mapping[str, tuple[int, ...]], n_shards: int
) -> dict[str, list[TensorRange]]:
    made = {}
    for name, shape in shapes.items():
        where = Placement.of(shape[0] if shape else 1, n_shards)
        made[name] = [(shard, *where.range(shard)) for shard in range(len(where))]
    return made


def _whole(
    shapes: Mapping[str, tuple[int, ...]], shards: Mapping[str, int]
) -> dict[str, list[TensorRange]]:
    return {n: [(shards[n], 0, shape[0] if shape else 1)] for n, shape in shapes.items()}


def _round_robin(
    shapes: Mapping[str, tuple[int, ...]], n_shards: int
) -> dict[str, list[TensorRange]]:
    return _whole(shapes, {name: number % n_shards for number, name in enumerate(shapes)})


def _balanced(shapes: Mapping[str, tuple[int, ...]], n_shards: int) -> dict[str, list[TensorRange]]:
    loads, shards = [0] * n_shards, {}
    for name in sorted(shapes, key=lambda name: (-prod(shapes[name]), name)):
        shards[name] = min(range(n_shards), key=lambda shard: (loads[shard], shard))
        loads[shards[name]] += prod(shapes[name])
    return _whole(shapes, shards)


RULES = {"balanced": _balanced, "contiguous": _contiguous, "round_robin": _round_robin}


def parts_of(
    shapes: Mapping[str, tuple[int, ...]], n_shards: int, placement: str | Rule
) -> dict[str, list[TensorRange]]:
    """Place tensors on shards; tables are on all of them, by a hash of the id.

    placement: {"contiguous", "balanced", "round_robin"} or callable, each tensor cut into as many
        equal runs of rows as there are shards; whole tensors, the largest first to the shard that
        has least; whole tensors in turn; or ``rule(name, shape)``, the shard of a whole tensor.

    Examples
    --------
    >>> parts_of({"a": (4,), "b": (2, 8)}, 2, "contiguous")
    {'a': [(0, 0, 2), (1, 2, 4)], 'b': [(0, 0, 1), (1, 1, 2)]}
    >>> parts_of({"a": (4,), "b": (2, 8)}, 2, "balanced")
    {'a': [(1, 0, 4)], 'b': [(0, 0, 2)]}
    """
    if isinstance(placement, str):
        if placement not in RULES:
            raise ValueError(
                f"The 'placement' parameter must be a function or a str among {sorted(RULES)}. "
                f"Got {placement!r} instead."
            )
        return RULES[placement](shapes, n_shards)
    shards = {name: placement(name, shape) for name, shape in shapes.items()}
    for name, shard in shards.items():
        if not isinstance(shard, int | np.integer) or not 0 <= shard < n_shards:
            raise ValueError(
                f"placement({name!r}, {shapes[name]}) must be a shard from 0 to {n_shards - 1}. "
                f"Got {shard!r} instead."
            )
    return _whole(shapes, {name: int(shard) for name, shard in shards.items()})
