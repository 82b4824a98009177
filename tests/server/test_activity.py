"""Counts of ranks: every nanosecond once, staleness exactly, the same in every loop and mode."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from cases import pairs
from compiled import pushed_late
from configure import configure
from groups import MODES, Group

import dps
import dps.estimators.fit.fit
from dps._runtime.loop import StepLoop
from dps._runtime.shared import activity as words
from dps._runtime.shared.activity import COMPUTE, LOAD, PULL, PUSH, STALENESS, WAIT, WIDTH, Activity
from dps.data.feed.blocks import Block, features_of
from dps.losses import LogLoss
from dps.models.linear import LinearModel
from dps.modes import Async
from dps.monitor import events
from dps.monitor.events import bucket
from dps.optimizers import Optimizer
from dps.server.group.window import Window
from dps.training.job import FitResult
from dps.training.lbfgs.pieces import Pieces
from dps.training.replica.activity import RankActivity


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> list[FitResult]:
    """Results of the fits of this test."""
    kept: list[FitResult] = []
    train = dps.estimators.fit.fit.train

    def keeping(*args: Any) -> FitResult:
        kept.append(train(*args))
        return kept[-1]

    monkeypatch.setattr("dps.estimators.fit.fit.train", keeping)
    return kept


def row() -> Any:
    return np.zeros(WIDTH, np.int64)


def test_the_schema_and_the_kernels_have_the_same_buckets() -> None:
    assert words.BUCKETS == events.BUCKETS
    counts = row()
    for staleness in (0, 1, 5, 1 << 40):
        pushed_late(Activity([counts]), 0, staleness)
        assert counts[STALENESS + bucket(staleness)] == 1
    assert counts[words.STALE_SUM] == 6 + (1 << 40)
    assert counts[words.STALE_MAX] == 1 << 40


def test_all_time_goes_to_one_phase_and_waits_to_none_but_theirs() -> None:
    counts = row()
    before = time.monotonic_ns()
    account = Activity([counts])
    time.sleep(0.02)
    account.lap(COMPUTE)
    began = time.monotonic_ns()
    time.sleep(0.03)
    account.waited(waited := time.monotonic_ns() - began)
    account.lap(PUSH)
    after = time.monotonic_ns()
    assert counts[WAIT] == waited
    assert counts[COMPUTE] >= 20_000_000
    assert 0 <= counts[PUSH] < waited
    assert counts[[COMPUTE, PUSH, WAIT]].sum() <= after - before


def test_a_pass_over_a_stream_counts_what_it_waits_for_blocks_as_load() -> None:
    model = LinearModel(2, 1, LogLoss())
    block = Block(0, features_of(np.ones((64, 2)), "float64"), np.ones((64, 1)), None, 0, 64)
    counts = row()
    channel: Any = SimpleNamespace(activity=Activity([counts]), beat=lambda: None)

    def blocks() -> Iterator[tuple[Block, None]]:
        for _ in range(3):
            began = time.monotonic_ns()
            while time.monotonic_ns() < began + 10_000_000:
                continue
            yield block, None

    pieces = Pieces(model, blocks, 192, 2.0, channel, streamed=True)
    pieces.passes().sums(model.initial())
    assert counts[LOAD] >= 30_000_000


def test_who_is_not_timed_counts_and_reads_no_clock() -> None:
    counts = row()
    account = Activity([counts], timed=False)
    account.lap(COMPUTE)
    account.waited(5)
    account.worked(0, 5)
    account.stepped(3, 3, 0.5)
    assert counts[[words.STEPS, words.ROWS]].tolist() == [1, 3]
    assert not counts[[COMPUTE, WAIT, words.APPLY]].any()


def test_an_account_takes_rows_of_a_window_only() -> None:
    with pytest.raises(ValueError, match="48 contiguous int64"):
        Activity([np.zeros(3, np.int64)])
    with pytest.raises(ValueError, match="48 contiguous int64"):
        Activity([np.zeros(2 * WIDTH, np.int64)[::2]])
    with pytest.raises(ValueError, match="needs the row"):
        Activity([])
    with pytest.raises(ValueError, match="no phase"):
        Activity([row()]).lap(words.EPOCH)


SIZE = 6


@pytest.mark.parametrize("n_shards", [1, 2])
def test_staleness_is_what_is_counted_by_hand(n_shards: int) -> None:
    ranks = Group(Async(), 3, SIZE, n_shards=n_shards).channels
    for rank in ranks:
        rank.pull()
    # Updates of all ranks so far, and how many each rank's parameters have.
    has = [0, 0, 0]
    expected = [[0] * words.BUCKETS for _ in ranks]
    for updates, rank in enumerate([0, 0, 1, 2, 2, 2, 2, 0, 1, 0, 0, 0, 0, 0, 1, 2]):
        expected[rank][bucket(updates - has[rank])] += 1
        ranks[rank].push_pull(np.ones(SIZE), 1, 0.0)
        has[rank] = updates + 1
    assert any(histogram[3] for histogram in expected)
    for rank, histogram in zip(ranks, expected, strict=True):
        for shard in range(n_shards):
            assert rank.activity.rows[shard][STALENESS:].tolist() == histogram


@pytest.mark.parametrize("n_shards", [1, 2])
def test_staleness_without_the_interpreter_is_what_is_counted_by_hand(n_shards: int) -> None:
    ranks = Group(Async(), 2, SIZE, n_shards=n_shards, rate=0.1).channels
    model = LinearModel(SIZE - 1, 1, LogLoss())
    X, y = np.ones((40, SIZE - 1)), np.ones(40)
    block = Block(0, features_of(X, "float64"), y, None, 0, 40, None, 0).for_kernels
    loops = []
    for rank in ranks:
        rank.pull()
        assert model.kernel is not None
        loop = StepLoop(model.kernel, rank.step)
        loop.begin(40, np.full(40, 0.1))
        loops.append(loop)
    pushed, has = 0, [0, 0]
    expected = [[0] * words.BUCKETS for _ in ranks]
    turns = [3, 5, 1, 9, 12, 2, 20, 20]
    for turn, steps in enumerate(turns):
        rank = turn % 2
        at = sum(turns[rank:turn:2])  # a row is a batch
        assert loops[rank].run([(block, None, at, at + steps)]) == "ran"
        for _ in range(steps):
            expected[rank][bucket(pushed - has[rank])] += 1
            pushed += 1
            has[rank] = pushed
    assert any(histogram[3] for histogram in expected)
    for rank, histogram in zip(ranks, expected, strict=True):
        for shard in range(n_shards):
            assert rank.activity.rows[shard][STALENESS:].tolist() == histogram


def problem(rows: int = 1200) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 8))
    return X, (X[:, 0] > 0).astype(int)


def wide() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = scipy.sparse.random_array((400, 4000), density=0.002, format="csr", random_state=rng)
    return X, np.arange(400) % 2


def in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LinearModel, "kernel", property(lambda model: None))
    monkeypatch.setattr(Optimizer, "native", property(lambda optimizer: None))


@pairs(
    mode=list(MODES),
    n_shards=[1, 2],
    data=[problem, wide],
    native=[True, False],
)
def test_a_fit_says_what_each_replica_did(
    results: list[FitResult], monkeypatch: Any, mode: str, n_shards: int, data: Any, native: bool
) -> None:
    if not native:
        in_python(monkeypatch)
    configure(n_shards=n_shards)
    began = time.monotonic()
    dps.LinearClassifier(
        mode=mode, optimizer="sgd", batch_size=30, n_replicas=3, max_iter=4,
        alpha=1e-3, tol=None, random_state=0,
    ).fit(*data())  # fmt: skip
    seconds = time.monotonic() - began
    (result,) = results
    assert [did.rank for did in result.activity] == [0, 1, 2]
    assert sum(did.rows for did in result.activity) == 4 * result.plan.rows
    for did, plan in zip(result.activity, result.plan.ranks, strict=True):
        assert did.rows == 4 * plan.rows
        assert did.worker == plan.worker
        assert did.compute > 0
        assert did.push > 0
        assert did.seconds <= seconds
        assert len(did.staleness) == len(result.plan.shards)
        if mode == "async":
            assert [sum(shard) for shard in did.staleness] == [did.steps] * len(did.staleness)
        else:
            assert not any(did.staleness)


@pytest.mark.parametrize("mode", list(MODES))
def test_passes_over_all_rows_are_counted(results: list[FitResult], mode: str) -> None:
    X, y = problem()
    dps.LinearClassifier(mode=mode, optimizer="lbfgs", n_replicas=2, max_iter=3, tol=None).fit(X, y)
    (result,) = results
    for did in result.activity:
        assert did.steps >= 3
        assert did.rows == 600 * did.steps
        assert did.compute > 0


def slow_rank() -> LogLoss:
    @dataclass(frozen=True)
    class Slow(LogLoss):
        def evaluate(self, y: Any, raw: Any, weight: Any, out: Any) -> float:
            if threading.current_thread().name == "dps-replica-1":
                time.sleep(0.01)
            return LogLoss.evaluate(self, y, raw, weight, out)

    return Slow()


@pytest.mark.parametrize("optimizer", ["sgd", "lbfgs"])
def test_who_is_slow_computes_and_the_others_wait(results: list[FitResult], optimizer: str) -> None:
    X, y = problem()
    dps.LinearClassifier(
        loss=slow_rank(), optimizer=optimizer, n_replicas=3, max_iter=3, tol=None, batch_size="auto"
    ).fit(X, y)
    first, slow, last = results[0].activity
    calls = slow.steps
    assert slow.compute >= 0.01 * calls
    for other in (first, last):
        assert other.wait >= 0.005 * calls
        assert other.wait > other.compute
        assert other.wait > slow.wait


@pytest.mark.parametrize("batch_size", [1, 1000], ids=["sampled", "every step"])
@pytest.mark.parametrize("native", [True, False], ids=["native", "python"])
@pytest.mark.parametrize("mode", list(MODES))
def test_no_time_is_lost_and_none_counted_twice(
    results: list[FitResult], monkeypatch: Any, mode: str, native: bool, batch_size: int
) -> None:
    if not native:
        in_python(monkeypatch)
    began = time.monotonic()
    model = dps.LinearClassifier(
        mode=mode, optimizer="sgd", n_replicas=1, max_iter=3, tol=None, batch_size=batch_size
    ).fit(*problem())
    took = time.monotonic() - began
    (did,) = results[0].activity
    assert sum(record["seconds"] for record in model.history_) <= did.seconds <= took
    assert min(did.compute, did.push) > 0
    assert did.wait <= did.compute  # one alone waits for no one


def test_a_report_adds_up() -> None:
    counts = row()
    account = Activity([counts, other := row()])
    pushed_late(account, 1, 3)
    account.stepped(7, 7, 1.5)
    account.lap(PULL)
    did = RankActivity.of(2, "here", account.rows)
    assert (did.rank, did.worker, did.steps, did.rows) == (2, "here", 1, 7)
    assert did.staleness == ((), (0, 0, 1))
    assert did.seconds == did.pull > 0
    assert other[words.STEPS] == 0


def test_counters_can_be_read_while_ranks_write_them(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Window] = []
    create = Window.create
    monkeypatch.setattr(Window, "create", lambda *a, **k: made.append(create(*a, **k)) or made[-1])
    X, y = problem(rows=10_000)
    model = dps.LinearClassifier(
        mode="sync", optimizer="sgd", n_replicas=2, max_iter=10, tol=None, batch_size=2
    )
    thread = threading.Thread(target=model.fit, args=(X, y))
    thread.start()
    seen = set()
    while thread.is_alive():
        seen.update(int(window.activity[:, words.ROWS].sum()) for window in made)
    thread.join()
    assert made[0].activity[:, words.ROWS].sum() == 10 * len(y)
    assert len(seen - {0, 10 * len(y)}) >= 3  # in the middle of the passes
