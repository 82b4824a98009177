"""Allreduce by a ring: the bits are those of a ring written out, and messages go to the right."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from conditions import until
from configure import configure, placed
from distributed import Client, LocalCluster
from groups import Group, LoopbackLink, at_once

import dps
from dps import AllReduce
from dps._runtime.shared.activity import BYTES
from dps.errors import NonFiniteError, StalledError, StoppedError
from dps.optimizers import Adagrad
from dps.training.replica.channel import Channel

RING = AllReduce(algorithm="ring")
STEPS = 8


def rows(rank: int, step: int) -> int:
    return (rank + step) % 3 if rank else 1  # some have none


def gradient(rank: int, step: int, size: int, dtype: str) -> np.ndarray:
    made = np.random.default_rng((rank, step)).normal(size=size).astype(dtype)
    return made if rows(rank, step) else np.zeros_like(made)


def mean(parts: list[np.ndarray], count: int) -> np.ndarray:
    """A ring, written out: chunk c is summed from member c to the right."""
    n, size = len(parts), len(parts[0])
    made = np.empty_like(parts[0])
    for chunk in range(n):
        at = slice(size * chunk // n, size * (chunk + 1) // n)
        total = parts[chunk][at].copy()
        for shift in range(1, n):
            total += parts[(chunk + shift) % n][at]
        made[at] = total / total.dtype.type(count)
    return made


def expected(means: list[np.ndarray]) -> np.ndarray:
    """The result of Adagrad on one rank for these means."""
    size, dtype = len(means[0]), means[0].dtype.name
    with Group(n_ranks=1, size=size, dtype=dtype, optimizer=Adagrad()) as group:
        (channel,) = group.channels
        channel.pull()
        for one in means:
            channel.push_pull(one, 1, 0.0)
        return np.array(channel.params)


def steps(channel: Channel, rank: int) -> np.ndarray:
    size, dtype = channel._spec.size, channel._spec.dtype
    for step in range(STEPS):
        channel.push_pull(gradient(rank, step, size, dtype), rows(rank, step), 0.0)
    return np.array(channel.params)


def each(channels: list[Channel], run: Any = steps) -> list[Any]:
    return at_once([lambda r=r, c=c: run(c, r) for r, c in enumerate(channels)])  # type: ignore[misc]


def to_the_right(n: int, *members: int) -> list[tuple[int, int]]:
    """These members reach all windows but their own by TCP."""
    return [(rank, shard) for rank in members for shard in range(n) if rank != shard]


class Slow:
    """A way to a listening socket on which much is held up until its sender has looked around."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self, address: Any) -> socket.socket:
        with socket.create_server(("127.0.0.1", 0)) as between:
            ours = socket.create_connection(between.getsockname())
            theirs, _ = between.accept()
        onwards = socket.create_connection(address)
        for one, other in ((theirs, onwards), (onwards, theirs)):
            threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()
        return ours

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        passed, held = 0, False
        with one, other, suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
                passed += len(data)
                if passed > 1 << 16 and not held:
                    held, before = True, self.looks
                    until(lambda before=before: self.looks >= before + 5, "the sender looks")  # type: ignore[misc]
            other.shutdown(socket.SHUT_WR)


def test_a_rank_that_looks_around_inside_a_message_says_nothing_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size, slow = 4_000_000, Slow()
    channels: list[Channel] = []

    def look(self: Any) -> None:
        slow.looks += 1
        for channel in channels:
            if self in channel._links:
                channel.heartbeat()

    monkeypatch.setattr(LoopbackLink, "connect", slow)
    monkeypatch.setattr(LoopbackLink, "_tick", look)
    with Group(RING, 2, size, n_shards=2, far=to_the_right(2, 0)) as group:
        channels += group.channels
        parts = [gradient(rank, 1, size, "float64") for rank in range(2)]
        ended = each(channels, lambda channel, rank: channel.push_pull(parts[rank], rank + 1, 0.0))
        assert not [error for error in ended if isinstance(error, Exception)]
        assert slow.looks >= 5
        wanted = -0.5 * mean(parts, 3)
        for channel in channels:
            np.testing.assert_array_equal(channel.params, wanted)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("n", "size"), [(1, 5), (2, 2), (2, 1000), (3, 7), (3, 1000), (5, 64)])
def test_steps_have_the_bits_of_a_ring_that_is_written_out(n: int, size: int, dtype: str) -> None:
    means = []
    for step in range(STEPS):
        parts = [gradient(rank, step, size, dtype) for rank in range(n)]
        means.append(mean(parts, sum(rows(rank, step) for rank in range(n))))
    wanted = expected(means)
    for far in ((), (0,), range(n)):
        options: Any = {"n_shards": n, "far": to_the_right(n, *far), "dtype": dtype}
        with Group(RING, n, size, optimizer=Adagrad(), **options) as group:
            for params in each(group.channels):
                np.testing.assert_array_equal(params, wanted)
            assert {window.store.version for window in group.windows} == {STEPS}


