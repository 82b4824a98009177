"""A store outlives the groups that work on it, and a group notices which of its ranks has died."""

from __future__ import annotations

import pickle
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import psutil
import pytest
from compiled import send_bytes
from conditions import until
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from ranks import FENCE, LoopbackLink, at_once

from dps import Async, Sync
from dps.errors import FencedError, StalledError, StoppedError, WorkerLostError
from dps.group import Channel, ChannelSpec
from dps.modes import Mode
from dps.optimizers import Adam, Constant, Optimizer
from dps.optimizers.update import Update
from dps.server import operations
from dps.server.lease import LEFT, LOST
from dps.server.memory import folder
from dps.server.placement import place
from dps.server.shard import GroupSpec, Initial, ParameterShard, ShardSpec, WindowCard
from dps.server.store import StoreSpec
from dps.server.window import Field, Window, WindowSpec
from dps.transport.mapped import MappedLink, map_window

SIZE = 100
FIT = "f1f1"
FOREVER = 3600.0


class Shard:
    """A shard in this process, and the groups that are opened there."""

    def __init__(self, optimizer: Optimizer, *, shared: bool = False) -> None:
        self.optimizer = optimizer
        rows = optimizer.state_rows
        self.update = Update(optimizer, 0.0, 0.0, ((0, SIZE, False),))
        self.store = StoreSpec(FIT, 0, SIZE, "float64", rows)
        initial = Initial(SIZE, "float64", (0.0,) * (1 + rows))
        self.actor = ParameterShard(ShardSpec(self.store, initial, 0, self.update, shared))

    def open(self, generation: int, n_ranks: int, mode: Mode | None = None) -> WindowCard:
        window = WindowSpec(FIT, n_ranks, self.store, 16, generation=generation)
        return self.actor.open(GroupSpec(window, (mode or Sync()).channel, FOREVER))

    def window(self, generation: int) -> Window:
        return self.actor.group((FIT, generation)).window

    def channels(self, generation: int, n_ranks: int, mode: Mode | None = None) -> list[Channel]:
        """The channels of a new group."""
        mode = mode or Sync()
        self.open(generation, n_ranks, mode)
        channels = []
        for rank in range(n_ranks):
            link = MappedLink(self.window(generation), rank, FENCE, FOREVER)
            link.claim()
            channels.append(channel(mode, rank, n_ranks, link, self.update))
        return channels


def channel(mode: Mode, rank: int, n_ranks: int, link: Any, update: Update) -> Channel:
    placement = place("contiguous", [SIZE], 1)
    spec = ChannelSpec(rank, n_ranks, placement, SIZE, "float64", Constant(0.1), update)
    return Channel(mode, spec, [link])


@pytest.fixture
def shard() -> Iterator[Shard]:
    made = Shard(Adam())
    yield made
    made.actor.close()


def gradient(step: int, rank: int) -> np.ndarray:
    return np.random.default_rng((step, rank)).normal(size=SIZE)


def train(channels: list[Channel], steps: range, epoch: int) -> None:
    """Steps of all ranks, and the end of an epoch."""

    def run(rank: int) -> None:
        for step in steps:
            channels[rank].push_pull(gradient(step, rank), 3, 0.0)
        channels[rank].end_epoch(epoch, [1.0], lambda last, reports: ([1.0], False, None))

    ended = at_once([lambda rank=rank: run(rank) for rank in range(len(channels))])  # type: ignore[misc]
    assert ended == [None] * len(channels)


def test_the_next_group_goes_on_where_the_last_epoch_of_the_one_before_ended(shard: Shard) -> None:
    train(shard.channels(0, 3), range(5), 0)
    train(shard.channels(1, 2), range(5, 9), 0)
    params, state = np.zeros(SIZE), np.zeros((shard.optimizer.state_rows, SIZE))
    for step in range(9):
        ranks = 3 if step < 5 else 2
        total = gradient(step, 0)
        for rank in range(1, ranks):
            total += gradient(step, rank)
        shard.update.apply(params, total / (3 * ranks), state, 0, SIZE, step=step + 1, lr=0.1)
    values, version, *_ = shard.actor.snapshot(1)
    assert version == shard.actor.version() == 9
    assert values.tobytes() == np.vstack([params, state]).tobytes()


def test_what_an_epoch_that_was_not_closed_has_left_is_forgotten(shard: Shard) -> None:
    (first,) = shard.channels(0, 1)
    train([first], range(2), 0)
    closed, version, *_ = shard.actor.snapshot(1)
    first.push_pull(gradient(2, 0), 3, 0.0)
    assert shard.actor.version() == 3
    shard.open(1, 1)
    assert shard.actor.version() == version == 2
    assert shard.actor.store.params.tobytes() == closed[0].tobytes()
    assert shard.actor.snapshot(0)[0].tobytes() == closed.tobytes()


