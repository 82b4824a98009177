"""Stale synchronous parallel: no replica is further ahead than allowed, or waits for ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
from configure import configure, placed
from distributed import Client

import dps
from dps.errors import StalledError
from dps.modes import get_mode
from dps.server.group.window import Field
from dps.training.plan import batches
from tests.harness.groups import Group, at_once

SIZE = 7
RATE = 0.1

#: Shards, and the (rank, shard) that there is TCP between: extremes, and a mixture.
WAYS = [
    (1, ()),
    (3, ()),
    (1, ((0, 0), (1, 0), (2, 0))),
    (3, ((1, 0), (1, 1), (1, 2), (2, 1))),
]


def quadratics(n_ranks: int) -> list[Callable[[Any], Any]]:
    """The gradient of a quadratic of each rank's own."""
    rng = np.random.default_rng(0)
    roots = rng.normal(size=(n_ranks, SIZE, SIZE)) / SIZE
    targets = rng.normal(size=(n_ranks, SIZE))
    return [
        lambda params, root=root, target=target: root @ (root.T @ params) - target
        for root, target in zip(roots, targets, strict=True)
    ]


def take_steps(
    channel: Any, gradient: Callable[[Any], Any], steps: int, rows: int, epochs: int = 1
) -> tuple[float, float]:
    """A rank's part of a fit: its own steps of each epoch; the largest distance and staleness."""
    channel.pull()
    for epoch in range(epochs):
        if channel.step.needs_pull:
            channel.pull()
        for _ in range(steps):
            channel.push_pull(gradient(channel.params) * rows, rows, 0.0)
        channel.finish_steps()
        channel.end_epoch(epoch, [0.0], lambda *_: ([0.0], False, None))
    return channel.clock_distance(), channel.staleness()[1]


@pytest.mark.parametrize(("n_shards", "far"), WAYS)
def test_without_delay_each_step_applies_what_all_computed_from_the_same_parameters(
    n_shards: int, far: Any
) -> None:
    gradients, rows = quadratics(3), (5, 2, 9)
    expected = np.zeros(SIZE)
    for _ in range(40):
        expected = expected - RATE * sum(gradient(expected) for gradient in gradients)
    with Group(
        dps.Async(max_delay=0), 3, SIZE, n_shards=n_shards, far=far, rate=RATE, epoch_steps=40
    ) as group:
        ends = at_once(
            [lambda r=r: take_steps(group.channels[r], gradients[r], 40, rows[r]) for r in range(3)]
        )
        assert all(distance == 0 and stale <= 2 for distance, stale in ends)
        np.testing.assert_allclose(group.channels[0].pull(), expected, rtol=1e-12)


@pytest.mark.parametrize("max_delay", [0, 1, 6])
@pytest.mark.parametrize(("n_shards", "far"), WAYS)
def test_ranks_with_unequal_steps_stay_within_the_bound_and_nobody_waits_for_ever(
    n_shards: int, far: Any, max_delay: int
) -> None:
    mode, steps, epochs = dps.Async(max_delay=max_delay), (3, 50, 17), 4
    bound = mode.max_staleness(3)
    with Group(
        mode, 3, SIZE, n_shards=n_shards, far=far, rate=RATE, epoch_steps=max(steps)
    ) as group:
        gradients = quadratics(3)
        ends = at_once(
            [
                lambda r=r: take_steps(group.channels[r], gradients[r], steps[r], 1, epochs)
                for r in range(3)
            ]
        )
        assert bound is not None
        for distance, stale in ends:
            assert distance <= max_delay
            assert stale <= bound
        for window in group.windows:
            assert window.store.version == epochs * sum(steps)
            clocks = [window.words.rank_load(rank, Field.CLOCK) for rank in range(3)]
            assert clocks == [epochs * max(steps)] * 3


@pytest.mark.parametrize("max_delay", [0, 1, 4])
@pytest.mark.parametrize("far", [(), ((0, 0), (0, 1))])
def test_a_rank_takes_so_many_steps_alone_and_then_waits_for_the_slowest(
    far: Any, max_delay: int
) -> None:
    mode = dps.Async(max_delay=max_delay)
    with Group(mode, 2, 8, n_shards=2, far=far, timeout=0.3, epoch_steps=99) as group:
        fast = group.channels[0]
        fast.pull()
        for _ in range(max_delay):  # each of which may be followed by another
            fast.push_pull(np.ones(8), 1, 0.0)
        with pytest.raises(StalledError) as info:
            fast.push_pull(np.ones(8), 1, 0.0)
        assert info.value.rank == 1
        # With 0 its gradient waits, too; else it is applied, and what follows is not read.
        applied = max_delay + (max_delay > 0)
        assert [window.store.version for window in group.windows] == [applied] * 2