def test_ranks_of_a_host_sum_first_and_one_of_them_takes_part() -> None:
    hosts, size = ((0, 1), (2,), (3, 4)), 100
    means = []
    for step in range(STEPS):
        parts = [gradient(rank, step, size, "float64") for rank in range(5)]
        sums = [parts[0] + parts[1], parts[2], parts[3] + parts[4]]
        means.append(mean(sums, sum(rows(rank, step) for rank in range(5))))
    far = [(rank, shard) for shard in range(3) for rank in range(5) if rank not in hosts[shard]]
    with Group(RING, 5, size, n_shards=3, hosts=hosts, far=far, optimizer=Adagrad()) as group:
        for params in each(group.channels):
            np.testing.assert_array_equal(params, expected(means))


def test_a_step_sends_two_chunks_less_than_twice_the_vector_and_to_the_right_only() -> None:
    n, size = 4, 400
    with Group(RING, n, size, n_shards=n, far=to_the_right(n, *range(n))) as group:
        each(group.channels)
        for rank, channel in enumerate(group.channels):
            sent = [int(row[BYTES]) for row in channel.activity.rows]
            wanted = [0] * n
            wanted[(rank + 1) % n] = STEPS * 2 * (n - 1) * (size // n) * 8
            assert sent == wanted


def test_means_and_broadcasts_stay_direct_and_come_between_steps() -> None:
    def meet(channel: Channel, rank: int) -> list[Any]:
        seen = []
        for number in range(20):
            seen.append(channel.push_pull(np.full(8, rank + 1.0), 1, 0.0).tobytes())
            made, notes = channel.mean(np.full(8, float(rank)), 1, [1.0])
            seen += [made.tolist(), notes.tolist()]
            seen.append(channel.broadcast(np.full(8, float(number)), [2.0])[0].tolist())
        return seen

    with Group(RING, 3, 8, n_shards=3, far=to_the_right(3, 1)) as group:
        first, *others = each(group.channels, meet)
    assert first[1:4] == [[1.0] * 8, [3.0], [0.0] * 8]
    assert others == [first, first]


@pytest.mark.parametrize("far", [(), range(3)], ids=["mapped", "far"])
def test_a_gradient_that_is_not_finite_is_refused_where_it_is(far: Any) -> None:
    def push(channel: Channel, rank: int) -> None:
        grad = np.full(9, np.nan if rank == 1 else 1.0)
        try:
            channel.push_pull(grad, 1, 0.0)
        except NonFiniteError:
            for window in group.windows:  # as `abort` does
                window.stop(2)
            raise

    with Group(RING, 3, 9, n_shards=3, far=to_the_right(3, *far)) as group:
        kinds = [type(error) for error in each(group.channels, push)]
    assert kinds == [StoppedError, NonFiniteError, StoppedError]


def test_a_member_that_does_not_come_is_named_by_its_neighbour() -> None:
    group = Group(RING, 3, 9, n_shards=3, timeout=0.5)
    with group, pytest.raises(StalledError) as caught:
        group.channels[0].push_pull(np.ones(9), 1, 0.0)
    assert caught.value.rank == 2  # what is to the left of 0


def test_options_that_contradict_a_ring_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'algorithm' parameter .* Got 'tree'"):
        AllReduce(algorithm="tree")
    with pytest.raises(ValueError, match="access='stream' has none"):
        AllReduce(algorithm="ring", access="stream")
    X = np.random.default_rng(0).normal(size=(60, 3))
    options: Any = {"mode": RING, "optimizer": "sgd", "n_replicas": 3, "max_iter": 2, "tol": None}
    with pytest.raises(ValueError, match=r"shard for each of its 3 members, got dps\.n_shards=2"):
        dps.LinearClassifier(**placed({**options, "n_shards": 2})).fit(X, X[:, 0] > 0)
    options["n_replicas"] = 5
    configure(n_shards="auto")
    with pytest.raises(ValueError, match="5 members, and there are 4: use algorithm='direct'"):
        dps.LinearClassifier(**options).fit(X, X[:, 0] > 0)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    cluster = LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=":0")
    with cluster, Client(cluster) as client:
        yield client


def test_a_fit_on_a_cluster_ends_where_the_direct_way_does(client: Client) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 20))
    y = X @ rng.normal(size=20) + rng.normal(size=3000) > 0
    models = [
        dps.LinearClassifier(
            mode=mode, client=client, optimizer="sgd", learning_rate=0.1, batch_size=60,
            n_replicas=3, max_iter=5, tol=None, random_state=0,
        ).fit(X, y)
        for mode in (RING, AllReduce(), RING)
    ]  # fmt: skip
    ring, direct, again = models
    assert len(ring.plan_.shards) == 3
    assert ring.coef_.tobytes() == again.coef_.tobytes()
    np.testing.assert_allclose(ring.coef_, direct.coef_, rtol=1e-6)
