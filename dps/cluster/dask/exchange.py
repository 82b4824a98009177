"""Every row goes to a partition drawn by chance: the tasks of it, and how many at a time.

What a holder gives to one new partition is one piece, so that tasks do not grow with the
number of partitions that there are.
"""

from __future__ import annotations

from collections.abc import Sequence

from distributed import Future

from dps.cluster.dask.tasks import draw_each, item, join_pieces, pick_rows
from dps.cluster.dask.work import FitWork
from dps.data.collections.partitions import Partition
from dps.data.collections.sealed import sealed
from dps.data.exchange import RandomSplit


def exchange(
    work: FitWork,
    partitions: Sequence[Partition],
    holders: Sequence[str],
    split: RandomSplit,
    homes: Sequence[str],
    weighted: bool,
    owned: list[Future],
) -> list[Partition]:
    """Draw all rows into new partitions, some of which are made at a time.

    holders: the worker of each.
    homes: the worker of each new partition.
    weighted: whether rows have weights.
    owned: Futures to hold; new ones are added, old ones removed.
    """
    lying: dict[str, list[int]] = {}
    for number, holder in enumerate(holders):
        if split.rows[number]:  # what has no rows may have any dtype
            lying.setdefault(holder, []).append(number)
    client, name, drawn = work.client, work.name(), {}
    for place, (holder, numbers) in enumerate(lying.items()):
        drawn[holder] = client.submit(
            sealed(draw_each, split, numbers),
            workers=[holder], pure=False, key=f"dps-draw-{name}-{place}",
        )  # fmt: skip
    owned += drawn.values()
    pick, join, take = sealed(pick_rows), sealed(join_pieces), sealed(item)
    made: list[Partition] = []
    at_once = len(set(homes))
    for first in range(0, len(homes), at_once):
        passing: list[Future] = []
        new: list[Future] = []
        for goal in range(first, min(first + at_once, len(homes))):
            pieces = [
                client.submit(
                    pick, [_values(partitions[number]) for number in numbers],
                    drawn[holder], goal,
                    workers=[holder], pure=False, key=f"dps-pick-{name}-{goal}-{place}",
                )
                for place, (holder, numbers) in enumerate(lying.items())
            ]  # fmt: skip
            joined = client.submit(
                join, pieces,
                workers=[homes[goal]], pure=False, key=f"dps-join-{name}-{goal}",
            )  # fmt: skip
            passing += [*pieces, joined]
            parts = [
                client.submit(
                    take, joined, at,
                    workers=[homes[goal]], pure=False, key=f"dps-{part}-{name}-{goal}",
                )
                for at, part in enumerate(("X", "y", "weight")[: 2 + weighted])
            ]  # fmt: skip
            new += parts
            made.append(Partition(*parts, *([None] if len(parts) == 2 else [])))
        owned += [*passing, *new]
        work.wait(new)
        _forget(passing, owned)
    _forget(list(drawn.values()), owned)
    return made


def _values(part: Partition) -> tuple[Future, Future, Future | None]:
    return part.X, part.y, part.weight


def _forget(futures: Sequence[Future], owned: list[Future]) -> None:
    keys = {future.key for future in futures}
    owned[:] = [future for future in owned if future.key not in keys]
    for future in futures:
        future.release()
