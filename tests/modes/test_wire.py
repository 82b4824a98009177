"""Vectors that cross to other hosts as bfloat16: what arrives is the formula, written out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from groups import Group, at_once

import dps
from dps import AllReduce, Sync
from dps._runtime.shared.activity import BYTES
from dps.modes import Mode
from dps.optimizers import Momentum
from dps.training.replica.channel import Channel

STEPS, EPOCHS, SIZE, RATE = 6, 2, 100, 0.1
SYNC, DIRECT = Sync(wire="bfloat16"), AllReduce(wire="bfloat16")
RING = AllReduce(algorithm="ring", wire="bfloat16")
LOCAL = AllReduce(period=2, wire="bfloat16")


def rows(rank: int, step: int) -> int:
    return (rank + step) % 3 if rank else 1  # some have none


def gradient(rank: int, step: int, params: np.ndarray) -> np.ndarray:
    """It depends on the parameters, so that each bit of these counts."""
    target = np.random.default_rng((rank, step)).normal(size=len(params))
    return (rows(rank, step) * (params - target)).astype(params.dtype)


def rounded(x: np.ndarray) -> np.ndarray:
    """The nearest bfloat16, ties to even."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) & np.uint64(0xFFFF0000)
    return bits.astype(np.uint32).view(np.float32).astype(x.dtype)


class Carried:
    """Vectors that are rounded, each with what was left over of the one before."""

    def __init__(self) -> None:
        self.left: Any = 0

    def __call__(self, x: np.ndarray, last: bool) -> np.ndarray:
        whole = x + self.left
        sent = rounded(whole)
        self.left = 0 if last else whole - sent
        return sent


def summed(given: list[np.ndarray], step: int) -> np.ndarray:
    """The sum over ranks that have rows, in their order; rank 0 always has."""
    total = given[0].copy()
    for rank in range(1, len(given)):
        if rows(rank, step):
            total += given[rank]
    return total


def steps_of(channel: Channel, rank: int, epochs: int = EPOCHS) -> list[np.ndarray]:
    """The parameters behind each step."""
    behind = []
    for epoch in range(epochs):
        channel.step.plan_steps(STEPS)
        for step in range(epoch * STEPS, (epoch + 1) * STEPS):
            channel.push_pull(gradient(rank, step, channel.params), rows(rank, step), 0.0)
            behind.append(channel.params.copy())
    return behind


def run(mode: Mode, n: int = 3, size: int = SIZE, **options: Any) -> tuple[list[Any], list[int]]:
    """The parameters of each rank behind each step, and the bytes that each has pushed."""
    with Group(mode, n, size, optimizer=Momentum(), rate=RATE, **options) as group:
        channels = group.channels
        found = at_once([lambda r=r, c=c: steps_of(c, r) for r, c in enumerate(channels)])  # type: ignore[misc]
        sent = [sum(int(row[BYTES]) for row in channel.activity.rows) for channel in channels]
    for each in found:
        if isinstance(each, Exception):
            raise each
    return found, sent


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("far", [(), (1,), (0, 2), (0, 1, 2)], ids=str)
def test_sync_sums_rounded_gradients_and_sends_changes(far: tuple[int, ...], dtype: str) -> None:
    found, _ = run(SYNC, dtype=dtype, far=[(rank, 0) for rank in far])
    with Group(Sync(), 1, SIZE, optimizer=Momentum(), rate=RATE, dtype=dtype) as exact:
        held = exact.channels[0]
        held.pull()
        at = [np.zeros(SIZE, dtype) for _ in range(3)]  # what each rank takes its gradient at
        carried = [Carried() for _ in range(3)]
        for step in range(EPOCHS * STEPS):
            last, first = (step + 1) % STEPS == 0, step % STEPS == 0
            given = [gradient(rank, step, at[rank]) for rank in range(3)]
            for rank in far:
                given[rank] = carried[rank](given[rank], last)
            total = summed(given, step)
            held.push_pull(total, sum(rows(rank, step) for rank in range(3)), 0.0)
            for rank in range(3):
                whole = first or last or rank not in far
                change = held.params - at[rank]
                at[rank] = held.params.copy() if whole else at[rank] + rounded(change)
                np.testing.assert_array_equal(found[rank][step], at[rank])


