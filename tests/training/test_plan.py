"""The plan of a fit: all rows are given out once, evenly, where they lie, always the same way."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from dps.data.collections.partitions import Piece
from dps.modes import MODES, Sync
from dps.server.sharding import fastest_shards, seconds_of_a_step
from dps.training.plan.batches import FEWEST
from dps.training.plan.plan import Located, Plan, make_plan, place_shards

quick = settings(max_examples=60, deadline=None)
every_mode = pytest.mark.parametrize("mode", [kind() for kind in MODES.values()], ids=repr)
WORKERS = [f"tcp://10.0.0.{host}:{port}" for host in (1, 2, 3) for port in (4000, 4001)]
REPLICAS = st.just("auto") | st.integers(1, 3) | st.integers(1, 12)
#: Rows and holder of each partition; some partitions are empty, and not all are.
LYING = st.lists(
    st.tuples(st.one_of(st.just(0), st.integers(0, 40)), st.sampled_from(WORKERS)),
    min_size=1,
    max_size=9,
).filter(lambda lying: any(rows for rows, _ in lying))
FILLED = LYING.map(lambda lying: [(rows + 1, holder) for rows, holder in lying])


def plan_of(lying: Any, mode: Any = None, **options: Any) -> Plan:
    """A plan for much data, unless told otherwise."""
    shards = options.pop("n_shards", "auto"), options.pop("nbytes", 400)
    rows, holders = zip(*lying, strict=True)
    known = {"threads": dict.fromkeys(WORKERS, 4), "elements": 10**9}
    known |= {name: options.pop(name) for name in known if name in options}
    defaults: dict[str, Any] = {
        "count": lambda piece: piece.stop - piece.start,
        "rebalance": False,
        **dict.fromkeys(("batch_size", "n_replicas"), "auto"),
    }
    data = Located(rows, holders, **known)
    plan = make_plan(mode or Sync(), data, **{**defaults, **options})
    workers, why = place_shards(plan, *shards)
    return replace(plan, shards=workers, sharding=why)


def rows_of(pieces: Any) -> list[tuple[int, int]]:
    return [(piece.partition, row) for piece in pieces for row in range(piece.start, piece.stop)]


def held_by(lying: Any) -> dict[str, int]:
    return {at: sum(rows for rows, holder in lying if holder == at) for _, at in lying}


@quick
@given(lying=LYING, n_replicas=REPLICAS, rebalance=st.booleans())
def test_every_row_is_given_out_exactly_once(lying: Any, n_replicas: Any, rebalance: bool) -> None:
    plan = plan_of(lying, n_replicas=n_replicas, rebalance=rebalance)
    given_out = [row for rank in plan.ranks for row in rows_of(rank.pieces)]
    everything = [(p, row) for p, (rows, _) in enumerate(lying) for row in range(rows)]
    assert sorted(given_out) == everything
    assert plan.rows == len(everything)
    for rank in plan.ranks:
        assert rank.rows == len(rows_of(rank.pieces)) == sum(piece.rows for piece in rank.pieces)
        assert all(piece.rows > 0 for piece in rank.pieces)
        assert all(p.moved == (lying[p.partition][1] != rank.worker) for p in rank.pieces)
        assert rows_of(rank.pieces) == sorted(rows_of(rank.pieces))


@quick
@given(lying=LYING, mode=st.sampled_from([kind() for kind in MODES.values()]))
def test_the_fewest_replicas_are_one_a_worker_that_holds_rows(lying: Any, mode: Any) -> None:
    plan = plan_of(lying, mode, n_replicas=FEWEST)
    held = [worker for worker, rows in held_by(lying).items() if rows]
    assert sorted(rank.worker for rank in plan.ranks) == sorted(held)


@quick
@given(lying=LYING, n_replicas=REPLICAS)
def test_rows_stay_where_they_lie_if_replicas_suffice(lying: Any, n_replicas: Any) -> None:
    plan = plan_of(lying, n_replicas=n_replicas)
    goes_to: dict[str, set[str]] = {holder: set() for rows, holder in lying if rows}
    for rank in plan.ranks:
        for piece in rank.pieces:
            goes_to[lying[piece.partition][1]].add(rank.worker)
    if n_replicas == "auto" or n_replicas >= len(goes_to):
        assert all(workers <= {holder} for holder, workers in goes_to.items())
    else:  # one replica a worker, and what lies together stays together
        assert all(len(workers) <= 1 for workers in goes_to.values())
        assert len({rank.worker for rank in plan.ranks}) == n_replicas
    assert n_replicas in ("auto", len(plan.ranks))
    assert set(plan.workers) <= set(goes_to)


@quick
@given(lying=LYING, n_replicas=REPLICAS)
def test_replicas_of_a_worker_differ_by_at_most_a_row(lying: Any, n_replicas: Any) -> None:
    plan = plan_of(lying, n_replicas=n_replicas)
    for worker in plan.workers:
        shares = [rank.rows for rank in plan.ranks if rank.worker == worker]
        assert max(shares) - min(shares) <= 1


@settings(max_examples=40, deadline=None)
@given(lying=FILLED, extra=st.integers(0, 5))
def test_the_largest_share_is_as_small_as_can_be(lying: Any, extra: int) -> None:
    held = held_by(lying)
    n_replicas = len(held) + extra
    best = min(
        max(-(-rows // n) for rows, n in zip(held.values(), split, strict=True))
        for split in itertools.product(range(1, extra + 2), repeat=len(held))
        if sum(split) == n_replicas
    )
    assert max(rank.rows for rank in plan_of(lying, n_replicas=n_replicas).ranks) == best


@quick
@given(lying=LYING, n_replicas=st.integers(1, 5))
def test_rows_that_move_make_no_share_twice_the_fair_one(lying: Any, n_replicas: int) -> None:
    # The two lightest of k > n workers hold at most 2/k of the rows.
    held, plan = held_by(lying), plan_of(lying, n_replicas=n_replicas)
    largest = max(rank.rows for rank in plan.ranks)
    assert largest <= max(*held.values(), 2 * sum(held.values()) // (n_replicas + 1))


def idle(plan: Plan) -> float:
    """The share of their time that replicas wait for the one with most rows."""
    rows = [rank.rows for rank in plan.ranks]
    return 1 - sum(rows) / len(rows) / max(rows)


def moved(plan: Plan) -> int:
    return sum(piece.rows for rank in plan.ranks for piece in rank.pieces if piece.moved)


@quick
@given(lying=LYING, n_replicas=REPLICAS, threads=st.integers(1, 3))
def test_rebalanced_replicas_have_equal_rows_and_hardly_any_move(
    lying: Any, n_replicas: Any, threads: int
) -> None:
    places = dict.fromkeys(WORKERS, threads)
    plan = plan_of(lying, n_replicas=n_replicas, threads=places, rebalance=True)
    n = len(WORKERS) * threads if n_replicas == "auto" else n_replicas
    fair = -(-plan.rows // n)
    assert max(rank.rows for rank in plan.ranks) <= 1 + 1.05 * fair
    seats, held = Counter(rank.worker for rank in plan.ranks), held_by(lying)
    too_much = sum(max(0, rows - plan.rows * seats[at] // n) for at, rows in held.items())
    assert moved(plan) <= too_much
    assert plan_of(lying, n_replicas=n_replicas, threads=places, rebalance=True) == plan


@pytest.mark.parametrize(
    ("rows", "workers", "most_moved"),
    [
        ([8000], 4, 6000), ([8000], 6, 6667), ([900, 30, 0, 70], 4, 650),
        ([400, 0, 0, 0, 400, 400, 400, 400], 4, 600), ([104, 100, 96, 100], 4, 0),
    ],
    ids=["one of four", "one of six", "90 percent", "three of eight empty", "almost equal"],
)  # fmt: skip
def test_rebalanced_replicas_are_hardly_ever_idle(
    rows: list[int], workers: int, most_moved: int
) -> None:
    lying = [(n, WORKERS[i * workers // len(rows) % workers]) for i, n in enumerate(rows)]
    threads = dict.fromkeys(WORKERS[:workers], 1)
    for rebalance in (True, "auto"):
        plan = plan_of(lying, threads=threads, rebalance=rebalance)
        assert idle(plan) <= 0.1
        assert moved(plan) <= most_moved
    little = plan_of(lying, threads=threads, rebalance="auto", elements=10**4)
    assert little == plan_of(lying, threads=threads, elements=10**4)


@quick
@given(rows=st.integers(100, 10**6), threads=st.integers(1, 4))
def test_what_lies_almost_evenly_stays(rows: int, threads: int) -> None:
    lying = [(rows * (100 + i % 3) // 100, worker) for i, worker in enumerate(WORKERS)]
    for rebalance in (True, "auto"):
        plan = plan_of(lying, threads=dict.fromkeys(WORKERS, threads), rebalance=rebalance)
        assert plan == plan_of(lying, threads=dict.fromkeys(WORKERS, threads))


@quick
@given(lying=FILLED, threads=st.integers(1, 5))
def test_auto_makes_a_replica_a_thread_or_one_for_little_data(lying: Any, threads: int) -> None:
    for elements, each in ((0, 1), (10**12, threads)):
        plan = plan_of(lying, threads=dict.fromkeys(WORKERS, threads), elements=elements)
        assert Counter(rank.worker for rank in plan.ranks) == dict.fromkeys(held_by(lying), each)


@every_mode
@quick
@given(lying=LYING, batch_size=st.one_of(st.just("auto"), st.integers(1, 60)))
def test_batch_size_does_not_depend_on_replicas(mode: Any, lying: Any, batch_size: Any) -> None:
    plans = [plan_of(lying, mode, n_replicas=n, batch_size=batch_size) for n in ("auto", 1, 2, 7)]
    assert len({plan.batch_size for plan in plans}) == 1
    assert 1 <= plans[0].batch_size <= plans[0].rows


@pytest.mark.parametrize("rows", [1, 255, 256, 257, 5000, 10**6, 10**9])
def test_an_auto_batch_is_all_of_few_rows_and_a_bounded_part_of_many(rows: int) -> None:
    sizes = {plan_of([(rows, WORKERS[0])], n_replicas=n).batch_size for n in (1, 2, 9)}
    assert len(sizes) == 1
    assert sizes <= ({rows} if rows <= 256 else set(range(256, 4097)))


@every_mode
@quick
@given(lying=LYING, n_replicas=REPLICAS, batch_size=st.integers(1, 60))
def test_an_epoch_has_as_many_updates_as_batches(
    mode: Any, lying: Any, n_replicas: Any, batch_size: int
) -> None:
    plan = plan_of(lying, mode, n_replicas=n_replicas, batch_size=batch_size)
    updates, steps = -(-plan.rows // batch_size), [rank.steps for rank in plan.ranks]
    if mode.name == "async":  # the last batch of each rank may be short
        assert steps == [-(-rank.rows // min(batch_size, plan.rows)) for rank in plan.ranks]
        assert updates <= sum(steps) < updates + len(steps)
    else:
        assert steps == [updates] * len(steps)


@every_mode
@quick
@given(
    lying=LYING, n_replicas=REPLICAS, n_shards=st.just("auto") | st.integers(1, 9),
    rebalance=st.booleans(),
)  # fmt: skip
def test_the_same_numbers_give_the_same_plan_whatever_the_addresses(
    mode: Any, lying: Any, n_replicas: Any, n_shards: Any, rebalance: bool
) -> None:
    options = {"n_replicas": n_replicas, "n_shards": n_shards, "rebalance": rebalance}
    holders = dict.fromkeys((holder for rows, holder in lying if rows), 4)
    plan = plan_of(lying, mode, **options, threads=holders)
    assert plan_of(list(lying), mode, **options, threads=holders) == plan
    # Other ports of the same hosts, in another order.
    other = {worker: f"{worker[:-4]}{9999 - int(worker[-4:])}" for worker in WORKERS}
    options["threads"] = {other[holder]: 4 for holder in reversed(holders)}
    moved = plan_of([(rows, other[holder]) for rows, holder in lying], mode, **options)
    ranks = tuple(replace(rank, worker=other[rank.worker]) for rank in plan.ranks)
    assert moved == replace(plan, ranks=ranks, shards=tuple(other[w] for w in plan.shards))


@quick
@given(lying=LYING, n_shards=st.integers(1, 14))
def test_shards_are_at_most_one_a_host_or_dealt_out_evenly(lying: Any, n_shards: int) -> None:
    small, large = plan_of(lying), plan_of(lying, nbytes=10**9)
    asked = plan_of(lying, n_shards=n_shards).shards
    holders = {holder for rows, holder in lying if rows}
    hosts = {holder[:-5] for holder in holders}
    assert [*small.shards, *large.shards][0] == small.ranks[0].worker
    assert len(small.shards) == 1
    assert sorted(w[:-5] for w in large.shards) == sorted(hosts)
    assert {*large.shards, *asked} <= holders
    assert bool(small.sharding) == bool(large.sharding) == (len(hosts) > 1)
    loads = [asked.count(holder) for holder in holders]
    assert sum(loads) == n_shards
    assert max(loads) - min(loads) <= 1


def test_a_plan_says_why_it_has_so_many_shards() -> None:
    lying = [(100, WORKERS[0]), (100, WORKERS[2]), (100, WORKERS[4])]
    assert "3 workers, 1 shard (3 hosts, 400 B a step), Sync" in repr(plan_of(lying))
    assert "3 workers, 3 shards (3 hosts, 9.54 MiB a step)" in repr(plan_of(lying, nbytes=10**7))
    assert "3 workers, 2 shards (dps.n_shards)" in repr(plan_of(lying, n_shards=2))
    assert "2 replicas, 1 worker, 1 shard, Sync" in repr(plan_of(lying[:1], n_replicas=2))


@quick
@given(n_hosts=st.integers(1, 200), nbytes=st.floats(1, 1e11))
def test_the_number_of_shards_is_that_of_the_fastest_step(n_hosts: int, nbytes: float) -> None:
    chosen = fastest_shards(n_hosts, nbytes)
    assert 1 <= chosen <= n_hosts
    for other in {1, max(1, chosen - 1), min(n_hosts, chosen + 1), n_hosts}:
        seconds = [seconds_of_a_step(n, n_hosts, nbytes) for n in (chosen, other)]
        assert seconds[0] <= seconds[1]
    assert chosen <= fastest_shards(n_hosts, 2 * nbytes)
    assert fastest_shards(n_hosts, 400) == 1  # 50 coefficients on 100 workers


@quick
@given(lying=LYING, n_replicas=REPLICAS)
def test_rows_kept_for_validation_do_not_count(lying: Any, n_replicas: Any) -> None:
    def every_third(piece: Piece) -> int:
        return sum(row % 3 == 0 for row in range(piece.start, piece.stop))

    plan = plan_of(lying, n_replicas=n_replicas, count=every_third)
    assert plan.rows == sum(-(-rows // 3) for rows, _ in lying)
    for rank in plan.ranks:
        assert rank.rows == sum(row % 3 == 0 for _, row in rows_of(rank.pieces))


@pytest.mark.parametrize("rows", [0, 9])
def test_a_plan_without_a_row_to_train_on_is_refused(rows: int) -> None:
    with pytest.raises(ValueError, match="no row is left to train on"):
        plan_of([(rows, WORKERS[0]), (0, WORKERS[3])], count=lambda piece: 0)


def test_a_worker_of_empty_partitions_runs_no_replica() -> None:
    plan = plan_of([(1000, WORKERS[0]), (0, WORKERS[3])], n_replicas=2)
    assert [(rank.worker, rank.rows) for rank in plan.ranks] == [(WORKERS[0], 500)] * 2
    assert plan.shards == (WORKERS[0],)
