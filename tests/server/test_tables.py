"""Tables whose rows are made on the shards have the bits of vectors that hold them all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from groups import Group, at_once

from dps._runtime.loop import StepLoop
from dps.data.feed.blocks import Block, features_of
from dps.errors import TableFullError
from dps.losses import SquaredError
from dps.models import TableSpec
from dps.models.linear import LinearModel
from dps.modes import Async, Hybrid, Mode, Sync
from dps.optimizers import SGD, Adagrad, Constant, Optimizer
from dps.optimizers.update import Rates
from dps.server.group.window import ABORTED
from dps.server.placement import Placement
from dps.training.replica.channel import Channel

COLUMNS, OUTPUTS, STEPS, BATCH = 600, 3, 8, 10
SIZE = (COLUMNS + 1) * OUTPUTS
TABLE = TableSpec(COLUMNS, OUTPUTS, zeros=OUTPUTS)


def rates(table: TableSpec | None, steps: int = STEPS) -> Rates:
    rows = 0 if table is None else table.rows
    return Rates(Constant(0.1), steps, 0, 0, 1, width=OUTPUTS, table_rows=rows)


def steps(channel: Channel, rank: int, table: TableSpec | None) -> None:
    """An epoch on rows that touch some columns; other ranks touch other columns."""
    rng, columns = np.random.default_rng(rank), table.rows if table else COLUMNS
    shape = BATCH * STEPS, columns
    X = scipy.sparse.csr_array(
        scipy.sparse.random_array(shape, density=6 / columns, format="csr", random_state=rng)
    )
    if columns == COLUMNS:  # no batch touches half of them
        X.indices //= 2
    y = rng.standard_normal((BATCH * STEPS, OUTPUTS))
    model = LinearModel(columns, OUTPUTS, SquaredError())
    assert model.kernel is not None
    model.kernel.tabled = table is not None
    channel.step.begin_epoch(0)
    loop = StepLoop(model.kernel, channel.step)
    loop.begin(len(y), np.full(STEPS, 0.1))
    block = Block(0, features_of(X, "float64"), y, None, 0, len(y), None, 0).for_kernels
    assert loop.run([(block, None, 0, len(y))]) == "ran"
    assert loop.done


def held(group: Group, placement: Placement) -> tuple[Any, Any, Any]:
    """Parameters, state, and ids of all keys."""
    rows = len(group.windows[0].store.state)
    params, state = np.empty(SIZE), np.empty((rows, SIZE))
    ids = np.zeros(SIZE // OUTPUTS, np.int64)
    for shard, window in enumerate(group.windows):
        placement.put(shard, window.store.params, params)
        placement.put(shard, window.store.state, state)
        mine = np.zeros(placement.size(shard) // OUTPUTS, np.int64)
        mine[: window.store.ids.shape[1]] = window.store.ids[0]
        first = placement.cuts[shard] // OUTPUTS
        ids[first : first + len(mine)] = mine
    return params.reshape(-1, OUTPUTS), state.reshape(-1, OUTPUTS), ids


def trained(
    mode: Mode,
    table: TableSpec | None,
    n_ranks: int = 2,
    optimizer: Optimizer | None = None,
    **options: Any,
) -> Any:
    """The parameters after an epoch; a whole vector has a table's new rows."""
    with Group(
        mode, n_ranks, SIZE, table=table, keyed=rates(table),
        optimizer=optimizer or Adagrad(), **options,
    ) as group:  # fmt: skip
        for window in group.windows:
            if optimizer is None:
                window.store.state[:] = Adagrad().initial_accumulator
        ended = at_once(
            [lambda r=r, c=c: steps(c, r, table) for r, c in enumerate(group.channels)]  # type: ignore[misc]
        )
        for error in [end for end in ended if isinstance(end, Exception)]:
            raise error
        return held(group, group.placement)


def same(found: Any, wanted: Any) -> None:
    """Assert that a table has the bits of a whole vector, and no row that no one touched."""
    params, state, ids = found
    at = np.flatnonzero(ids > 0)
    columns = ids[at] - 1
    assert len(set(columns)) == len(columns)
    np.testing.assert_array_equal(params[at], wanted[0][columns])
    np.testing.assert_array_equal(state[at], wanted[1][columns])
    np.testing.assert_array_equal(params[COLUMNS:], wanted[0][COLUMNS:])
    touched = np.flatnonzero((wanted[1][:COLUMNS] != Adagrad().initial_accumulator).any(axis=1))
    np.testing.assert_array_equal(np.sort(columns), touched)
    assert 50 < len(touched) < COLUMNS // 2


@pytest.mark.parametrize(
    ("n_ranks", "n_shards", "far"),
    [(1, 1, ()), (2, 1, ()), (3, 2, ((1, 0), (2, 0), (2, 1))), (2, 3, ((0, 1), (1, 1), (1, 2)))],
)
def test_rows_that_are_made_when_touched_have_the_bits_of_a_whole_vector(
    n_ranks: int, n_shards: int, far: Any
) -> None:
    wanted = trained(Sync(), None, n_ranks)
    same(trained(Sync(), TABLE, n_ranks, n_shards=n_shards, far=far), wanted)


