"""Means and broadcasts by the kernel and by operations on links are the same to all ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dps._runtime.activity import BYTES, PUSHES
from dps._runtime.meeting import Meeting
from dps.errors import NonFiniteError, StalledError, StoppedError
from dps.modes import Channel, ChannelSpec, Sync
from dps.modes.meetings import ByKernel, ByLinks
from dps.modes.synchronous import SynchronousChannel
from dps.optimizers import SGD, Constant
from dps.optimizers.update import Update
from dps.server.links import MappedLink
from dps.server.placement import place
from dps.server.window import ABORTED, Field, Window, WindowSpec, Word

SIZE = 5000  # some blocks of a sum, and no multiple of one


def channels(
    n_ranks: int,
    n_shards: int = 1,
    dtype: str = "float64",
    timeout: float = 30.0,
    alive: Callable[[], None] | None = None,
) -> tuple[list[Window], list[Channel]]:
    placement = place("round_robin", [SIZE], n_shards)
    windows = []
    for shard in range(len(placement)):
        size = sum(stop - start for start, stop in placement.ranges[shard])
        spec = WindowSpec("f00d", shard, n_ranks, size, dtype, 0, True, 16, "")
        update = Update(SGD(), 0.0, 0.0, ((0, size, False),))
        windows.append(Window.create(spec, update=update, shared=False))
    whole = Update(SGD(), 0.0, 0.0, ((0, SIZE, False),))
    made = [
        Sync().channel(
            ChannelSpec(rank, n_ranks, placement, SIZE, dtype, Constant(0.1), whole),
            [MappedLink(window, rank, 1, timeout, alive) for window in windows],
        )
        for rank in range(n_ranks)
    ]
    return windows, made


def by_links(channel: Channel) -> None:
    """Have a rank do as one does that cannot map a window."""
    spec, links = channel._spec, channel._links
    total = np.empty(spec.size, spec.dtype)
    channel._ways_to_meet = lambda: ByLinks(  # type: ignore[method-assign]
        spec.rank, spec.placement, links, total
    )


def at_once(functions: list[Callable[[], Any]]) -> list[Any]:
    """What each returns or raises, in a thread of its own."""
    ends: list[Any] = [None] * len(functions)

    def run(number: int) -> None:
        try:
            ends[number] = functions[number]()
        except Exception as error:
            ends[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends


def met(channel: Channel, rounds: int = 40) -> list[Any]:
    """All that a rank sees of means and broadcasts that follow each other.

    Ranks take turns in looking late, when the others have gone on.
    """
    rank, seen = channel._spec.rank, []

    def look(*arrays: Any) -> None:
        if number % 3 == rank:
            np.sort(rng.random(100_000))
        seen.append(tuple(array.tobytes() for array in arrays))

    for number in range(rounds):
        rng = np.random.default_rng((rank, number))
        values = rng.normal(size=SIZE).astype(channel._spec.dtype)
        look(*channel.mean(values, rank + 1, [rng.normal(), float(rank)]))
        if number % 3:  # means may follow each other, too
            look(*channel.broadcast(values, [rng.normal(), 7.0]))
    return seen


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n_shards", [1, 3])
def test_all_see_the_same_whoever_has_a_kernel(n_shards: int, dtype: str) -> None:
    found = []
    for without in ((), (0,), (1, 2), (0, 1, 2)):
        windows, ranks = channels(3, n_shards, dtype)
        for rank in without:
            by_links(ranks[rank])
        seen = at_once([lambda channel=channel: met(channel) for channel in ranks])  # type: ignore[misc]
        kinds = [type(channel._meetings) for channel in ranks]
        assert kinds == [ByLinks if rank in without else ByKernel for rank in range(3)]
        assert seen[0] == seen[1] == seen[2]
        counted = [window.activity[:, [PUSHES, BYTES]].tolist() for window in windows]
        versions = [window.words.load(Word.VERSION) for window in windows]
        assert versions == [0] * len(windows)
        found.append((seen[0], counted, [channel.steps for channel in ranks]))
    assert all(others == found[0] for others in found)


def test_one_rank_meets_itself() -> None:
    _, (kernel,) = channels(1)
    _, (links,) = channels(1)
    by_links(links)
    assert met(kernel) == met(links)


@pytest.mark.parametrize("n_shards", [1, 3])
@pytest.mark.parametrize("way", [lambda channel: None, by_links], ids=["kernel", "links"])
def test_what_is_not_finite_is_named(way: Callable[[Channel], None], n_shards: int) -> None:
    bad = np.zeros(SIZE)
    bad[-1] = np.nan  # on one shard alone
    _, ranks = channels(2, n_shards, timeout=0.5)
    for channel in ranks:
        way(channel)
    first, second = at_once(
        [lambda: ranks[0].mean(np.zeros(SIZE), 1), lambda: ranks[1].mean(bad, 1)]
    )
    assert isinstance(first, StalledError)
    assert first.rank == 1
    assert isinstance(second, NonFiniteError)
    assert (second.rank, second.step) == (1, 1)
    assert "the gradient is NaN" in str(second)

    _, ranks = channels(2, n_shards, timeout=0.5)
    for channel in ranks:
        way(channel)
    first, second = at_once(
        [lambda: ranks[0].broadcast(bad, []), lambda: ranks[1].broadcast(bad, [])]
    )
    assert isinstance(first, NonFiniteError)
    assert (first.rank, first.step) == (0, 1)
    assert "an update overflowed" in str(first)
    assert isinstance(second, StalledError)


@pytest.mark.parametrize("way", [lambda channel: None, by_links], ids=["kernel", "links"])
def test_stopping_ends_a_meeting(way: Callable[[Channel], None]) -> None:
    def stop() -> None:  # while a rank waits
        window.stop(ABORTED)

    (window,), ranks = channels(2, timeout=2.0, alive=stop)
    for channel in ranks:
        way(channel)
    at_once([lambda channel=channel: channel.mean(np.zeros(SIZE), 1) for channel in ranks])  # type: ignore[misc]
    (ended,) = at_once([lambda: ranks[0].mean(np.zeros(SIZE), 1)])
    assert isinstance(ended, StoppedError)
    assert window.words.rank_load(0, Field.ARRIVED) == 2
    # Nor is there another: rank 0 has come to this one, but not to what is next.
    for meet in (lambda: ranks[1].mean(np.zeros(SIZE), 1), lambda: ranks[1].broadcast(None, [])):
        with pytest.raises(StoppedError):
            meet()


def test_a_kernel_takes_what_fits() -> None:
    _, (channel,) = channels(1)
    channel.mean(np.zeros(SIZE), 1)
    for values in (np.zeros(SIZE + 1), np.zeros(SIZE, np.float32), np.zeros(2 * SIZE)[::2]):
        with pytest.raises(ValueError, match=f"a vector is {SIZE} contiguous, aligned float64"):
            channel.mean(values, 1)
    with pytest.raises(ValueError, match="8 notes at most, got 9"):
        channel.mean(np.zeros(SIZE), 1, range(9))
    assert channel.mean(np.ones(SIZE), 1, [3.0])[1] == [3.0]  # and nothing has become of them


def test_meetings_written_in_python_are_not_passed_over() -> None:
    class Loud(SynchronousChannel):
        def mean(self, *args: Any) -> Any:
            return super().mean(*args)

    class Own(Loud):
        def native_meetings(self) -> Any:
            return super().native_meetings()

    _, (channel,) = channels(1)
    assert isinstance(channel.native_meetings(), Meeting)
    for kind in (Loud, Own):
        channel = kind(channel._spec, channel._links)
        assert (channel.native_meetings() is None) == (kind is Loud)


def test_channel_goes_on_from_where_its_kernel_has_met() -> None:
    _, (channel,) = channels(1)
    kernel = channel.native_meetings()
    assert kernel is not None
    kernel.mean(1, np.ones(SIZE), 1, [])
    kernel.broadcast(2, np.ones(SIZE), [])
    channel.met(kernel)
    assert channel.mean(np.full(SIZE, 6.0), 3)[0][0] == 2
    assert channel.steps == 3