def test_a_rank_that_rests_holds_nobody_back_until_its_next_epoch() -> None:
    with Group(dps.Async(max_delay=2), 2, 8, timeout=0.3, epoch_steps=10) as group:
        fast, resting = group.channels
        resting.pull()
        resting.finish_steps()
        for _ in range(12):
            fast.push_pull(np.ones(8), 1, 0.0)
        with pytest.raises(StalledError):
            fast.push_pull(np.ones(8), 1, 0.0)
        assert resting.step.clock == 10
        assert resting.step.needs_pull


def test_a_stopped_window_ends_the_wait() -> None:
    with Group(dps.Async(max_delay=0), 2, 8, epoch_steps=9) as group:
        ends = at_once(
            [
                lambda: group.channels[0].push_pull(np.ones(8), 1, 0.0),
                lambda: group.windows[0].stop(2),
            ]
        )
        assert isinstance(ends[0], dps.errors.StoppedError)


def problem(rows: int = 960, sparse: bool = False) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    if sparse:
        X = scipy.sparse.random_array((rows, 3000), density=0.004, format="csr", random_state=rng)
        return scipy.sparse.csr_array(X), (X @ rng.normal(size=3000) > 0).astype(int)
    X = rng.normal(size=(rows, 12))
    return X, (X @ rng.normal(size=12) + rng.logistic(size=rows) > 0).astype(int)


def fitted(mode: Any, data: Any, **options: Any) -> dps.LinearClassifier:
    given = {"optimizer": "sgd", "max_iter": 3, "tol": None, "random_state": 0, "n_replicas": 4}
    return dps.LinearClassifier(mode=mode, **placed({**given, **options})).fit(*data)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "by keys"])
@pytest.mark.parametrize("n_shards", [1, 3])
def test_without_delay_a_fit_is_that_of_sync_with_batch_and_rate_of_all_replicas(
    n_shards: int, sparse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "_COST_OF_A_KEY", 0.0)
    data = problem(sparse=sparse)
    options: dict[str, Any] = {"penalty": None, "n_shards": n_shards}
    bounded = fitted(dps.Async(max_delay=0), data, batch_size=16, learning_rate=0.05, **options)
    sync = fitted("sync", data, batch_size=64, learning_rate=0.2, **options)
    np.testing.assert_allclose(bounded.coef_, sync.coef_, rtol=1e-9, atol=1e-12)
    assert bounded.loss_ == pytest.approx(sync.loss_, rel=1e-10)
    assert max(epoch["staleness_max"] for epoch in bounded.history_) <= 3
    assert "clock_distance_max" not in sync.history_[0]


@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "by keys"])
def test_a_fit_shows_its_bounds_and_keeps_them(
    sparse: bool, early_stopping: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "_COST_OF_A_KEY", 0.0)
    mode, data = dps.Async(max_delay=2), problem(sparse=sparse)
    model = fitted(mode, data, batch_size=4, n_shards=3, early_stopping=early_stopping)
    bound = mode.max_staleness(4)
    assert bound == 15
    for epoch in model.history_:
        assert 0 <= epoch["clock_distance_max"] <= 2
        assert epoch["staleness_max"] <= bound
    assert model.history_[-1]["loss"] < model.history_[0]["loss"]


def test_epochs_in_step_at_the_end_of_async_count_no_clocks() -> None:
    model = fitted(dps.Async(max_delay=3), problem(), optimizer="auto", max_iter=60, tol=1e-4)
    shown = ["clock_distance_max" in epoch for epoch in model.history_]
    assert shown == [not epoch["full_batch"] for epoch in model.history_]
    assert not shown[-1]


@pytest.mark.parametrize("access", ["mapped", "stream"])
def test_processes_keep_within_the_bound(access: str, client: Client) -> None:
    X, y = problem()
    halves = da.from_array(X, chunks=(700, 12)), da.from_array(y, chunks=700)
    mode = dps.Async(max_delay=3, access=access)
    configure(rebalance=False)
    model = fitted(mode, halves, client=client, batch_size=5, n_shards=2)
    steps = [rank.steps for rank in model.plan_.ranks]
    assert len(set(steps)) > 1
    for epoch in model.history_:
        assert epoch["clock_distance_max"] <= 3
        assert epoch["staleness_max"] <= 7 * (len(steps) - 1)
    assert [epoch["rows"] for epoch in model.history_] == [len(y)] * 3


@pytest.mark.parametrize("given", [-1, 1.5, True, "2"])
def test_a_bound_is_a_count(given: Any) -> None:
    with pytest.raises(
        (TypeError, ValueError), match="'max_delay' parameter of Async must be an int"
    ):
        dps.Async(max_delay=given)


def test_a_mode_without_a_bound_is_what_it_was() -> None:
    assert get_mode("async") == dps.Async()
    assert dps.Async().max_staleness(4) is None
    model = fitted("async", problem())
    assert all("clock_distance_max" not in epoch for epoch in model.history_)
