"""The plan of a fit: which rank runs where, on which rows, in how many steps.

It is computed once before anything starts, from numbers only: equal numbers give equal plans. Users
see it as ``plan_``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from dps.data.collections.partitions import Piece
from dps.data.exchange import RandomSplit
from dps.modes import Mode
from dps.server.sharding import fastest_shards
from dps.training.plan.batches import FEWEST, batch_rows
from dps.training.plan.sharing import cut, level, replica_counts, worth_moving

#: Largest number of replicas that may be without rows.
_WITHOUT_ROWS = 8
#: Stored values of X that justify a further replica if their number is "auto".
ELEMENTS_PER_REPLICA = 1 << 17
#: Runs of rows in a replica's share, if its rows should be similar to those of other replicas.
_STRIPES = 16
#: Partitions that an exchange makes on a worker one after the other; this share of the rows is in
#: transit at a time.
_ROUNDS = 8


class Located(NamedTuple):
    """The rows of a fit, and where they are."""

    rows: Sequence[int]  # rows of each partition
    holders: Sequence[str]  # the worker of each partition
    threads: Mapping[str, int]  # threads of each worker
    # Stored values of X, or fewer, from which the number of replicas follows for small data.
    elements: float


@dataclass(frozen=True)
class RankPlan:
    """The part of one replica."""

    worker: str  # its worker
    pieces: tuple[Piece, ...]  # its rows in order; rows of validation data come last
    rows: int  # training rows
    steps: int  # steps per epoch


@dataclass(frozen=True)
class Plan:
    """The plan of a fit."""

    mode: Mode
    batch_size: int  # rows per update
    rows: int  # training rows of all ranks
    ranks: tuple[RankPlan, ...]
    shards: tuple[str, ...] = ()  # the worker of each shard
    sharding: str = ""  # why there are this many shards; empty if there is one host
    why: str = ""  # why the fit runs there, if that may surprise the user

    def __repr__(self) -> str:
        counts = (
            (len(self.ranks), "replica"), (len(self.workers), "worker"), (len(self.shards), "shard")
        )  # fmt: skip
        words = ", ".join(f"{n} {word}{'s' * (n != 1)}" for n, word in counts)
        words += f" ({self.sharding})" if self.sharding else ""
        mode = type(self.mode).__name__
        why = f"; {self.why}" if self.why else ""
        return f"Plan({words}, {mode}, {self.rows:,} rows in batches of {self.batch_size:,}{why})"

    @property
    def workers(self) -> list[str]:
        """All workers that take part, without duplicates."""
        return list(dict.fromkeys([*(rank.worker for rank in self.ranks), *self.shards]))


def make_plan(
    mode: Mode,
    data: Located,
    *,
    count: Callable[[Piece], int],
    batch_size: int | str,
    n_replicas: int | str,
    rebalance: bool | str,
    mixed: bool = False,
) -> Plan:
    """Distribute rows over replicas without moving them, or evenly; shards come later.

    count: returns the training rows of a piece, without held-out rows.
    batch_size, n_replicas: as given; `FEWEST` means one replica for each worker that holds rows.
    rebalance: whether rows may be copied to other workers; "auto" if that pays.
    mixed: whether each replica of a worker takes rows from all over the worker's data, rather than
        as few runs of rows as possible.
    Raises ValueError: no row is left to train on.
    """
    rows, holders, threads, elements = data
    by_worker = _by_worker(rows, holders)
    # A few replicas may be without rows; many would only wait for the others.
    most = max(_WITHOUT_ROWS, sum(rows))
    wanted = min(most, _wanted(n_replicas, len(by_worker), elements, threads))
    if isinstance(n_replicas, str):
        share = {w: elements * _sum(rows, p) / max(1, sum(rows)) for w, p in by_worker.items()}
        counts = {
            worker: max(1, min(threads[worker], round(share[worker] / _worth(n_replicas))))
            for worker in by_worker
        }
    else:
        by_worker, counts = _spread(wanted, rows, by_worker)
    held = _held(rows, by_worker)
    if rebalance is True or (rebalance and worth_moving(held, counts, wanted, threads, elements)):
        counts = replica_counts(wanted, held, threads)
        held = level(held, counts)
    parts = [
        (worker, [replace(piece, moved=holders[piece.partition] != worker) for piece in share])
        for worker, pieces in held.items()
        for share in cut(pieces, counts[worker], _stripes(mixed, counts[worker]))
    ]
    trained = [sum(count(piece) for piece in pieces) for _, pieces in parts]
    if sum(trained) == 0:
        raise ValueError("no row is left to train on: lower validation_fraction")
    batch = batch_rows(batch_size, sum(trained))
    steps = mode._steps(trained, batch)
    ranks = tuple(
        RankPlan(worker, tuple(pieces), n, step)
        for (worker, pieces), n, step in zip(parts, trained, steps, strict=True)
    )
    return Plan(mode, batch, sum(trained), ranks)


def place_shards(plan: Plan, n_shards: int | str, nbytes: float) -> tuple[tuple[str, ...], str]:
    """Choose the worker of each shard, and say why there are this many.

    "auto" gives the fastest number if each host sends `nbytes` per step.
    """
    workers = list(dict.fromkeys(rank.worker for rank in plan.ranks))
    first_of_host: dict[str, str] = {}
    for worker in workers:
        first_of_host.setdefault(worker.rpartition(":")[0], worker)
    hosts = tuple(first_of_host.values())
    if not isinstance(n_shards, str):
        return tuple(
            workers[shard % len(workers)] for shard in range(int(n_shards))
        ), "dps.n_shards"
    if len(hosts) == 1:
        return hosts, ""
    from dask.utils import format_bytes

    shards = hosts[: fastest_shards(len(hosts), nbytes)]
    return shards, f"{len(hosts)} hosts, {format_bytes(round(nbytes))} a step"


def validating(plan: Plan, rows: Sequence[int], holders: Sequence[str]) -> Plan:
    """Distribute rows of validation data over the replicas of a plan.

    Rows go to replicas of the worker that holds them; rows of a worker without replicas go to all.

    rows: rows of each partition of the validation data.
    holders: the worker of each partition, with the training partitions first.
    """
    first, workers = len(holders) - len(rows), {rank.worker for rank in plan.ranks}
    shares: list[list[Piece]] = [[] for _ in plan.ranks]
    for holder, numbers in _by_worker(rows, holders[first:]).items():
        pieces = [Piece(first + number, 0, rows[number]) for number in numbers]
        near = [n for n, rank in enumerate(plan.ranks) if rank.worker == holder]
        near = near or list(range(len(plan.ranks)))
        for rank, share in zip(near, cut(pieces, len(near)), strict=True):
            shares[rank] += [replace(piece, moved=holder not in workers) for piece in share]
    ranks = tuple(
        replace(rank, pieces=(*rank.pieces, *share))
        for rank, share in zip(plan.ranks, shares, strict=True)
    )
    return replace(plan, ranks=ranks)


def make_split(seed: int, data: Located, n_replicas: int | str) -> tuple[RandomSplit, list[str]]:
    """Draw all rows to the workers of the replicas, equally many to each replica.

    Returns the worker of each new partition; neighbours are on different workers.
    """
    rows, holders, threads, elements = data
    by_worker, total = _by_worker(rows, holders), sum(rows)
    wanted = min(total, _wanted(n_replicas, len(by_worker), elements, threads))
    counts = replica_counts(wanted, {}, threads)  # all rows move
    # No new partition may be empty.
    rounds = max(1, min(_ROUNDS, total // wanted))
    homes = [worker for _ in range(rounds) for worker in counts]
    turns = [number for number, worker in enumerate(homes) for _ in range(counts[worker])]
    return RandomSplit(seed, tuple(turns), tuple(rows)), homes


def _by_worker(rows: Sequence[int], holders: Sequence[str]) -> dict[str, list[int]]:
    """Return the partitions with rows of each worker.

    Workers are ordered by their first partition, so that the plan does not depend on addresses.
    """
    by_worker: dict[str, list[int]] = {}
    for partition, holder in enumerate(holders):
        if rows[partition]:
            by_worker.setdefault(holder, []).append(partition)
    if not by_worker:
        raise ValueError("no row is left to train on: every partition is empty")
    return by_worker


def _held(rows: Sequence[int], by_worker: Mapping[str, Sequence[int]]) -> dict[str, list[Piece]]:
    return {
        worker: [Piece(p, 0, rows[p]) for p in numbers] for worker, numbers in by_worker.items()
    }


def _wanted(
    n_replicas: int | str, n_holders: int, elements: float, threads: Mapping[str, int]
) -> int:
    """Return the number of replicas if rows may move."""
    if not isinstance(n_replicas, str):
        return int(n_replicas)
    most = max(1, round(elements / _worth(n_replicas)))
    return max(n_holders, min(most, sum(threads.values())))


def _worth(n_replicas: str) -> float:
    """Stored values of X that pay for the barrier of a further replica on the same worker."""
    return math.inf if n_replicas == FEWEST else ELEMENTS_PER_REPLICA


def _stripes(mixed: bool, replicas: int) -> int:
    return _STRIPES if mixed and replicas > 1 else 1


def _sum(rows: Sequence[int], partitions: Sequence[int]) -> int:
    return sum(rows[partition] for partition in partitions)


def _spread(
    n_replicas: int, rows: Sequence[int], by_worker: dict[str, list[int]]
) -> tuple[dict[str, list[int]], dict[str, int]]:
    """Return the replicas of each worker for a total; rows move only if there are too few."""
    while len(by_worker) > n_replicas:
        lightest = min(by_worker, key=lambda worker: _sum(rows, by_worker[worker]))
        moved = by_worker.pop(lightest)
        target = min(by_worker, key=lambda worker: _sum(rows, by_worker[worker]))
        by_worker[target] = sorted(by_worker[target] + moved)
    counts = dict.fromkeys(by_worker, 1)
    for _ in range(n_replicas - len(by_worker)):
        fullest = max(by_worker, key=lambda worker: _sum(rows, by_worker[worker]) / counts[worker])
        counts[fullest] += 1
    return by_worker, counts
