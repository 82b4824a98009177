"""A push through the gateway is under way while its rank computes; one rank alone waits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dps import Async
from dps.modes import ChannelSpec
from dps.modes.base import Channel
from dps.optimizers import SGD, Constant
from dps.optimizers.update import Update
from dps.server.links import MappedLink
from dps.server.placement import place
from dps.server.window import Window, WindowSpec

SIZE, RATE = 8, 0.5


class Afar(MappedLink):
    """A link whose operations reach the window when their answers are asked for."""

    def __init__(self, window: Window, rank: int) -> None:
        super().__init__(window, rank, 1, 30.0)
        self._reach, self.window = window, None  # type: ignore[assignment]

    def start(self, operation: Any, *args: Any) -> None:
        self._begun = operation, args

    def finish(self) -> Any:
        operation, args = self._begun
        del self._begun
        return self.run(operation, *args)

    def run(self, operation: Any, *args: Any) -> Any:
        assert not hasattr(self, "_begun"), "one call at a time"
        self.window, window = self._reach, self.window
        try:
            return super().run(operation, *args)
        finally:
            self.window = window


def channels(n_ranks: int, n_shards: int) -> list[Channel]:
    placement = place("contiguous", [SIZE], n_shards)
    segments = ((0, SIZE, False),)
    windows = [
        Window.create(
            WindowSpec("f00d", shard, n_ranks, size, "float64", 0, True, 16, "digest"),
            update=Update(SGD(), 0.0, 0.0, ((0, size, False),)),
            shared=False,
        )
        for shard, size in ((s, placement.size(s)) for s in range(n_shards))
    ]
    update = Update(SGD(), 0.0, 0.0, segments)
    result = []
    for rank in range(n_ranks):
        links: list[Any] = [Afar(window, rank) for window in windows]
        spec = ChannelSpec(rank, n_ranks, placement, SIZE, "float64", Constant(RATE), update)
        for link in links:
            link.claim()
        result.append(Async().channel(spec, links))
    return result


@pytest.mark.parametrize("n_shards", [1, 2])
def test_a_rank_among_others_computes_while_its_push_is_under_way(n_shards: int) -> None:
    channel, other = channels(2, n_shards)
    grad = np.arange(SIZE, dtype=float)
    first, second = grad.copy(), grad + 100
    start = channel.pull().copy()
    np.testing.assert_array_equal(channel.push_pull(grad, 1, 0.0), start)  # nothing came back yet
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
    (channel,) = channels(1, n_shards)
    grad = np.arange(SIZE, dtype=float)
    params = channel.pull().copy()
    for step in range(3):
        params -= RATE * grad
        np.testing.assert_array_equal(channel.push_pull(grad, 1, 0.0), params, f"step {step}")
        grad += 1
    assert channel.staleness() == (0.0, 0.0)


def test_what_is_under_way_is_collected_before_anything_else_is_asked() -> None:
    channel, other = channels(2, 1)
    grad = np.ones(SIZE)
    for push_then in (channel.pull, channel.staleness, other.pull):
        channel.push_pull(grad, 1, 0.0)
        channel.beat()
        push_then()
    channel.pull()
    np.testing.assert_array_equal(other.pull(), np.full(SIZE, -RATE * 3))