@pytest.mark.parametrize("n_shards", [1, 3])
@pytest.mark.parametrize("far", [(), (1,), (0, 1, 2)], ids=str)
def test_all_ranks_of_an_allreduce_have_the_rounded_mean(far: Any, n_shards: int) -> None:
    places = [(rank, shard) for rank in far for shard in range(n_shards)]
    found, _ = run(DIRECT, n_shards=n_shards, far=places)
    carried, mean_of = [Carried() for _ in range(3)], Carried()
    with Group(AllReduce(), 1, SIZE, optimizer=Momentum(), rate=RATE) as exact:
        held = exact.channels[0]
        held.pull()
        for step in range(EPOCHS * STEPS):
            last = (step + 1) % STEPS == 0
            given = [gradient(rank, step, held.params) for rank in range(3)]
            for rank in far:
                given[rank] = carried[rank](given[rank], last)
            total = summed(given, step)
            count = sum(rows(rank, step) for rank in range(3))
            held.push_pull(mean_of(total / count, last), 1, 0.0)
            for rank in range(3):
                np.testing.assert_array_equal(found[rank][step], held.params)


@pytest.mark.parametrize(
    "mode", [DIRECT, RING, LOCAL, AllReduce(period=2, algorithm="ring", wire="bfloat16")], ids=repr
)
def test_all_ranks_hold_the_same_bits_where_they_meet(mode: AllReduce) -> None:
    hosts = [(0, 1), (2,), (3, 4)]
    for options in (
        {"n": 3, "n_shards": 3, "far": [(0, 1), (1, 2), (2, 0), (2, 1)]},
        {"n": 5, "n_shards": 3, "hosts": hosts},
        {"n": 5, "n_shards": 3, "hosts": hosts, "far": [(0, 1), (2, 2), (3, 0), (0, 2), (3, 1)]},
    ):
        found, _ = run(mode, **options)  # type: ignore[arg-type]
        again, _ = run(mode, **options)  # type: ignore[arg-type]
        for step in range(mode.period - 1, EPOCHS * STEPS, mode.period):
            for rank in found:
                np.testing.assert_array_equal(rank[step], found[0][step])
        for one, other in zip(found, again, strict=True):
            np.testing.assert_array_equal(one, other)


def test_ranks_of_a_host_sum_with_all_bits_before_one_of_them_sends() -> None:
    hosts = [(0, 1), (2,)]
    far = [(2, 0), (2, 1), (0, 1), (1, 1)]
    found, _ = run(SYNC, n_shards=2, hosts=hosts, far=far)
    exact, _ = run(Sync(), n_shards=2, hosts=hosts, far=far)
    for one, other in zip(found, exact, strict=True):
        np.testing.assert_allclose(one, other, atol=0.05)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0][STEPS - 1], found[2][STEPS - 1])


@pytest.mark.parametrize(
    ("mode", "dtype"), [(SYNC, "float32"), (DIRECT, "float32"), (RING, "float64")]
)
def test_half_of_float32_goes_over_the_wire_or_a_quarter_of_float64(mode: Mode, dtype: str) -> None:
    n = 2
    options: dict[str, Any] = {"n_shards": 2, "far": [(0, 1), (1, 0)], "dtype": dtype}
    exact = AllReduce(algorithm="ring") if mode is RING else type(mode)()
    size = int(dtype[5:]) // 8
    narrow, whole = run(mode, n, **options)[1], run(exact, n, **options)[1]
    mapped = 0 if mode is RING else SIZE // 2 * size * EPOCHS * STEPS  # of the shard that is near
    assert [x - mapped for x in narrow] == [(x - mapped) * 2 // size for x in whole]


@pytest.mark.parametrize("mode", [SYNC, DIRECT, LOCAL], ids=repr)
def test_a_fit_that_is_resumed_has_the_bits_of_one_that_was_not_cut(
    mode: Mode, client: Client, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 30)).astype(np.float32)
    y = X @ rng.normal(size=30) + rng.normal(size=2000)

    def fitted(epochs: int, wire: str = "bfloat16", path: Path | None = None) -> Any:
        checkpoint = None if path is None else dps.Checkpoint(path, every=0)
        return dps.LinearRegressor(
            optimizer="momentum", learning_rate=0.05, batch_size=100, max_iter=epochs, tol=None,
            mode=replace(mode, access="stream", wire=wire), client=client, n_replicas=3,
            checkpoint=checkpoint, random_state=0,
        ).fit(X, y, resume=path is not None)  # fmt: skip

    whole = fitted(6)
    fitted(2, path=tmp_path)
    parts = fitted(6, path=tmp_path)
    assert len(parts.history_) == 6
    assert whole.coef_.tobytes() == parts.coef_.tobytes()
    exact = fitted(6, "exact")
    assert whole.coef_.tobytes() != exact.coef_.tobytes()
    assert whole.loss_ == pytest.approx(exact.loss_, rel=1e-3)


def test_an_unknown_wire_is_refused() -> None:
    for kind in (Sync, AllReduce):
        with pytest.raises(ValueError, match=r"'wire' parameter of .* Got 'float8'"):
            kind(wire="float8")
