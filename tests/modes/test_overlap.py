"""A push to a far shard is under way while its rank computes; one rank alone waits."""

from __future__ import annotations

import numpy as np
import pytest
from groups import Group

from dps import Async

SIZE, RATE = 8, 0.5


def far(n_ranks: int, n_shards: int) -> list[tuple[int, int]]:
    return [(rank, shard) for rank in range(n_ranks) for shard in range(n_shards)]


@pytest.mark.parametrize("n_shards", [1, 2])
def test_a_rank_among_others_computes_while_its_push_is_under_way(n_shards: int) -> None:
    with Group(Async(), size=SIZE, n_shards=n_shards, far=far(2, n_shards)) as group:
        channel, other = group.channels
        grad = np.arange(SIZE, dtype=float)
        first, second = grad.copy(), grad + 100
        start = channel.pull().copy()
        # Nothing comes back yet.
        np.testing.assert_array_equal(channel.push_pull(grad, 1, 0.0), start)
        assert channel.step.busy
        grad[:] = second  # the loop writes the next one in the same place
        np.testing.assert_array_equal(channel.push_pull(grad, 1, 0.0), start - RATE * first)
        grad[:] = np.nan
        np.testing.assert_array_equal(channel.pull(), start - RATE * (first + second))
        # The first saw no update that it lacked; the second lacked the first.
        assert channel.staleness() == (1.0, 1.0)
        np.testing.assert_array_equal(other.pull(), channel.pull())
        assert channel.push_pull(grad, 0, 0.0) is not None  # a step without rows is no push
        assert channel.steps == 2


@pytest.mark.parametrize("n_shards", [1, 2])
def test_one_rank_alone_waits_and_is_sequential(n_shards: int) -> None:
    with Group(Async(), n_ranks=1, size=SIZE, n_shards=n_shards, far=far(1, n_shards)) as group:
        (channel,) = group.channels
        grad = np.arange(SIZE, dtype=float)
        params = channel.pull().copy()
        for step in range(3):
            params -= RATE * grad
            np.testing.assert_array_equal(channel.push_pull(grad, 1, 0.0), params, f"step {step}")
            grad += 1
        assert channel.staleness() == (0.0, 0.0)


def test_what_is_under_way_is_collected_before_anything_else_is_asked() -> None:
    with Group(Async(), size=SIZE, far=far(2, 1)) as group:
        channel, other = group.channels
        grad = np.ones(SIZE)
        for push_then in (channel.pull, channel.staleness, other.pull):
            channel.push_pull(grad, 1, 0.0)
            channel.beat()
            push_then()
        channel.pull()
        np.testing.assert_array_equal(other.pull(), np.full(SIZE, -RATE * 3))


def test_a_mapped_shard_is_not_waited_for_because_another_is_far() -> None:
    with Group(Async(), size=SIZE, n_shards=2, far=[(0, 1), (1, 0)]) as group:
        channel, _ = group.channels
        params = channel.push_pull(np.ones(SIZE), 1, 0.0)
        np.testing.assert_array_equal(params, np.repeat([-RATE, 0.0], SIZE // 2))
        np.testing.assert_array_equal(channel.pull(), np.full(SIZE, -RATE))
