"""Means and broadcasts are the same to all ranks, and the same wherever a rank is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from groups import Group, at_once

from dps._runtime.shared.activity import BYTES, PUSHES
from dps.errors import NonFiniteError, StalledError, StoppedError
from dps.server.group.window import ABORTED, Field
from dps.training.replica.channel import Channel

SIZE = 5000  # some blocks of a sum, and no multiple of one


def everywhere(rank: int, n_shards: int) -> list[tuple[int, int]]:
    return [(rank, shard) for shard in range(n_shards)]


def values_of(rank: int, number: int, dtype: str) -> np.ndarray:
    rng = np.random.default_rng((rank, number))
    return rng.normal(size=SIZE).astype(dtype)


def met(channel: Channel, rounds: int = 40) -> list[Any]:
    """All that a rank sees of means and broadcasts that follow each other.

    Ranks take turns in looking late, when the others have gone on.
    """
    rank, seen = channel._spec.rank, []

    def look(*arrays: Any) -> None:
        if number % 3 == rank:
            np.sort(np.random.default_rng(0).random(100_000))
        seen.append(tuple(array.tobytes() for array in arrays))

    for number in range(rounds):
        values = values_of(rank, number, channel._spec.dtype)
        look(*channel.mean(values, rank + 1, [float(number), float(rank)]))
        if number % 3:  # means may follow each other, too
            look(*channel.broadcast(values, [float(number), 7.0]))
    return seen


def expected(n_ranks: int, dtype: str, rounds: int = 40) -> list[Any]:
    """The same, written out: in rank order, in the vectors' own type."""
    seen: list[Any] = []
    for number in range(rounds):
        given = [values_of(rank, number, dtype) for rank in range(n_ranks)]
        total = given[0].copy()
        for values in given[1:]:
            total += values
        mean = total / total.dtype.type(sum(range(1, n_ranks + 1)))
        notes = np.array([float(number * n_ranks), float(sum(range(n_ranks)))])
        seen.append((mean.tobytes(), notes.tobytes()))
        if number % 3:
            seen.append((given[0].tobytes(), np.array([float(number), 7.0]).tobytes()))
    return seen


@pytest.mark.parametrize(("n_shards", "dtype"), [(1, "float32"), (3, "float64")])
def test_all_see_what_is_written_out_wherever_they_are(n_shards: int, dtype: str) -> None:
    found = []
    for far in ((), (0,), (1, 2), (0, 1, 2)):
        ways = [way for rank in far for way in everywhere(rank, n_shards)]
        options: Any = {"n_shards": n_shards, "dtype": dtype}
        with Group(n_ranks=3, size=SIZE, far=ways, **options) as group:
            seen = at_once([lambda c=channel: met(c) for channel in group.channels])  # type: ignore[misc]
            assert seen == [expected(3, dtype)] * 3
            counted = [window.activity[:, [PUSHES, BYTES]].tolist() for window in group.windows]
            assert {window.store.version for window in group.windows} == {0}
            found.append((counted, [channel.steps for channel in group.channels]))
    assert all(others == found[0] for others in found)


def test_a_rank_that_is_near_to_one_shard_and_far_from_another() -> None:
    far = [(0, 1), (1, 0), (1, 2), (2, 2)]
    with Group(n_ranks=3, size=SIZE, n_shards=3, far=far) as group:
        seen = at_once([lambda c=channel: met(c) for channel in group.channels])  # type: ignore[misc]
        assert seen == [expected(3, "float64")] * 3


@pytest.mark.parametrize("far", [[], [(0, 0)]], ids=["mapped", "far"])
def test_one_rank_meets_itself(far: Any) -> None:
    with Group(n_ranks=1, size=SIZE, far=far) as group:
        assert met(group.channels[0]) == expected(1, "float64")


@pytest.mark.parametrize(("rank", "n_shards"), [(None, 3), (0, 1), (1, 3)])
def test_what_is_not_finite_is_named(rank: int | None, n_shards: int) -> None:
    far = [] if rank is None else everywhere(rank, n_shards)
    bad = np.zeros(SIZE)
    bad[-1] = np.nan  # on one shard alone
    with Group(size=SIZE, n_shards=n_shards, far=far, timeout=0.5) as group:
        ranks = group.channels
        first, second = at_once(
            [lambda: ranks[0].mean(np.zeros(SIZE), 1), lambda: ranks[1].mean(bad, 1)]
        )
    assert isinstance(first, StalledError)
    assert first.rank == 1
    assert isinstance(second, NonFiniteError)
    assert (second.rank, second.step) == (1, 1)
    assert "the gradient is NaN" in str(second)

    with Group(size=SIZE, n_shards=n_shards, far=far, timeout=0.5) as group:
        ranks = group.channels
        first, second = at_once(
            [lambda: ranks[0].broadcast(bad, []), lambda: ranks[1].broadcast(bad, [])]
        )
    assert isinstance(first, NonFiniteError)
    assert (first.rank, first.step) == (0, 1)
    assert "an update overflowed" in str(first)
    assert isinstance(second, StalledError)


@pytest.mark.parametrize("far", [[], [(0, 0)]], ids=["mapped", "far"])
def test_stopping_ends_a_mean(far: Any) -> None:
    def stop() -> None:  # while a rank waits
        group.windows[0].stop(ABORTED)

    with Group(size=SIZE, timeout=2.0, far=far, alive=stop) as group:
        ranks, window = group.channels, group.windows[0]
        at_once([lambda c=channel: c.mean(np.zeros(SIZE), 1) for channel in ranks])  # type: ignore[misc]
        if far:  # no one here looks around for a rank whose thread waits at the shard
            stop()
        (ended,) = at_once([lambda: ranks[0].mean(np.zeros(SIZE), 1)])
        assert isinstance(ended, StoppedError)
        assert window.words.rank_load(0, Field.ARRIVED) == 2 - bool(far)
        # Nor does the next one begin: rank 0 has come to this one at most.
        for meet in (
            lambda: ranks[1].mean(np.zeros(SIZE), 1),
            lambda: ranks[1].broadcast(np.zeros(SIZE), []),
        ):
            with pytest.raises(StoppedError):
                meet()


def test_a_mean_takes_what_fits() -> None:
    with Group(n_ranks=1, size=SIZE) as group:
        (channel,) = group.channels
        channel.mean(np.zeros(SIZE), 1)
        for values in (np.zeros(SIZE + 1), np.zeros(SIZE, np.float32), np.zeros(2 * SIZE)[::2]):
            with pytest.raises(ValueError, match="values"):
                channel.mean(values, 1)
        with pytest.raises(ValueError, match="8 notes at most, got 9"):
            channel.mean(np.zeros(SIZE), 1, range(9))
        assert channel.mean(np.ones(SIZE), 1, [3.0])[1] == [3.0]  # and nothing has become of them