def test_ranks_of_an_earlier_group_are_refused(shard: Shard) -> None:
    early, waiting = shard.channels(0, 2)
    pushing = threading.Thread(target=at_once, args=([lambda: _ended(early)],))
    pushing.start()
    until(lambda: shard.window(0).words.rank_load(0, Field.ARRIVED) > 0, "it waits for the other")
    shard.open(1, 2)
    pushing.join()
    with pytest.raises(StoppedError):
        waiting.push_pull(gradient(0, 1), 3, 0.0)
    with pytest.raises(FencedError, match="generation 0 of fit f1f1 is not at work"):
        shard.actor.ask((FIT, 0), "status", 0)
    for late in (0, 1):
        with pytest.raises(FencedError, match=f"generation {late} .* is refused, generation 1 has"):
            shard.open(late, 2)
    assert shard.actor.ask((FIT, 1), "status", 0).closed == 0


def _ended(early: Channel) -> None:
    with pytest.raises(StoppedError):
        early.push_pull(gradient(0, 0), 3, 0.0)


class Membership(RuleBasedStateMachine):
    """Generations of any number of ranks, which end at any point, beside a twin in NumPy."""

    def __init__(self) -> None:
        super().__init__()
        self.shard = Shard(Adam())
        rows = self.shard.optimizer.state_rows
        self.at_work = np.zeros((1 + rows, SIZE))
        self.closed, self.version, self.closed_version = self.at_work.copy(), 0, 0
        self.generation, self.epochs = 0, 0
        self.channels = self.shard.channels(0, 2)
        self.early: list[Channel] = []

    @rule(n_ranks=st.integers(1, 3))
    def somebody_is_lost_or_joins(self, n_ranks: int) -> None:
        self.early += self.channels
        self.generation, self.epochs = self.generation + 1, 0
        self.channels = self.shard.channels(self.generation, n_ranks)
        self.at_work, self.version = self.closed.copy(), self.closed_version

    @rule()
    def all_take_a_step(self) -> None:
        def step(rank: int) -> None:
            self.channels[rank].push_pull(gradient(self.version, rank), 3, 0.0)

        ranks = range(len(self.channels))
        assert at_once([partial(step, rank) for rank in ranks]) == [None] * len(ranks)
        total = sum(gradient(self.version, rank) for rank in ranks)
        self.version += 1
        self.shard.update.apply(
            self.at_work[0], total / (3 * len(ranks)), self.at_work[1:], 0, SIZE,
            step=self.version, lr=0.1,
        )  # fmt: skip

    @rule()
    def an_epoch_is_closed(self) -> None:
        train(self.channels, range(0), self.epochs)
        self.epochs += 1
        self.closed, self.closed_version = self.at_work.copy(), self.version

    @precondition(lambda self: self.early)
    @rule(data=st.data())
    def a_rank_of_before_wakes(self, data: st.DataObject) -> None:
        early = data.draw(st.sampled_from(self.early))
        with pytest.raises(StoppedError):
            early.push_pull(np.ones(SIZE), 3, 0.0)

    @invariant()
    def what_was_closed_is_there(self) -> None:
        values, version, *_ = self.shard.actor.snapshot(self.epochs)
        assert version == self.closed_version
        assert self.shard.actor.version() == self.version
        np.testing.assert_array_equal(values, self.closed)
        np.testing.assert_array_equal(self.shard.actor.store.params, self.at_work[0])

    def teardown(self) -> None:
        self.shard.actor.close()


Membership.TestCase.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
TestMembership = Membership.TestCase


class Held(Adam):
    """An optimizer that stands still in the middle of an update, as a frozen process does."""

    reached, go_on = threading.Event(), threading.Event()

    def update(self, params: Any, *args: Any, **options: Any) -> bool:
        self.reached.set()
        assert self.go_on.wait(60)
        params += 1e6
        return True


def test_a_rank_that_thaws_in_the_middle_of_an_update_writes_where_nobody_reads() -> None:
    shard = Shard(Held())
    (frozen,) = shard.channels(0, 1, Async())
    thread = threading.Thread(
        target=at_once, args=([lambda: frozen.push_pull(np.ones(SIZE), 1, 0.0)],)
    )
    thread.start()
    assert Held.reached.wait(60)
    old = shard.actor.store
    shard.open(1, 1, Async())
    Held.go_on.set()
    thread.join()
    assert (old.params == 1e6).all()
    assert not shard.actor.store.params.any()
    assert shard.actor.version() == 0
    shard.actor.close()


RANK = """
import pickle, signal, sys
from dps.transport.mapped import MappedLink, map_window
window = map_window(pickle.load(sys.stdin.buffer))
link = MappedLink(window, 1, 1, 3600.0)
link.claim()
print("claimed", flush=True)
if sys.argv[1] == "leave":
    link.close()
signal.pause() if sys.argv[1] == "stay" else None
"""


