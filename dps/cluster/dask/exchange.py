"""The tasks that move every row to a random partition, and how many run at a time.

All rows that a worker gives to one new partition are one piece, so tasks do not grow with the
number of partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from distributed import Future

from dps.cluster.dask.tasks import draw_each, item, join_pieces, pick_rows
from dps.cluster.dask.work import Call, FitWork
from dps.data.collections.partitions import Partition
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
    """Distribute all rows over new partitions, a few partitions at a time.

    holders: the worker of each partition.
    homes: the worker of each new partition.
    weighted: whether rows have weights.
    owned: Futures to hold; new ones are added and old ones removed.
    """
    lying: dict[str, list[int]] = {}
    for number, holder in enumerate(holders):
        if split.rows[number]:  # a partition without rows may have any dtype
            lying.setdefault(holder, []).append(number)
    name = work.name()
    draws = [
        Call(f"dps-draw-{name}-{place}", holder, partial(draw_each, split, numbers))
        for place, (holder, numbers) in enumerate(lying.items())
    ]
    drawn = dict(zip(lying, work.start(draws), strict=True))
    owned += drawn.values()
    made: list[Partition] = []
    at_once = len(set(homes))
    for first in range(0, len(homes), at_once):
        passing: list[Future] = []
        new: list[Future] = []
        for goal in range(first, min(first + at_once, len(homes))):
            pieces = work.start(
                Call(
                    f"dps-pick-{name}-{goal}-{place}", holder, pick_rows,
                    ([_values(partitions[number]) for number in numbers], drawn[holder], goal),
                )
                for place, (holder, numbers) in enumerate(lying.items())
            )  # fmt: skip
            home = homes[goal]
            [joined] = work.start([Call(f"dps-join-{name}-{goal}", home, join_pieces, (pieces,))])
            passing += [*pieces, joined]
            parts = work.start(
                Call(f"dps-{part}-{name}-{goal}", home, item, (joined, at))
                for at, part in enumerate(("X", "y", "weight")[: 2 + weighted])
            )
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
