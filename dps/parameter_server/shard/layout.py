"""The layout of a server of named tensors: which rows lie on which shard.

A tensor's part at a shard is a store of its own, so that each has its own version and optimizer
state. It is a run of whole rows, of the first axis; of a table, the ids that hash there.
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

#: Shard, first row and last row.
TensorRange = tuple[int, int, int]

#: A user's rule: the shard of a tensor, of its name and shape.
Rule = Callable[[str, tuple[int, ...]], int]

#: A hash table is slow where it is full.
_ROOM = 1.25


@dataclass(frozen=True)
class TensorSpec:
    """A tensor, or a table."""

    name: str
    # For a table the minimal number of rows with room, and the elements of a row.
    shape: tuple[int, ...]
    dtype: str  # {"float32", "float64"}
    # Shard, first and last row of each part, in order of rows; of a table one a shard, with rows
    # from 0 on.
    parts: tuple[TensorRange, ...]
    table: TableSpec | None = None
    seed: int = 0  # of a table's new rows
    # The token of the call that made it, so that no other call claims it. "": it begins with zeros.
    creation: str = ""

    @cached_property
    def width(self) -> int:
        """Elements of a row."""
        return prod(self.shape[1:])

    @cached_property
    def rows(self) -> int:
        """Rows of the first axis; a number has one."""
        return self.shape[0] if self.shape else 1

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The first row of each part but the first."""
        return np.array([first for _, first, _ in self.parts[1:]], np.int64)

    def part_of(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """The part that has each key."""
        if self.table is not None:
            return owners(keys, len(self.parts))
        return np.searchsorted(self.starts, keys, "right")

    def where(self, number: int) -> str:
        """Description of a part, in words."""
        _, first, last = self.parts[number]
        if self.table is not None:
            return f"{self.name!r}, ids of part {number + 1} of {len(self.parts)}"
        return f"{self.name}[{first}:{last}]"

    def store(self, owner: str, number: int, optimizer: Optimizer) -> StoreSpec:
        """The specification of a part's store."""
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

    id: str  # hexadecimal; files carry it
    name: str | None
    tensors: tuple[TensorSpec, ...]
    optimizer: Optimizer
    rate: float  # learning rate
    n_shards: int
    timeout: float = 60.0  # seconds that a function may take on a part while others wait for it
    silence: float = 2.0  # seconds without any answer after which another host is gone

    def __str__(self) -> str:
        return f"server {self.name!r}" if self.name else "a server without a name"

    def held(self, shard: int) -> list[tuple[TensorSpec, int]]:
        """The tensors that have a part on a shard, and the numbers of these parts, in order."""
        return [
            (tensor, number)
            for tensor in self.tensors
            for number, (owner, _, _) in enumerate(tensor.parts)
            if owner == shard
        ]

    def lost(self, shard: int, what: str, worker: str) -> ServerLostError:
        """The error of a shard that cannot be reached, which says what it holds."""
        parts = ", ".join(tensor.where(number) for tensor, number in self.held(shard))
        return ServerLostError(
            f"shard {shard} of {self} cannot be reached ({what}): it holds {parts}", worker=worker
        )

    def update(self, size: int) -> Update:
        """The update that applies gradients to a part with a number of elements."""
        return Update(self.optimizer, 0.0, 0.0, ((0, size, KINDS_OF_RUNS["penalised"]),))


def table_parts(rows: int, n_shards: int) -> tuple[TensorRange, ...]:
    """Rooms for a table's rows, one a shard: hashed, so some get a few more than others."""
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
