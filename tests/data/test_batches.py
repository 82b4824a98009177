"""Mini-batches of a rank: each row once an epoch, in its share of steps, in a seeded order."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from groups import Group
from hypothesis import given, strategies as st

from dps.data.feed.batches import Batches
from dps.data.feed.blocks import Block, features_of
from dps.data.feed.cuts import TOGETHER, LoadedCut, Source, StreamedCut
from dps.data.feed.held_out import HeldOut
from dps.losses import SquaredError
from dps.models.base import CSRRows
from dps.models.linear import LinearModel
from dps.modes import Sync
from dps.optimizers import Constant
from dps.training.plan.plan import Located, make_plan
from dps.training.replica.steps import ResumeAt, Steps

SEEDS, SOME = st.integers(0, 2**31 - 2), st.integers(1, 40)
#: Forms in which a partition's X may come.
FORMS: dict[str, Any] = {
    "dense": lambda X: X,
    "fortran": np.asfortranarray,
    "unaligned": lambda X: np.frombuffer(b"." + X.tobytes(), X.dtype, offset=1).reshape(X.shape),
    "int64": lambda X: X.astype(np.int64),
    "strided": lambda X: np.repeat(X, 2, axis=0)[::2],
    "frame": lambda X: pd.DataFrame(X).astype({0: "float32"}),
    "csr": scipy.sparse.csr_array,
    "csc": scipy.sparse.csc_matrix,
}


def block(number: int, rows: int, cut: Any = None, held: Any = None, form: str = "dense") -> Block:
    """A block whose rows say where they are from: in X, y and weight."""
    ids = 100.0 * (number + 1) + np.arange(rows)
    X = FORMS[form](np.outer(ids, [1.0, 0.0, -1.0]))
    return Block(number, features_of(X, float), ids, ids + 0.5, *(cut or (0, rows)), held)


@st.composite
def lists_of_blocks(draw: Any) -> tuple[list[Block], list[float]]:
    """Blocks of distinct partitions, and the training rows in them by their definition."""
    blocks, training = [], []
    for number in draw(st.permutations(range(draw(st.integers(0, 20))))):
        rows = draw(st.integers(0, 9))
        start, stop = sorted((draw(st.integers(0, rows)), draw(st.integers(0, rows))))
        held = draw(st.none() | st.lists(st.booleans(), min_size=rows, max_size=rows))
        mask = None if held is None else np.array(held, bool)
        form = st.sampled_from(["dense", "int64", "frame", "csr"])
        blocks.append(block(number, rows, (start, stop), mask, draw(form)))
        kept = [row for row in range(start, stop) if not (held and held[row])]
        training += [100.0 * (number + 1) + row for row in kept]
    return blocks, training


def dense(X: Any) -> Any:
    """The rows that a model would read."""
    if isinstance(X, CSRRows):
        values = np.zeros((len(X.indptr) - 1, X.n_features))
        for row, (start, stop) in enumerate(pairwise(X.indptr)):
            values[row, X.indices[start:stop]] = X.data[start:stop]
    else:
        values = X.values
    return values if X.order is None else values[X.order]


def source(blocks: Any, seed: int | None, rank: int = 0) -> Source:
    return Source([LoadedCut(block) for block in blocks], seed, rank, lambda: None)


class Recorder:
    """A model that keeps what it is given."""

    layout = LinearModel(1, 1, SquaredError(), fit_intercept=False).layout
    dtype = np.dtype("float64")
    kernel = None

    def __init__(self, channel: Any, steps: int, look: Any) -> None:
        self._channel, self._look = channel, look
        self.taken: list[list[Any]] = [[] for _ in range(steps)]

    def loss_gradient(self, params: Any, X: Any, y: Any, weight: Any, out: Any) -> float:
        self.taken[self._channel.steps].append(self._look(X, y, weight))
        return 0.0


def batches(
    rows: Source, steps: int, epoch: int, look: Any, first: int = 0, every: int = 0
) -> list[list[Any]]:
    """Results of a look at the parts of each batch from the first on, with pauses."""
    with Group(n_ranks=1, size=1) as group:
        (channel,) = group.channels
        model: Any = Recorder(channel, steps, look)
        made = Steps(model, channel, Batches(rows, steps), Constant(0.1), None)
        begun = ResumeAt(first, 0.0, rows.rows * first // max(steps, 1), 0)
        until = first + every if every else None
        ended = made.epoch(epoch, until, lambda step, *_: step + every, begun)
        assert ended[1] == rows.rows * bool(steps)
        return model.taken


def seen(
    blocks: Any, seed: int | None, steps: int, epoch: int = 0, rank: int = 0, **some: int
) -> Any:
    """The rows of each step, after a look at what comes with them."""

    def look(X: Any, y: Any, weight: Any) -> list[float]:
        assert len(X) == len(y) > 0
        np.testing.assert_array_equal(dense(X), np.outer(y, [1, 0, -1]))
        np.testing.assert_array_equal(weight, y + 0.5)
        return list(map(float, y))

    rows = source(blocks, seed, rank)
    return [flat(parts) for parts in batches(rows, steps, epoch, look, **some)]


def flat(steps: Any) -> list[float]:
    return [row for step in steps for row in step]


@given(made=lists_of_blocks(), seed=st.none() | SEEDS, steps=SOME)
def test_each_row_is_seen_once_an_epoch_in_equal_shares(made: Any, seed: Any, steps: int) -> None:
    (blocks, rows), n = made, len(made[1])
    assert source(blocks, seed).rows == n
    for epoch in (0, 7):
        taken = seen(blocks, seed, steps, epoch)
        assert sorted(flat(taken)) == sorted(rows)
        assert seed is not None or flat(taken) == rows
        shares = [n * (t + 1) // steps - n * t // steps for t in range(steps)]
        assert [len(step) for step in taken] == shares


@given(
    made=lists_of_blocks(), seed=st.none() | SEEDS, steps=SOME, first=SOME, every=st.integers(1, 3)
)
def test_an_epoch_that_goes_on_has_the_batches_of_one_that_nobody_disturbed(
    made: Any, seed: Any, steps: int, first: int, every: int
) -> None:
    first = min(first, steps - 1)
    whole = seen(made[0], seed, steps)
    assert seen(made[0], seed, steps, every=every) == whole
    rest = seen(made[0], seed, steps, first=first, every=every)
    assert rest == whole[first:] + [[]] * first


def test_a_batch_crosses_partitions_without_a_copy() -> None:
    blocks = [block(0, 4), block(1, 0), block(2, 1), block(3, 5)]
    first, second = batches(source(blocks, None), 2, 0, lambda X, y, weight: y)
    assert [list(y) for y in first] == [[100, 101, 102, 103], [300]]
    assert [list(y) for y in second] == [[400, 401, 402, 403, 404]]
    assert np.shares_memory(first[0], blocks[0].y)


@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.parametrize("blocks", [[], [block(0, 0)], [block(0, 3, held=np.ones(3, bool))]])
def test_a_rank_without_rows_takes_empty_steps(blocks: list[Block], seed: int | None) -> None:
    assert seen(blocks, seed, 3) == [[], [], []]
    assert seen(blocks, seed, 0) == []


@given(made=lists_of_blocks(), seed=SEEDS, steps=SOME)
def test_the_order_is_a_function_of_the_seed(made: Any, seed: int, steps: int) -> None:
    first, second = (seen(made[0], seed, steps, epoch) for epoch in (0, 1))
    assert [seen(tuple(made[0]), seed, steps, epoch) for epoch in (1, 0)] == [second, first]
    for b in made[0]:  # and within a block, of nothing else
        mine = [[r for r in flat(e) if r in b.y] for e in (first, seen(made[0][::-1], seed, 1))]
        assert mine[0] == mine[1]


@pytest.mark.parametrize("blocks", [[block(0, 40)], [block(b, 1) for b in range(40)]])
def test_another_seed_epoch_or_rank_gives_another_order(blocks: list[Block]) -> None:
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (2**31 - 2, 0, 0)]
    orders = [flat(seen(blocks, seed, 1, epoch, rank)) for seed, epoch, rank in keys]
    assert len({tuple(order) for order in orders}) == len(keys)
    assert sorted(orders[0]) not in orders


def test_every_row_is_as_likely_to_come_first() -> None:
    rows = source([block(b, 2) for b in range(3)], 0)
    first = Counter(batches(rows, 6, e, lambda X, y, weight: y[0])[0][0] for e in range(600))
    assert len(first) == 6
    assert all(abs(times - 100) < 46 for times in first.values())  # five standard deviations


@given(sizes=st.lists(st.integers(1, 60), min_size=2, max_size=8), steps=st.integers(1, 9))
def test_a_batch_is_mixed_from_up_to_eight_blocks(sizes: list[int], steps: int) -> None:
    left = dict(enumerate(sizes))
    for step in seen([block(number, rows) for number, rows in left.items()], 0, steps):
        total, taken = sum(left.values()), Counter(int(row // 100) - 1 for row in step)
        for number in left:  # in proportion, but for the rows that rounding leaves over
            assert abs(taken[number] - left[number] * len(step) / total) <= 1
            left[number] -= taken[number]


@pytest.mark.parametrize(("size", "most"), [(1, 3 * TOGETHER), (TOGETHER, 3), (5 * TOGETHER, 3)])
def test_few_large_cuts_of_a_stream_are_in_memory_at_once(size: int, most: int) -> None:
    opened: list[int] = []

    def opening(number: int) -> Block:
        opened.append(number)
        return block(number, 2)

    cuts = [StreamedCut(n, 0, 2, 0, size, partial(opening, n)) for n in range(5 * TOGETHER)]
    blocks = Source(cuts, 0, 0, lambda: None).blocks()
    for number, each in enumerate(blocks, 1):
        assert each.partition == number - 1
        assert len(opened) < number + most
    assert len(opened) == 5 * TOGETHER


@given(rows=st.integers(0, 50), cuts=st.lists(st.integers(0, 50), max_size=4), seed=SEEDS)
def test_a_row_is_for_training_or_for_validation(rows: int, cuts: list[int], seed: int) -> None:
    held = HeldOut(seed, 0.3).rows(7, rows)
    np.testing.assert_array_equal(held, HeldOut(seed, 0.3).rows(7, rows))
    edges = [0, *sorted(min(cut, rows) for cut in cuts), rows]
    pieces = [block(7, rows, cut, held) for cut in pairwise(edges)]
    validation = [row for piece in pieces for row in piece.validation_rows()]
    training = [row for piece in pieces for row in piece.training_rows()]
    assert validation == [row for row in range(rows) if held[row]]
    assert training == [row for row in range(rows) if not held[row]]


def test_rows_for_validation_are_the_fraction_asked_for_and_differ_by_seed_and_partition() -> None:
    keys = [(0, 0), (1, 0), (0, 1)]
    a, b, c = (HeldOut(seed, 0.2).rows(number, 10_000) for seed, number in keys)
    assert [held.sum() for held in (a, b, c)] == [2000] * 3
    assert all(abs(both.sum() - 400) < 90 for both in (a & b, a & c, b & c))  # five deviations
    places = np.bincount(np.flatnonzero(a) % 5)  # of a run, each as likely as the others
    assert all(abs(places - 400) < 90)


@given(
    fraction=st.sampled_from([1e-15, 1e-3, 0.1, 1 / 3, 0.5, 0.7, 0.999]), rows=st.integers(0, 300),
    cuts=st.tuples(st.integers(0, 300), st.integers(0, 300)), listed=st.booleans(), seed=SEEDS,
)  # fmt: skip
def test_rows_for_validation_are_counted_without_being_drawn(
    fraction: float, rows: int, cuts: tuple[int, int], listed: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    some = np.flatnonzero(rng.random(rows) < 0.2)
    known = {3: (some, rng.random(len(some)) < 0.5)} if listed else {}
    held = HeldOut(seed, fraction, known)
    kept = held.rows(3, rows)
    start, stop = sorted(min(cut, rows) for cut in cuts)
    assert held.count(3, start, stop) == kept[start:stop].sum()
    np.testing.assert_array_equal(held.rows(3, stop), kept[:stop])  # whatever follows
    assert HeldOut(seed, 0.25).count(0, 0, 1 << 38) == 1 << 36  # at once


@given(sizes=st.lists(st.integers(0, 30), max_size=6).filter(any), n=SOME, batch=SOME)
def test_all_ranks_see_each_row_once_and_share_every_batch(sizes: Any, n: int, batch: int) -> None:
    data = Located(sizes, "abaabb"[: len(sizes)], {"a": 1, "b": 1}, elements=0)
    plan = make_plan(
        Sync(), data, count=lambda piece: piece.rows,
        batch_size=batch, n_replicas=n, rebalance=False,
    )  # fmt: skip
    taken = []
    for number, rank in enumerate(plan.ranks):
        blocks = [block(p.partition, sizes[p.partition], (p.start, p.stop)) for p in rank.pieces]
        taken.append(seen(blocks, 5, rank.steps, rank=number))
    everything = [100 * (p + 1) + row for p, rows in enumerate(sizes) for row in range(rows)]
    assert sorted(flat(flat(taken))) == everything
    for batch in zip(*taken, strict=True):
        assert abs(len(flat(batch)) - sum(sizes) / len(taken[0])) < len(taken)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("form", FORMS)
def test_rows_come_in_the_dtype_of_the_model_in_every_form(form: str, dtype: type) -> None:
    X = np.random.default_rng(0).integers(-9, 9, (12, 3)).astype(float)
    X.flags.writeable = False
    source, order = FORMS[form](X), np.array([7, 3, 3, 11, 0])
    features = features_of(source, dtype)
    for start, stop, at, index in ((2, 9, None, slice(2, 9)), (1, 4, order, [3, 3, 11])):
        rows = features.rows(start, stop, at)
        values = rows.data if isinstance(rows, CSRRows) else rows.values
        assert values.dtype == dtype
        np.testing.assert_array_equal(dense(rows), X[index])
        if form in ("dense", "csr") and dtype is np.float64:  # a kernel reads it as it lies
            assert np.shares_memory(values, source.data if form == "csr" else source)
