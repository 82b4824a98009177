"""Placement: every element of the flat vector lies on one shard, and shards weigh alike."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
from hypothesis import given, strategies as st

from dps.server.placement import Placement

KEYS, SHARDS, UNITS = (
    st.integers(0, 1500) | st.integers(0, 9),
    st.integers(1, 12),
    st.integers(1, 5),
)


@given(keys=KEYS, n_shards=SHARDS, unit=UNITS)
def test_shards_are_ranges_in_order_and_equal_to_one_key(
    keys: int, n_shards: int, unit: int
) -> None:
    placement = Placement.of(keys * unit, n_shards, unit)
    assert len(placement) == max(1, min(n_shards, keys))
    ranges = [placement.range(shard) for shard in range(len(placement))]
    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
    assert ranges[-1][1] == keys * unit
    assert all(bound % unit == 0 for each in ranges for bound in each)
    loads = [placement.size(shard) for shard in range(len(placement))]
    assert loads == [stop - start for start, stop in ranges]
    assert max(loads) - min(loads) <= unit
    assert min(loads) > 0 or keys == 0


@given(total=KEYS, n_shards=SHARDS, rows=st.integers(1, 3), data=st.data())
def test_what_shards_take_they_put_back_in_its_place(
    total: int, n_shards: int, rows: int, data: Any
) -> None:
    placement = Placement.of(total, n_shards)
    shape = data.draw(st.sampled_from([(total,), (rows, total)]))
    flat = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    back = np.full_like(flat, np.nan)
    for shard in range(len(placement)):
        part = placement.take(shard, flat)
        assert part.shape == (*shape[:-1], placement.size(shard))
        assert np.shares_memory(part, flat) == (total > 0)
        half = data.draw(st.integers(0, part.shape[-1]))
        placement.put(shard, part[..., half:], back, half)
        placement.put(shard, part[..., :half], back)
    np.testing.assert_array_equal(back, flat)


@given(total=KEYS, n_shards=SHARDS, data=st.data())
def test_what_is_behind_some_elements_lies_where_it_lay(
    total: int, n_shards: int, data: Any
) -> None:
    placement, first = Placement.of(total, n_shards), data.draw(st.integers(0, total))
    behind, flat = placement.behind(first), np.arange(total)
    assert len(behind) == len(placement)
    for shard in range(len(placement)):
        mine = placement.take(shard, flat)
        assert placement.below(shard, first) == (mine < first).sum()
        np.testing.assert_array_equal(behind.take(shard, flat[first:]), mine[mine >= first])


@given(sizes=st.lists(st.integers(0, 9), max_size=7), n_shards=SHARDS, data=st.data())
def test_a_shard_knows_which_of_its_elements_are_penalised(
    sizes: list[int], n_shards: int, data: Any
) -> None:
    marks = data.draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    penalised = np.repeat(np.array(marks, bool), sizes)

    def runs(start: int, stop: int) -> list[tuple[int, int, bool]]:
        cuts = [at for at in range(start + 1, stop) if penalised[at] != penalised[at - 1]]
        edges = [start, *cuts, stop] if start < stop else []
        return [(a, b, bool(penalised[a])) for a, b in itertools.pairwise(edges)]

    placement = Placement.of(sum(sizes), n_shards)
    for shard in range(len(placement)):
        local = placement.segments(shard, runs)
        assert [a for a, _, _ in local] == [0, *(b for _, b, _ in local)][: len(local)]
        found = [np.full(stop - start, mark) for start, stop, mark in local]
        mine = placement.take(shard, penalised)
        np.testing.assert_array_equal(np.concatenate([*found, []]), mine)


def test_the_same_sizes_are_placed_alike_and_the_placement_travels() -> None:
    placement = Placement.of(34, 3, 2)
    assert Placement.of(34, 3, 2) == placement == pickle.loads(pickle.dumps(placement))
