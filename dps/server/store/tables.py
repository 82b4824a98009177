"""The assignment of a table's rows to shards."""

from __future__ import annotations

import numpy as np

from dps._kernels.table import owners
from dps.models.layout import TableSpec
from dps.optimizers import Optimizer
from dps.server.group.window import slice_width
from dps.server.placement import Placement
from dps.server.store.snapshots import Snapshot
from dps.server.store.store import Arena


def arena_of(
    table: TableSpec,
    placement: Placement,
    shard: int,
    n_ranks: int,
    seed: int,
    optimizer: Optimizer,
) -> Arena:
    """Return a shard's part of a table that `n_ranks` ranks share."""
    start = np.zeros((optimizer.state_rows, 1))
    optimizer.initialize(start)
    return Arena(
        table,
        placement.below(shard, table.rows * table.width) // table.width,
        slice_width(placement.size(shard), n_ranks, table.width) // table.width,
        seed,
        tuple(map(float, start[:, 0])),
    )


def rows_by_shard(kept: Snapshot, table: TableSpec, placement: Placement) -> list[Snapshot]:
    """Distribute the rows of a table over shards, wherever they were before.

    kept: the whole snapshot.
    Returns one part per shard, without the elements after the table.
    """
    row = owners(np.ascontiguousarray(kept.ids[0]), table.rows)
    shard_of = np.searchsorted(placement.cuts, row * table.width, side="right") - 1
    rows = kept.split(table.width)[0].reshape(len(kept.values), -1, table.width)
    made = []
    for shard in range(len(placement)):
        mine = np.flatnonzero(shard_of == shard)
        values = rows[:, mine].reshape(len(rows), -1)
        made.append(Snapshot(values, kept.version, kept.ids[:, mine]))
    return made
