"""Gathered gradients: means of so many are updates, stale ones are dropped, none is forgotten."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
from configure import placed
from distributed import Client

import dps
from dps.errors import StalledError, WorkerLostError
from dps.optimizers import SGD, Adagrad, Constant, Optimizer
from dps.optimizers.update import Rates
from dps.server.group import operations
from dps.server.group.window import Field, Word
from dps.server.memory.lease import LOST
from dps.training.plan import batches
from tests.harness.groups import Group, at_once

SIZE, RANKS, RATE = 11, 3, 0.2

#: Who pushes, in turn, and from how many rows.
ORDER = [0, 0, 1, 2, 2, 2, 2, 0, 1, 0, 0, 0, 1, 0, 2, 1, 1, 2, 0, 2]
ROWS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]

#: Shards, and the pairs (rank, shard) with TCP between them. A far rank goes on while its push is
#: on its way.
WAYS = [(1, ()), (3, ((0, 0), (0, 1), (0, 2), (1, 1)))]


class Replayed:
    """The accumulator in NumPy."""

    def __init__(self, mode: dps.Async, optimizer: Optimizer) -> None:
        assert mode.aggregate is not None
        self.mode, self.optimizer = mode, optimizer
        self.params = np.zeros(SIZE)
        self.state = np.full((optimizer.state_rows, SIZE), 0.5)
        self.version = self.dropped = 0
        self.gathered: list[tuple[Any, int]] = []
        self.pulled = [(self.params, 0)] * RANKS

    def pull(self, rank: int) -> Any:
        self.pulled[rank] = self.params.copy(), self.version
        return self.pulled[rank][0]

    def push(self, rank: int, mean: Any, rows: int) -> None:
        assert self.mode.aggregate is not None
        stale = self.version - self.pulled[rank][1]
        if self.mode.drop_after is not None and stale > self.mode.drop_after:
            self.dropped += rows
            return
        self.gathered.append((mean * rows, rows))
        if len(self.gathered) == self.mode.aggregate:
            self.apply()

    def apply(self) -> None:
        grad = sum(values for values, _ in self.gathered) / sum(rows for _, rows in self.gathered)
        touched = grad != 0  # whole vectors have no zeros here
        self.version += 1
        part, state = self.params[touched], self.state[:, touched]
        assert self.optimizer.update(
            part, grad[touched], state, step=self.version, lr=RATE, l1=0.0, l2=0.0
        )
        self.params[touched], self.state[:, touched] = part, state
        self.gathered = []


def gradient_at(params: Any, number: int) -> Any:
    return np.sin(params + np.random.default_rng(number).normal(size=SIZE))


def whole(group: Group) -> Any:
    found = np.empty((1, SIZE))
    for shard, window in enumerate(group.windows):
        group.placement.put(shard, window.store.params[None], found)
    return found[0]


CASES = [(1, None), (3, None), (4, 1), (2, 0), (7, 0)]


@pytest.mark.parametrize("optimizer", [SGD(), Adagrad()])
@pytest.mark.parametrize(("n_shards", "far"), WAYS)
@pytest.mark.parametrize(("aggregate", "drop_after"), CASES)
def test_updates_are_means_of_what_has_been_gathered(
    aggregate: int, drop_after: int | None, n_shards: int, far: Any, optimizer: Optimizer
) -> None:
    mode = dps.Async(aggregate=aggregate, drop_after=drop_after)
    wanted = Replayed(mode, optimizer)
    options: Any = {"far": far, "optimizer": optimizer, "rate": RATE}
    with Group(mode, RANKS, SIZE, n_shards=n_shards, **options) as group:
        for window in group.windows:
            window.store.state[:] = 0.5
        for channel in group.channels:
            channel.pull()
        for number, (rank, rows) in enumerate(zip(ORDER, ROWS, strict=True)):
            channel = group.channels[rank]
            mean = gradient_at(wanted.pulled[rank][0], number)
            channel.push_pull(mean * rows, rows, 0.0)
            channel.step.wait_for_answers()
            np.testing.assert_allclose(channel.params, whole(group), rtol=1e-15)
            wanted.push(rank, mean, rows)
            wanted.pull(rank)
            np.testing.assert_allclose(channel.params, wanted.params, rtol=1e-12)
        assert sum(channel.dropped_rows()[0] for channel in group.channels) == wanted.dropped
        assert [channel.dropped_rows() for channel in group.channels] == [(0, 0)] * RANKS
        assert {window.store.version for window in group.windows} == {wanted.version}
        # What is left is applied at the epoch's end, and once.
        left = len(wanted.gathered)
        if left:
            wanted.apply()
        for epoch in range(2):
            ends = [
                channel.end_epoch(epoch, [0.0], lambda *_: ([0.0], False, None))
                for channel in group.channels
            ]
            assert len(ends) == RANKS
            np.testing.assert_allclose(whole(group), wanted.params, rtol=1e-12)
            assert {window.store.version for window in group.windows} == {wanted.version}


@pytest.mark.parametrize("optimizer", [SGD(), Adagrad()])
@pytest.mark.parametrize(("n_shards", "far"), WAYS)
@pytest.mark.parametrize(("aggregate", "drop_after"), CASES)
def test_updates_by_keys_are_too(
    aggregate: int, drop_after: int | None, n_shards: int, far: Any, optimizer: Optimizer
) -> None:
    mode = dps.Async(aggregate=aggregate, drop_after=drop_after)
    wanted = Replayed(mode, optimizer)
    rates = Rates(Constant(RATE), 20, epochs=0, version=0, max_epochs=1)
    rng = np.random.default_rng(0)
    touched = [np.arange(SIZE)] * RANKS
    options: Any = {"far": far, "optimizer": optimizer, "keyed": rates}
    with Group(mode, RANKS, SIZE, n_shards=n_shards, **options) as group:
        for window in group.windows:
            window.store.state[:] = 0.5

        def pull(rank: int) -> None:
            step = group.channels[rank].step
            touched[rank] = rng.permutation(SIZE)[: rng.integers(1, 6)]
            step.begin_epoch(0)
            step.keys.begin()
            step.keys.add(touched[rank].tolist())
            assert step.pull_touched() == "ran"
            wanted_here = wanted.pull(rank)[touched[rank]]
            np.testing.assert_allclose(step.touched, wanted_here, rtol=1e-12)

        for rank in range(RANKS):
            pull(rank)
        for number, (rank, rows) in enumerate(zip(ORDER, ROWS, strict=True)):
            at = touched[rank]
            mean = np.zeros(SIZE)
            mean[at] = gradient_at(wanted.pulled[rank][0], number)[at]
            values = np.zeros(SIZE)
            values[: len(at)] = mean[at] * rows
            step = group.channels[rank].step
            assert step.push_gradient(values, rows, RATE) == "ran"
            assert step.wait_for_answers() == "ran"
            wanted.push(rank, mean, rows)
            pull(rank)
        assert sum(channel.dropped_rows()[0] for channel in group.channels) == wanted.dropped
        if wanted.gathered:
            wanted.apply()
        for channel in group.channels:
            channel.end_epoch(0, [0.0], lambda *_: ([0.0], False, None))
        np.testing.assert_allclose(whole(group), wanted.params, rtol=1e-12)
        for window in group.windows:
            assert not window.marks.any()


@pytest.mark.parametrize(("n_shards", "far"), WAYS)
def test_ranks_that_push_at_once_lose_nothing(n_shards: int, far: Any) -> None:
    steps = 60
    with Group(dps.Async(aggregate=4), RANKS, SIZE, n_shards=n_shards, far=far, rate=1.0) as group:

        def push(channel: Any) -> None:
            channel.pull()
            for _ in range(steps):
                channel.push_pull(np.ones(SIZE), 1, 0.0)
            channel.step.wait_for_answers()

        at_once([lambda c=c: push(c) for c in group.channels])
        # Means of ones, from any replicas: so many updates of one.
        np.testing.assert_array_equal(whole(group), -float(RANKS * steps // 4))


def test_of_as_many_as_there_are_replicas_a_round_is_the_step_of_sync() -> None:
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(20, RANKS, SIZE))
    ends = []
    for mode in (dps.Async(aggregate=RANKS), dps.Sync()):
        with Group(mode, RANKS, SIZE, optimizer=Adagrad(), rate=RATE) as group:
            for given in gradients:
                pushes = [
                    lambda c=c, g=g: c.push_pull(g, 2, 0.0)
                    for c, g in zip(group.channels, given, strict=True)
                ]
                if mode.together:
                    at_once(pushes)
                else:
                    for push in pushes:
                        push()
            ends.append(whole(group))
    np.testing.assert_array_equal(*ends)


@pytest.mark.parametrize("died", [False, True])
def test_whoever_holds_its_turn_is_named(died: bool) -> None:
    with Group(dps.Async(aggregate=2), 2, 8, timeout=0.3) as group:
        words = group.windows[0].words
        words.rank_store(1, Field.TICKET, words.add(Word.TICKETS, 1))
        if died:
            words.rank_store(1, Field.LEASE, LOST)
        with pytest.raises(WorkerLostError if died else StalledError) as info:
            group.channels[0].push_pull(np.ones(8), 1, 0.0)
        assert info.value.rank == 1


def problem(sparse: bool = False, rows: int = 900) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = scipy.sparse.random_array((rows, 300), density=0.03, format="csr", random_state=rng)
    y = (X @ rng.normal(size=300) > 0).astype(int)
    return scipy.sparse.csr_array(X) if sparse else X.toarray(), y


def fitted(mode: Any, data: Any, **options: Any) -> dps.LinearClassifier:
    given = {"optimizer": "momentum", "max_iter": 4, "tol": None, "random_state": 0}
    given = {**given, "n_replicas": 4, "batch_size": 8, "n_shards": 3}
    return dps.LinearClassifier(mode=mode, **placed({**given, **options})).fit(*data)


@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "by keys"])
@pytest.mark.parametrize("drop_after", [None, 0])
def test_a_fit_counts_each_row_once_as_seen_or_as_dropped(
    drop_after: int | None, sparse: bool, early_stopping: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "_COST_OF_A_KEY", 0.0)
    X, y = problem(sparse)
    mode = dps.Async(aggregate=3, drop_after=drop_after)
    model = fitted(mode, (X, y), early_stopping=early_stopping)
    rows = sum(rank.rows for rank in model.plan_.ranks)
    for epoch in model.history_:
        assert epoch["rows"] + epoch["rows_dropped"] == rows
        assert sum(epoch["rows_per_replica"]) == epoch["rows"]
        assert drop_after is not None or epoch["rows_dropped"] == 0
    assert model.history_[-1]["loss"] < model.history_[0]["loss"]


def test_by_keys_the_result_is_that_of_whole_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    data = problem(sparse=True, rows=200)  # 25 gradients an epoch: one is left over
    options: dict[str, Any] = {"n_replicas": 1, "learning_rate": 0.3, "alpha": 1e-2, "max_iter": 12}
    found = []
    for cost in (0.0, np.inf):
        monkeypatch.setattr(batches, "_COST_OF_A_KEY", cost)
        found.append(fitted(dps.Async(aggregate=3), data, **options).coef_)
    np.testing.assert_allclose(*found, rtol=1e-9, atol=1e-12)


def test_by_keys_updates_may_be_fewer_than_expected_epoch_after_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batches, "_COST_OF_A_KEY", 0.0)
    mode = dps.Async(aggregate=2, drop_after=0)
    rate = dps.optimizers.InvScaling(0.5)
    model = fitted(mode, problem(True, 200), max_iter=60, learning_rate=rate, batch_size=2)
    losses = [epoch["loss"] for epoch in model.history_]
    assert max(losses[30:]) < losses[0]


@pytest.mark.parametrize("access", ["mapped", "stream"])
def test_processes_gather_and_finish_in_step(access: str, client: Client) -> None:
    X, y = problem()
    halves = da.from_array(X, chunks=(500, 300)), da.from_array(y, chunks=500)
    mode = dps.Async(aggregate=2, access=access)
    model = fitted(
        mode,
        halves,
        client=client,
        optimizer="auto",
        n_replicas="auto",
        max_iter=400,
        tol=1e-3,
        batch_size="auto",
    )
    assert model.history_[-1]["full_batch"]
    assert model.score(X, y) > 0.9


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"aggregate": 0}, "'aggregate' parameter of Async must be an int in the range"),
        ({"aggregate": 2, "drop_after": -1}, "'drop_after' parameter of Async must be an int"),
        ({"drop_after": 3}, "no effect without aggregate"),
        ({"aggregate": 2, "max_delay": 3}, "would not bound what replicas miss"),
        ({"aggregate": 2, "compensation": "age"}, "gradients of several ages has no age"),
    ],
)
def test_options_without_a_meaning_are_refused(options: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        dps.Async(**options)


def test_a_stale_closer_has_nothing_left_to_apply() -> None:
    """An epoch's end may be looked at twice: where rows are held out, and by the closer."""
    with Group(dps.Async(aggregate=5), 1, 4, rate=1.0) as group:
        (channel,) = group.channels
        channel.pull()
        channel.push_pull(np.ones(4), 1, 0.0)
        channel.flush(0)
        (link,) = channel._links
        link.call(operations.bring_up_to_date, 0)
        np.testing.assert_array_equal(channel.pull(), -1.0)
        assert group.windows[0].store.version == 1
