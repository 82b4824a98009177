"""Ranks of a host sum there first; sums are in rank order on a host, then over hosts in order."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import psutil
import pytest
import scipy.sparse
from groups import Group, at_once

from dps import AllReduce, Sync
from dps._runtime.loop import StepLoop
from dps.data.feed.blocks import Block, features_of
from dps.errors import NonFiniteError, StalledError, StoppedError
from dps.losses import LogLoss, SquaredError
from dps.models.linear import LinearModel
from dps.optimizers import Adagrad, Constant
from dps.optimizers.update import Rates
from dps.training.replica.channel import Channel

SIZE, STEPS = 3000, 12
#: Ranks of each host, where hosts have unlike numbers of them.
HOSTS = ((0, 1), (2,), (3, 4, 5))
RANKS = 6


def gradient(rank: int, step: int, dtype: str) -> np.ndarray:
    return np.random.default_rng((rank, step)).normal(size=SIZE).astype(dtype)


def rows(rank: int, step: int) -> int:
    return (rank + step) % 3 if rank else 1  # some have none


def mean(step: int, dtype: str) -> np.ndarray:
    """The mean gradient of a step, written out."""
    sums: list[np.ndarray] = []
    for ranks in HOSTS:
        parts = [gradient(rank, step, dtype) for rank in ranks if rows(rank, step)]
        if parts:
            total = parts[0].copy()
            for part in parts[1:]:
                total += part
            sums.append(total)
    whole = sums[0].copy()
    for part in sums[1:]:
        whole += part
    count = sum(rows(rank, step) for rank in range(RANKS))
    return whole if count == 1 else whole / whole.dtype.type(count)


def expected(dtype: str) -> np.ndarray:
    """The result of Adagrad on one rank for these means."""
    with Group(n_ranks=1, size=SIZE, dtype=dtype, optimizer=Adagrad()) as group:
        (channel,) = group.channels
        channel.pull()
        for step in range(STEPS):
            channel.push_pull(mean(step, dtype), 1, 0.0)
        return np.array(channel.params)


def steps(channel: Channel, rank: int, dtype: str) -> np.ndarray:
    channel.pull()
    for step in range(STEPS):
        n = rows(rank, step)
        grad = gradient(rank, step, dtype) if n else np.zeros(SIZE, dtype)
        channel.push_pull(grad, n, 0.0)
    return np.array(channel.params)


def far_from(n_shards: int, *ranks: int) -> list[tuple[int, int]]:
    return [(rank, shard) for rank in ranks for shard in range(n_shards)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n_shards", [1, 3])
@pytest.mark.parametrize("mode", [Sync(), AllReduce()], ids=["sync", "allreduce"])
def test_steps_have_the_bits_that_are_written_out(mode: Any, n_shards: int, dtype: str) -> None:
    wanted = expected(dtype)
    for far in ((), (3, 4, 5), (0, 1, 3, 4, 5), range(RANKS)):
        options: Any = {"n_shards": n_shards, "dtype": dtype}
        with Group(
            mode, RANKS, SIZE, hosts=HOSTS, far=far_from(n_shards, *far), optimizer=Adagrad(),
            **options,
        ) as group:  # fmt: skip
            ended = at_once(
                [lambda r=r, c=c: steps(c, r, dtype) for r, c in enumerate(group.channels)]  # type: ignore[misc]
            )
            for params in ended:
                np.testing.assert_array_equal(params, wanted)
            assert {w.store.version for w in group.windows} == {STEPS}


def test_one_message_a_host_and_step_reaches_a_shard() -> None:
    with Group(n_ranks=RANKS, size=SIZE, hosts=HOSTS, far=far_from(1, 3, 4, 5)) as group:
        at_once(
            [lambda r=r, c=c: steps(c, r, "float64") for r, c in enumerate(group.channels)]  # type: ignore[misc]
        )
        pushes = group.windows[0].activity[:, 0].tolist()
        assert pushes == [STEPS, 0, STEPS, STEPS, 0, 0]


BATCH, RATE = 10, 0.1


def keyed_steps(channel: Channel, rank: int, dtype: str, outputs: int) -> np.ndarray:
    """Steps on rows that touch few parameters, of which batches come in unlike parts."""
    rng = np.random.default_rng(rank)
    X = scipy.sparse.random_array(
        (BATCH * STEPS, SIZE // outputs - 1),
        density=0.004,
        format="csr",
        random_state=rng,
        dtype=np.float64,
    )
    y = rng.integers(0, 2, (BATCH * STEPS, outputs)).astype(dtype)
    X = scipy.sparse.csr_array(X.astype(dtype))
    model = LinearModel(SIZE // outputs - 1, outputs, SquaredError(), dtype=np.dtype(dtype))
    assert model.kernel is not None
    block = Block(0, features_of(X, dtype), y, None, 0, len(y), None, 0).for_kernels
    channel.pull()
    channel.step.begin_epoch(0)
    loop = StepLoop(model.kernel, channel.step)
    rows = 0 if rank == 4 else len(y)  # it has none, and the others of its host sum without it
    loop.begin(rows, np.full(STEPS, RATE))
    cuts = [0, *sorted(rng.choice(rows, 7, replace=False)), rows] if rows else [0, 0]
    for start, stop in itertools.pairwise(cuts):
        assert loop.run([(block, None, start, stop)]) == "ran"
    assert loop.done
    channel.pull()
    held = channel.params if channel._held is None else channel._held[0]
    return np.array(held)


@pytest.mark.parametrize(("dtype", "outputs"), [("float32", 1), ("float64", 1), ("float32", 5)])
@pytest.mark.parametrize("n_shards", [1, 3])
@pytest.mark.parametrize("mode", [Sync(), AllReduce()], ids=["sync", "allreduce"])
def test_steps_by_keys_have_the_bits_of_whole_vectors(
    mode: Any, n_shards: int, dtype: str, outputs: int
) -> None:
    rates = Rates(Constant(RATE), STEPS, epochs=0, version=0, max_epochs=1, width=outputs)
    options: Any = {"n_shards": n_shards, "dtype": dtype}

    def trained(keyed: Rates | None, far: Any) -> list[Any]:
        with Group(
            mode, RANKS, SIZE, hosts=HOSTS, far=far_from(n_shards, *far), keyed=keyed,
            **options,
        ) as group:  # fmt: skip
            ended = at_once(
                [
                    lambda r=r, c=c: keyed_steps(c, r, dtype, outputs)  # type: ignore[misc]
                    for r, c in enumerate(group.channels)
                ]
            )
            for error in [end for end in ended if isinstance(end, Exception)]:
                raise error
            for window in group.windows:
                pushed = (window.activity[:, 0] > 0).tolist()
                assert pushed == [True, False, True, True, False, False]
            return ended

    wanted = trained(None, ())[0]
    assert np.count_nonzero(wanted) > SIZE // 10
    for far in ((), (3, 4, 5), (0, 1, 3, 4, 5), range(RANKS)):
        for params in trained(rates, far):
            np.testing.assert_array_equal(params, wanted)


@pytest.mark.parametrize("far", [(), [(0, 0)]], ids=["mapped", "far"])
def test_by_keys_a_replica_holds_what_its_batches_touch(far: Any) -> None:
    size = 1 << 24  # 128 MB
    rates = Rates(Constant(RATE), STEPS, epochs=0, version=0, max_epochs=1)
    rng = np.random.default_rng(0)
    columns = rng.integers(0, size - 1, (BATCH * STEPS, 250)).astype(np.int32)
    starts = np.arange(0, columns.size + 1, 250, dtype=np.int32)
    X = scipy.sparse.csr_array(
        (np.ones(columns.size), columns.ravel(), starts), shape=(len(columns), size - 1)
    )
    model = LinearModel(size - 1, 1, LogLoss())
    block = Block(
        0, features_of(X, "float64"), np.ones(len(columns)), None, 0, len(columns), None, 0
    )
    with Group(n_ranks=1, size=size, far=far, keyed=rates) as group:
        (channel,) = group.channels
        group.windows[0].store.since[:] = 0  # what the shard holds is in memory already
        before = psutil.Process().memory_info().rss
        channel.step.begin_epoch(0)
        loop = StepLoop(model.kernel, channel.step)
        loop.begin(len(columns), np.full(STEPS, RATE))
        assert loop.run([(block.for_kernels, None, 0, len(columns))]) == "ran"
        assert psutil.Process().memory_info().rss - before < 32 << 20
        touched = group.windows[0].store.params[columns.ravel()]
        assert np.count_nonzero(touched) == columns.size


def test_means_and_broadcasts_go_by_hosts_too() -> None:
    def meet(channel: Channel, rank: int) -> list[bytes]:
        seen = []
        for number in range(30):
            values = gradient(rank, number, "float64")
            made, notes = channel.mean(values, rank + 1, [1.0, float(rank)])
            assert notes.tolist() == [RANKS, 15.0]
            seen.append(made.tobytes())
            if number % 3:
                given, notes = channel.broadcast(values, [float(number)])
                assert notes.tolist() == [number]
                np.testing.assert_array_equal(given, gradient(0, number, "float64"))
        return seen

    for far in ((), (3, 4, 5), (0, 1, 2)):
        with Group(n_ranks=RANKS, size=SIZE, hosts=HOSTS, far=far_from(1, *far)) as group:
            ended = at_once([lambda r=r, c=c: meet(c, r) for r, c in enumerate(group.channels)])  # type: ignore[misc]
        assert ended == [ended[0]] * RANKS
        for number, made in enumerate(ended[0]):
            sums = [sum(gradient(r, number, "float64") for r in ranks) for ranks in HOSTS]
            np.testing.assert_array_equal(np.frombuffer(made), sum(sums) / 21)


@pytest.mark.parametrize("bad", [0, 4])
def test_what_is_not_finite_on_a_host_is_named(bad: int) -> None:
    def push(channel: Channel, rank: int) -> None:
        try:
            channel.push_pull(np.full(SIZE, np.nan if rank == bad else 1.0), 1, 0.0)
        except NonFiniteError:
            for window in (*group.windows, channel._host.window):  # type: ignore[union-attr]
                window.stop(2)
            raise

    with Group(n_ranks=RANKS, size=SIZE, hosts=HOSTS, timeout=5.0) as group:
        ended = at_once([lambda r=r, c=c: push(c, r) for r, c in enumerate(group.channels)])  # type: ignore[misc]
    assert isinstance(ended[bad], NonFiniteError)
    assert ended[bad].rank == bad
    others = [error for rank, error in enumerate(ended) if rank != bad]
    assert all(isinstance(error, StoppedError | StalledError) for error in others)


def test_a_rank_that_does_not_come_is_named_by_its_own_number() -> None:
    with Group(n_ranks=RANKS, size=SIZE, hosts=HOSTS, timeout=0.5) as group:
        with pytest.raises(StalledError) as caught:
            group.channels[3].push_pull(np.zeros(SIZE), 1, 0.0)
        assert caught.value.rank in (4, 5)