@pytest.mark.parametrize("far", [(), [(0, 0)]], ids=["mapped", "far"])
@pytest.mark.parametrize(
    "mode",
    [Async(), Async(max_delay=0), Async(aggregate=1), Async(compensation="delay")],
    ids=["async", "max_delay", "aggregate", "delay"],
)
def test_in_async_one_rank_has_the_bits_of_a_whole_vector(mode: Mode, far: Any) -> None:
    same(trained(mode, TABLE, 1, far=far), trained(Async(), None, 1))


def test_in_async_ranks_make_rows_at_once() -> None:
    _, _, ids = trained(Async(), TABLE, 3, n_shards=2)
    _, state, _ = trained(Sync(), None, 3)
    touched = np.flatnonzero((state[:COLUMNS] != Adagrad().initial_accumulator).any(axis=1))
    np.testing.assert_array_equal(np.sort(ids[ids > 0]) - 1, touched)


def test_an_id_without_a_row_reads_as_the_row_that_it_will_have() -> None:
    table = TableSpec(COLUMNS, OUTPUTS, zeros=1, scale=2.0)
    nowhere = np.arange(COLUMNS, dtype=np.int64)
    with Group(n_ranks=1, size=SIZE, table=table, keyed=rates(table)) as group:
        (channel,) = group.channels
        store = group.windows[0].store
        assert store.table is not None
        rows = store.table.make(nowhere)
        made = store.params.reshape(-1, OUTPUTS)[rows].copy()
        store.ids[:] = 0
        store.params[:] = 0
        channel.step.begin_epoch(0)
        channel.step.keys.begin()
        channel.step.keys.add((-1 - nowhere[::7]).tolist())
        assert channel.step.pull_touched() == "ran"
        found = channel.step.touched
        np.testing.assert_array_equal(found.reshape(-1, OUTPUTS), made[::7])
        assert (store.ids == 0).all()


def test_ids_that_are_seldom_touched_get_no_row_and_change_nothing() -> None:
    table = TableSpec(COLUMNS, OUTPUTS, zeros=OUTPUTS, min_count=3)
    params, _, ids = trained(Sync(), table)
    _, _, all_ids = trained(Sync(), TABLE)
    assert 0 < (ids > 0).sum() < (all_ids > 0).sum()
    assert np.isfinite(params).all()


@pytest.mark.parametrize("mode", [Sync(), Async()], ids=["sync", "async"])
@pytest.mark.parametrize("far", [(), [(0, 0), (1, 0)]], ids=["mapped", "far"])
def test_a_table_that_is_full_is_an_error_that_says_what_to_do(mode: Mode, far: Any) -> None:
    table = TableSpec(40, OUTPUTS, zeros=OUTPUTS)
    size = (table.rows + 1) * OUTPUTS

    def work(channel: Channel, rank: int) -> None:
        try:
            steps(channel, rank, table)
        except TableFullError:
            group.windows[0].stop(ABORTED)
            raise

    with Group(mode, 2, size, table=table, keyed=rates(table), far=far) as group:
        ended = at_once([lambda r=r, c=c: work(c, r) for r, c in enumerate(group.channels)])  # type: ignore[misc]
        (error, *_) = [end for end in ended if isinstance(end, TableFullError)]
        assert "raise max_embeddings" in str(error)


def by_id(found: Any) -> tuple[Any, Any]:
    """The rows of ids, and the parameters behind the table."""
    params, _, ids = found
    at = np.flatnonzero(ids > 0)
    return dict(zip(ids[at], map(tuple, params[at]), strict=True)), params[COLUMNS:]


@pytest.mark.parametrize("far", [(), [(0, 0)]], ids=["mapped", "far"])
def test_one_rank_has_the_bits_of_sync(far: Any) -> None:
    found, wanted = (by_id(trained(mode, TABLE, 1, far=far)) for mode in (Hybrid(), Sync()))
    assert found[0] == wanted[0]
    np.testing.assert_array_equal(found[1], wanted[1])


@pytest.mark.parametrize(
    ("n_shards", "far"), [(1, ()), (3, [(0, 1), (1, 0), (1, 2)])], ids=["mapped", "mixed"]
)
def test_updates_of_ranks_together_are_those_of_sync_where_rates_are_small(
    n_shards: int, far: Any
) -> None:
    options = {"n_shards": n_shards, "far": far}
    found, wanted = (
        by_id(trained(mode, TABLE, 2, optimizer=SGD(), **options)) for mode in (Hybrid(), Sync())
    )
    assert found[0].keys() == wanted[0].keys()
    for id, row in wanted[0].items():
        np.testing.assert_allclose(found[0][id], row, rtol=0.2, atol=0.02)
    np.testing.assert_allclose(found[1], wanted[1], rtol=0.05, atol=0.01)