def elsewhere(card: WindowCard, what: str) -> subprocess.Popen[bytes]:
    """Rank 1 in a process of its own, which has claimed its place."""
    process = subprocess.Popen(
        [sys.executable, "-c", RANK, what], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(pickle.dumps(card))
    process.stdin.close()
    assert process.stdout.readline() == b"claimed\n"
    process.stdout.close()
    return process


def test_a_process_that_dies_is_noticed_by_its_lease_and_named() -> None:
    shard = Shard(Adam(), shared=True)
    card = shard.open(0, 3)
    other = elsewhere(card, "stay")
    window = map_window(card)
    assert window is not None
    links = [MappedLink(window, rank, FENCE, FOREVER) for rank in (0, 2)]
    ended: list[Any] = []

    def wait(rank: int, link: MappedLink) -> None:
        link.claim()
        ranked = channel(Sync(), rank, 3, link, shard.update)
        ended.extend(at_once([lambda: ranked.push_pull(np.ones(SIZE), 1, 0.0)]))

    threads = [
        threading.Thread(target=wait, args=(rank, link))
        for rank, link in zip((0, 2), links, strict=True)
    ]
    for thread in threads:
        thread.start()
    for rank in (0, 2):
        until(lambda rank=rank: window.words.rank_load(rank, Field.WAITS) > 0, "it waits")  # type: ignore[misc]
    assert not ended  # one that lives is waited for
    other.send_signal(signal.SIGKILL)
    other.wait()
    for thread in threads:
        thread.join()
    assert [type(error) for error in ended] == [WorkerLostError] * 2
    assert [error.rank for error in ended] == [1, 1]
    for link in links:
        link.close()
    shard.actor.close()
    assert not list(folder().glob(f"dps-{FIT}-*"))


def test_who_leaves_in_good_order_is_not_lost() -> None:
    shard = Shard(Adam(), shared=True)
    card = shard.open(0, 2)
    elsewhere(card, "leave").wait()
    window = shard.window(0)
    assert window.words.rank_load(1, Field.LEASE) == LEFT
    link = MappedLink(window, 0, FENCE, 0.5)
    link.claim()
    with pytest.raises(StalledError):
        channel(Sync(), 0, 2, link, shard.update).push_pull(np.ones(SIZE), 1, 0.0)
    link.close()
    shard.actor.close()


def test_looking_at_many_leases_keeps_no_file_open() -> None:
    def opened() -> int:
        files = psutil.Process().open_files()
        return sum(file.path.startswith(str(folder() / f"dps-{FIT}-")) for file in files)

    shard, ranks = Shard(Adam(), shared=True), 64
    shard.open(0, ranks)
    links = [MappedLink(shard.window(0), rank, FENCE, 2.0) for rank in range(ranks)]
    before = opened()
    for link in links:
        link.claim()
    assert opened() - before == ranks  # a lock each
    with pytest.raises(StalledError):  # having looked at all others
        channel(Sync(), 0, ranks, links[0], shard.update).push_pull(np.ones(SIZE), 1, 0.0)
    assert opened() - before == ranks
    for link in links:
        link.close()
    assert opened() == before
    shard.actor.close()


def test_a_far_rank_whose_connection_ends_is_lost(shard: Shard) -> None:
    shard.open(0, 3)
    window = shard.window(0)
    good, bad = (LoopbackLink(window, Sync(), rank, FOREVER) for rank in (1, 2))
    good.claim()
    bad.claim()
    good.close()
    assert bad._wire is not None
    bad._wire.shut()  # as the system does for a process that dies
    bad._thread.join()
    near = MappedLink(window, 0, FENCE, FOREVER)
    near.claim()
    with pytest.raises(WorkerLostError) as caught:
        near.call(operations.reduce, 1, [0.0])
    assert caught.value.rank == 2
    near.close()
    bad.close()


@pytest.mark.parametrize(
    ("kind", "nbytes", "n_keys"), [(4, 0, 0), (3, 8, -1), (5, 8, 1 << 61), (99, 0, -1)]
)
def test_a_rank_whose_request_is_refused_hears_why(
    kind: int, nbytes: int, n_keys: int, shard: Shard
) -> None:
    shard.open(0, 2)
    rank = LoopbackLink(shard.window(0), Sync(), 1, FOREVER)
    rank.claim()
    wire = rank._wire
    assert wire is not None
    # As a `Request` is laid out in message.pxd, and its `Answer`.
    words = kind, nbytes, n_keys, 1, 1, 1, 0, 0, *[0.0] * 9, 0, 0, 0, 0.0, *[0] * 5
    send_bytes(wire, struct.pack("=8q9d3qd5q", *words))
    raised, size, *_ = struct.unpack("=6q8d", wire.receive_bytes(struct.calcsize("=6q8d")))
    error = pickle.loads(wire.receive_bytes(size))
    assert raised == 4
    assert isinstance(error, FencedError)
    assert f"a request is refused: kind {kind}, with {n_keys} keys and {nbytes} bytes" in str(error)
    wire.close()
    rank._thread.join()
    assert shard.window(0).words.rank_load(1, Field.LEASE) == LOST
