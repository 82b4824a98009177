"""A group notices which of its ranks has died."""

from __future__ import annotations

import pickle
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest
from compiled import send_bytes
from conditions import until
from groups import FENCE, LoopbackLink, at_once

from dps import Sync
from dps._runtime.wire.message import Coding, Op
from dps.errors import FencedError, StalledError, WorkerLostError
from dps.optimizers import SGD, Constant
from dps.optimizers.update import Update
from dps.server.group import operations
from dps.server.group.window import Field, Window, WindowSpec
from dps.server.memory.files import folder
from dps.server.memory.lease import LEFT, LOST
from dps.server.placement import Placement
from dps.server.shard import Initial, ParameterShard, ShardSpec, WindowCard
from dps.server.store.store import StoreSpec
from dps.training.replica.channel import Channel, ChannelSpec
from dps.transport.mapped import MappedLink, map_window

SIZE = 100
FIT = "f1f1"
FOREVER = 3600.0


class Shard:
    """A shard in this process, and the group that is opened there."""

    def __init__(self, *, shared: bool = False) -> None:
        self.update = Update(SGD(), 0.0, 0.0, ((0, SIZE, False),))
        self.store = StoreSpec(FIT, 0, SIZE, "float64")
        self.shared = shared

    def open(self, n_ranks: int) -> WindowCard:
        spec = ShardSpec(
            WindowSpec(FIT, n_ranks, self.store, 16), Initial(SIZE, "float64", (0.0,)),
            Sync().channel, FOREVER, 0, self.update, self.shared,
        )  # fmt: skip
        self.actor = ParameterShard(spec)
        return self.actor.open()

    @property
    def window(self) -> Window:
        return self.actor.window


def channel(rank: int, n_ranks: int, link: Any, update: Update) -> Channel:
    placement = Placement.of(SIZE, 1)
    spec = ChannelSpec(rank, n_ranks, placement, SIZE, "float64", Constant(0.1), update)
    return Channel(Sync(), spec, [link])


@pytest.fixture
def shard() -> Iterator[Shard]:
    made = Shard()
    yield made
    made.actor.close()


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
    shard = Shard(shared=True)
    card = shard.open(3)
    other = elsewhere(card, "stay")
    window = map_window(card)
    assert window is not None
    links = [MappedLink(window, rank, FENCE, FOREVER) for rank in (0, 2)]
    ended: list[Any] = []

    def wait(rank: int, link: MappedLink) -> None:
        link.claim()
        ranked = channel(rank, 3, link, shard.update)
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
    shard = Shard(shared=True)
    card = shard.open(2)
    elsewhere(card, "leave").wait()
    window = shard.window
    assert window.words.rank_load(1, Field.LEASE) == LEFT
    link = MappedLink(window, 0, FENCE, 0.5)
    link.claim()
    with pytest.raises(StalledError):
        channel(0, 2, link, shard.update).push_pull(np.ones(SIZE), 1, 0.0)
    link.close()
    shard.actor.close()


def test_looking_at_many_leases_keeps_no_file_open() -> None:
    def opened() -> int:
        files = psutil.Process().open_files()
        return sum(file.path.startswith(str(folder() / f"dps-{FIT}-")) for file in files)

    shard, ranks = Shard(shared=True), 64
    shard.open(ranks)
    links = [MappedLink(shard.window, rank, FENCE, 2.0) for rank in range(ranks)]
    before = opened()
    for link in links:
        link.claim()
    assert opened() - before == ranks  # a lock each
    with pytest.raises(StalledError):  # having looked at all others
        channel(0, ranks, links[0], shard.update).push_pull(np.ones(SIZE), 1, 0.0)
    assert opened() - before == ranks
    for link in links:
        link.close()
    assert opened() == before
    shard.actor.close()


def test_a_far_rank_whose_connection_ends_is_lost(shard: Shard) -> None:
    shard.open(3)
    window = shard.window
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
    ("kind", "nbytes", "n_keys", "coding"),
    [
        (Op.PULL_KEYS, 0, 0, Coding.FULL),
        (Op.PUSH, 8, -1, Coding.FULL),
        (Op.PUSH, 8 * SIZE, -1, Coding.CHANGES),
        (Op.PUSH, 2 * SIZE, -1, Coding.NARROW),  # the shards' update has all bits
        (Op.PUSH, 2 * SIZE, -1, 3),
        (Op.PUSH_KEYS, 8, 1 << 61, Coding.FULL),
        (99, 0, -1, Coding.FULL),
    ],
)
def test_a_rank_whose_request_is_refused_hears_why(
    kind: int, nbytes: int, n_keys: int, coding: int, shard: Shard
) -> None:
    shard.open(2)
    rank = LoopbackLink(shard.window, Sync(), 1, FOREVER)
    rank.claim()
    wire = rank._wire
    assert wire is not None
    # As a `Request` is laid out in message.pxd, and its `Answer`.
    words = kind, nbytes, n_keys, 1, 1, 1, 0, 0, 0.0, coding, 0, *[0.0] * 8, 0, 0, 0, 0.0, *[0] * 5
    send_bytes(wire, struct.pack("=8qd2q8d3qd5q", *words))
    raised, size, *_ = struct.unpack("=6q8d", wire.receive_bytes(struct.calcsize("=6q8d")))
    error = pickle.loads(wire.receive_bytes(size))
    assert raised == 4
    assert isinstance(error, FencedError)
    assert f"a request is refused: kind {kind}, with {n_keys} keys and {nbytes} bytes" in str(error)
    wire.close()
    rank._thread.join()
    assert shard.window.words.rank_load(1, Field.LEASE) == LOST
