"""Which shard and row an id of a table has: tables are laid out anew when a fit goes on from one.

It must not know models, ranks or modes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dps._kernels.table import owners
from dps.models.layout import Table
from dps.optimizers import Optimizer
from dps.server.placement import Placement
from dps.server.store import Arena, Kept, Store, StoreSpec
from dps.server.window import slice_width

__all__ = ["arena_of", "lay_out"]


def arena_of(
    table: Table, placement: Placement, shard: int, n_ranks: int, seed: int, optimizer: Optimizer
) -> Arena:
    """A shard's part of a table, of which so many ranks have charge."""
    start = np.zeros((optimizer.state_rows, 1))
    optimizer.initialize(start)
    return Arena(
        table,
        placement.below(shard, table.rows * table.width) // table.width,
        slice_width(placement.size(shard), n_ranks, table.width) // table.width,
        seed,
        tuple(map(float, start[:, 0])),
    )


def lay_out(kept: Kept, specs: list[StoreSpec], placement: Placement) -> list[Kept]:
    """Lay a whole vector with a table out on shards, wherever its rows were before.

    Parameters
    ----------
    kept : Kept
        Of the whole vector, with the ids of all keys.
    specs : list of StoreSpec
        One a shard.
    placement : Placement

    Returns
    -------
    list of Kept
        One a shard, with the ids of its rows.

    Raises
    ------
    ValueError
        A shard has no room for all of its rows.
    """
    width = placement.unit
    there = np.flatnonzero(kept.ids[0] > 0)
    rows = kept.values.reshape(len(kept.values), -1, width)[:, there]
    ids, seen = kept.ids[0, there] - 1, kept.ids[1, there]
    table = sum(spec.arena.rows for spec in specs if spec.arena is not None)
    shards = np.empty(kept.ids.shape[1], np.int64)
    for shard, ranges in enumerate(placement.by_key().ranges):
        for start, stop in ranges:
            shards[start:stop] = shard
    shard_of = shards[owners(ids, table)]
    made = []
    for shard, spec in enumerate(specs):
        values = np.array(placement.take(shard, kept.values))
        mine = np.flatnonzero(shard_of == shard)
        at, shard_ids = _places(spec, ids[mine])
        shard_ids[1, at] = seen[mine]
        by_row = values.reshape(len(values), -1, width)
        by_row[:, : shard_ids.shape[1]] = 0
        by_row[:, at] = rows[:, mine]
        made.append(Kept(values, kept.version, shard_ids))
    return made


def _places(spec: StoreSpec, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The row of each id at a shard, and the ids of all of its rows."""
    arena = spec.arena
    assert isinstance(arena, Arena)
    anyhow = replace(arena, table=replace(arena.table, min_count=1, expire=0))
    made = Store.create(replace(spec, arena=anyhow, n_snapshots=0), _zeros(spec))
    assert made.table is not None
    at = made.table.make(ids)
    if (at < 0).any():
        raise ValueError(
            f"{len(ids)} rows of a table do not fit into the {arena.rows} of shard {spec.shard}: "
            "raise max_rows"
        )
    return at, np.array(made.ids)


def _zeros(spec: StoreSpec) -> NDArray[np.floating]:
    return np.zeros((1 + spec.state_rows, spec.size), spec.dtype)
