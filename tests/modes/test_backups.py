"""Backup workers: an update is of the gradients that come first, and every row is accounted for."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from configure import configure, placed
from distributed import Client
from groups import Group, at_once

import dps
from dps import Sync
from dps._runtime.modes.synchronous import SynchronousChannel, SynchronousStep
from dps.optimizers import Constant
from dps.optimizers.update import Rates
from dps.training.replica.channel import Channel

SIZE, RATE = 24, 0.5
WAYS = [(1, False), (3, True), (3, False)]
ways = pytest.mark.parametrize(("n_shards", "far"), WAYS, ids=["mapped", "far", "mixed"])


def group_of(mode: Sync, n: int, n_shards: int, far: bool, size: int = SIZE, **more: Any) -> Group:
    pairs = itertools.product(range(n), range(n_shards))
    mixed = n_shards > 1
    chosen = [(r, s) for r, s in pairs if far or (mixed and (r + s) % 2)]
    return Group(mode, n, size, n_shards=n_shards, far=chosen, rate=RATE, **more)


def gradient(rank: int, step: int) -> np.ndarray:
    return np.random.default_rng((rank, step)).normal(size=SIZE)


def rows(rank: int) -> int:
    return rank + 1


def push(channel: Channel, rank: int, step: int) -> np.ndarray:
    return channel.push_pull(gradient(rank, step), rows(rank), 0.0).copy()


def push_all(channels: list[Channel], ranks: tuple[int, ...], step: int) -> list[np.ndarray]:
    return at_once([lambda r=r: push(channels[r], r, step) for r in ranks])  # type: ignore[misc]


def update(params: np.ndarray, given: list[tuple[int, int]]) -> np.ndarray:
    """By the mean of gradients of (rank, step), summed in that order."""
    total = gradient(*given[0])
    for one in given[1:]:
        total = total + gradient(*one)
    made: np.ndarray = params - RATE * (total / sum(rows(rank) for rank, _ in given))
    return made


@ways
def test_an_update_is_the_mean_of_the_first_and_what_comes_late_is_dropped(
    n_shards: int, far: bool
) -> None:
    with group_of(Sync(backups=1), 3, n_shards, far) as group:
        channels = group.channels
        for channel in channels:
            channel.step.plan_steps(10)
        wanted = np.zeros(SIZE)
        for step in (1, 2, 3):
            wanted = update(wanted, [(0, step), (1, step)])
            for params in push_all(channels, (0, 1), step):
                np.testing.assert_array_equal(params, wanted)
        # Of a step that is long done: it has the parameters of the group, and goes on there.
        np.testing.assert_array_equal(push(channels[2], 2, 1), wanted)
        assert [channel.steps for channel in channels] == [3, 3, 3]
        assert [channel.dropped_rows() for channel in channels] == [(0, 0), (0, 0), (3, 3)]
        wanted = update(wanted, [(1, 4), (2, 4)])
        for params in push_all(channels, (1, 2), 4):
            np.testing.assert_array_equal(params, wanted)
        np.testing.assert_array_equal(push(channels[0], 0, 4), wanted)
        assert [channel.dropped_rows() for channel in channels] == [(1, 1), (0, 0), (0, 0)]
        assert {window.store.version for window in group.windows} == {4}


@ways
def test_what_comes_late_counts_in_the_step_at_work_beside_the_first(
    n_shards: int, far: bool
) -> None:
    with group_of(Sync(backups=1, late_gradients="add"), 3, n_shards, far) as group:
        channels = group.channels
        for channel in channels:
            channel.step.plan_steps(5)
        wanted = np.zeros(SIZE)
        for step in (1, 2):
            wanted = update(wanted, [(0, step), (1, step)])
            push_all(channels, (0, 1), step)
        np.testing.assert_array_equal(push(channels[2], 2, 1), wanted)
        assert channels[2].dropped_rows() == (0, 3)
        assert channels[2].staleness() == (2.0, 2.0)
        # Rank 2 is in time at step 3, in which its late gradient counts as well.
        wanted = update(wanted, [(1, 3), (2, 3), (2, 1)])
        for params in push_all(channels, (1, 2), 3):
            np.testing.assert_array_equal(params, wanted)
        np.testing.assert_array_equal(push(channels[0], 0, 3), wanted)
        # And two late ones of different ranks.
        wanted = update(wanted, [(0, 4), (1, 4), (0, 3)])
        push_all(channels, (0, 1), 4)
        np.testing.assert_array_equal(push(channels[2], 2, 4), wanted)
        wanted = update(wanted, [(0, 5), (1, 5), (2, 4)])
        push_all(channels, (0, 1), 5)
        # No step of the epoch is left in which it could count.
        np.testing.assert_array_equal(push(channels[2], 2, 5), wanted)
        assert channels[2].dropped_rows() == (3, 6)


@ways
@pytest.mark.parametrize("late", ["drop", "add"])
def test_by_keys_it_is_the_same(late: str, n_shards: int, far: bool) -> None:
    keys = {0: [3, 0, 9], 1: [20, 3], 2: [9, 21, 4, 0]}
    rates = Rates(Constant(RATE), 4, 0, 0, 1)

    def keyed(channel: Channel, rank: int) -> None:
        step = channel.step
        step.keys.begin()
        step.keys.add(keys[rank])
        assert step.pull_touched() == "ran"
        np.testing.assert_array_equal(step.touched, whole[keys[rank]])
        given = np.zeros(SIZE)
        given[: len(keys[rank])] = rank + 1.0
        assert step.push_gradient(given, rows(rank), RATE) == "ran"

    def moved(given: tuple[int, ...]) -> None:
        total = np.zeros(SIZE)
        for rank in given:
            total[keys[rank]] += rank + 1.0
        whole[:] -= RATE * (total / sum(rows(rank) for rank in given))

    whole = np.zeros(SIZE)
    with group_of(Sync(backups=1, late_gradients=late), 3, n_shards, far, keyed=rates) as group:
        for channel in group.channels:
            channel.step.plan_steps(4)
            channel.step.begin_epoch(0)
        first, second, slow = group.channels
        for step in range(1, 4):
            if step == 2:
                _late(slow, keys[2])
            at_once([lambda: keyed(first, 0), lambda: keyed(second, 1)])
            moved((0, 1, 2) if step == 2 and late == "add" else (0, 1))
        assert slow.dropped_rows() == ((0 if late == "add" else 3), 3)
        np.testing.assert_array_equal(_whole(group), whole)


def _late(channel: Channel, keys: list[int]) -> None:
    """A gradient of the first step, which is over."""
    step = channel.step
    step.keys.begin()
    step.keys.add(keys)
    assert step.pull_touched() == "ran"
    assert step.push_gradient(np.full(SIZE, 3.0), 3, RATE) == "ran"


def _whole(group: Group) -> np.ndarray:
    made = np.zeros((1, SIZE))
    for shard, window in enumerate(group.windows):
        group.placement.put(shard, window.store.params[None], made)
    return made[0]


@pytest.mark.parametrize("late", ["drop", "add"])
@pytest.mark.parametrize(("n_shards", "far"), [(1, False), (2, True), (2, False)])
def test_rows_are_exact_and_no_read_is_torn_however_ranks_run(
    late: str, n_shards: int, far: bool
) -> None:
    """Element r of a vector counts the gradients of rank r; all other elements are alike."""
    n, size, epochs, steps = 4, 40_000, 3, 60

    def run(channel: Channel, rank: int) -> tuple[int, int, int]:
        taken = dropped = came_late = 0
        given = np.ones(size)
        given[:n] = np.arange(n) == rank
        for epoch in range(epochs):
            channel.step.plan_steps(steps)
            end = (epoch + 1) * steps
            while channel.steps < end:
                params = channel.push_pull(given, 1, 0.0)
                for part in np.split(params, n_shards):
                    assert np.ptp(part[n:]) == 0
                taken += 1
            assert channel.steps == end
            lost = channel.dropped_rows()
            dropped, came_late = dropped + lost[0], came_late + lost[1]
            meeting.wait()
        return taken, dropped, came_late

    meeting = threading.Barrier(n)
    with group_of(Sync(backups=2, late_gradients=late), n, n_shards, far, size) as group:
        ended = at_once([lambda r=r, c=c: run(c, r) for r, c in enumerate(group.channels)])  # type: ignore[misc]
        for end in ended:
            if isinstance(end, Exception):
                meeting.abort()
                raise end
        counted = sum(taken - dropped for taken, dropped, _ in ended)
        assert {window.store.version for window in group.windows} == {epochs * steps}
        if late == "drop":
            assert counted == epochs * steps * 2
            # Each update is a half of two gradients.
            of_ranks = -group.windows[0].store.params[:n] / RATE * 2
            assert of_ranks.tolist() == [taken - dropped for taken, dropped, _ in ended]
            assert all(dropped == came_late for _, dropped, came_late in ended)
        else:
            assert counted >= epochs * steps * 2


def data(sparse: bool) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    if sparse:
        X: Any = scipy.sparse.random_array(
            (2000, 3000), density=0.002, format="csr", random_state=rng
        )
    else:
        X = rng.normal(size=(2000, 20))
    return X, (X @ rng.normal(size=X.shape[1]) > 0).astype(int)


def fitted(mode: Any, X: Any, y: Any, **options: Any) -> Any:
    return dps.LinearClassifier(
        mode=mode, max_iter=4, tol=None, random_state=0,
        **placed({"n_replicas": 4, "batch_size": 64, **options}),
    ).fit(X, y)  # fmt: skip


def check(model: Any, mode: Sync) -> None:
    for record in model.history_:
        assert record["rows"] + record["rows_dropped"] == model.plan_.rows
        assert sum(record["rows_per_replica"]) == record["rows"]
        assert not record["full_batch"]
        if mode.late_gradients == "drop":
            assert record["rows_late"] <= record["rows_dropped"]
            assert record["staleness_max"] == 0
    assert model.history_[-1]["rows_dropped"] > 0 or mode.late_gradients == "add"


@pytest.mark.parametrize("late", ["drop", "add"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "by keys"])
def test_a_fit_learns_and_accounts_for_every_row(sparse: bool, late: str) -> None:
    X, y = data(sparse)
    mode = Sync(backups=1, late_gradients=late)
    for n_shards, more in ((1, {}), (3, {"optimizer": "momentum", "learning_rate": 1.0})):
        model = fitted(mode, X, y, n_shards=n_shards, **more)
        check(model, mode)
        assert model.score(X, y) > 0.7


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "by keys"])
def test_on_a_cluster_mapped_and_by_streams(client: Client, sparse: bool) -> None:
    X, y = data(sparse)
    for access, late, n_shards in (("mapped", "add", 1), ("stream", "drop", 3)):
        mode = Sync(backups=1, late_gradients=late, access=access)
        model = fitted(mode, X, y, client=client, n_shards=n_shards, early_stopping=not sparse)
        check(model, mode)
        assert model.score(X, y) > 0.7


def test_the_report_says_what_was_dropped_and_how_many_came_late() -> None:
    X, y = data(sparse=False)
    model = fitted(Sync(backups=1), X, y)
    report = model.fit_report_
    assert "LinearClassifier, sync (backups=1) by ScaledAdagrad" in report.summary
    counted = sum(record["rows"] for record in model.history_)
    assert report.rows_dropped == report.rows * report.epochs - counted
    assert f"{report.rows_dropped:,} rows dropped" in str(report)


def test_rows_of_a_table_are_made_by_whoever_closes_a_step() -> None:
    rng = np.random.default_rng(0)
    X = scipy.sparse.random_array((1000, 500), density=0.01, format="csr", random_state=rng)
    y = (X @ rng.normal(size=500) > 0).astype(int)
    configure(n_shards=2)
    model = dps.FMClassifier(
        mode=Sync(backups=1), n_replicas=3, max_embeddings=4000, max_iter=3,
        random_state=0, tol=None, batch_size=64,
    ).fit(X, y)  # fmt: skip
    check(model, Sync(backups=1))


def test_without_backups_it_is_sync_as_it_always_was() -> None:
    assert Sync(backups=0).channel is SynchronousChannel
    assert Sync(backups=0).deterministic
    assert not Sync(backups=1).deterministic
    with Group(Sync(), 2, SIZE) as group:
        assert {type(channel.step) for channel in group.channels} == {SynchronousStep}


def test_what_makes_no_sense_is_refused() -> None:
    X, y = data(sparse=False)
    with pytest.raises(ValueError, match="The 'backups' parameter of Sync must be"):
        Sync(backups=-1)
    with pytest.raises(ValueError, match="The 'late_gradients' parameter of Sync must be"):
        Sync(late_gradients="wait")
    with pytest.raises(ValueError, match="backups=2 leaves none of 2 replicas to wait for"):
        fitted(Sync(backups=2), X, y, n_replicas=2)
    assert Sync(backups=1)._quorum(4095) == 4094
    with pytest.raises(ValueError, match="backups=1 counts up to 4,095 replicas"):
        Sync(backups=1)._quorum(4096)
    with pytest.raises(ValueError, match=r"not possible with mode=Sync\(.*backups=1"):
        fitted(Sync(backups=1), X, y, optimizer="lbfgs", batch_size="auto")


def test_a_replica_that_begins_late_counts_from_where_the_group_began() -> None:
    def push(channel: Channel, times: int) -> None:
        for _ in range(times):
            channel.push_pull(np.ones(8), 1, 0.0)

    mode = Sync(backups=1)
    with Group(mode, 3, 8, rate=0.1) as group:
        for channel in group.channels:
            channel.step.plan_steps(10)
        at_once([lambda c=c: push(c, 5) for c in group.channels[:2]])  # type: ignore[misc]
        before = group.channels[2]
        late = Channel(mode, before._spec, before._links)
        assert late.step.version == 0
        late.step.plan_steps(10)
        at_once([lambda: push(group.channels[0], 1), lambda: push(late, 2)])
        assert group.windows[0].store.version == 6


def test_options_that_cannot_be_kept_are_refused() -> None:
    with pytest.raises(ValueError, match="needs rows of every replica in each step"):
        Sync(backups=1)._steps([10, 990], 10)
    with pytest.raises(ValueError, match="needs backups >= 1"):
        Sync(late_gradients="add")
    with pytest.raises(ValueError, match="outer_momentum has no effect without outer='nesterov'"):
        dps.AllReduce(period=3, outer_momentum=0.5)
