"""Snapshots, in memory or on disk; of a table only rows that there are, in pieces."""

from __future__ import annotations

import errno
from typing import Any

import numpy as np
import pytest
from groups import MODES
from sklearn.base import clone

import dps
from dps.errors import TableFullError
from dps.models import TableSpec
from dps.optimizers import SGD
from dps.optimizers.update import Update
from dps.server.group.session import Local, Stores
from dps.server.placement import Placement
from dps.server.store import snapshots
from dps.server.store.snapshots import Snapshot
from dps.server.store.store import Arena, Store, StoreSpec
from dps.training.run import launch, supervise as watch

WIDTH, ROWS, BEHIND, VERSION = 3, 200, 6, 5


def store(spilled: bool, rows: int = ROWS, folder: Any = None) -> Store:
    table = TableSpec(rows, WIDTH, zeros=1, scale=1.0, expire=2)
    arena = Arena(table, rows, 40, 7, (0.5,))
    spec = StoreSpec(
        "f00d", 0, rows * WIDTH + BEHIND, "float64", 1, key_width=WIDTH, arena=arena,
        spilled=spilled, n_snapshots=3,
    )  # fmt: skip
    behind = np.arange(2.0 * BEHIND).reshape(2, -1)
    return Store.create(spec, behind, VERSION, folder=folder)


def rows(n: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(n)
    ids = np.sort(rng.choice(1 << 40, n, replace=False))
    return np.stack([ids, rng.integers(0, VERSION, n)]), rng.standard_normal((2, n * WIDTH))


def parts(made: Store, epochs: int) -> list[Snapshot]:
    found = [made.snapshots.kept(epochs)]
    while found[-1].rest:
        found.append(made.snapshots.kept(epochs, found[-1].rest))
    return found


def held(made: Store, epochs: int) -> dict[int, tuple[Any, ...]]:
    """Each row that there is, by its id."""
    found = {}
    for part in parts(made, epochs):
        values = part.split(WIDTH)[0].reshape(2, -1, WIDTH)
        for at, (id, seen) in enumerate(part.ids.T):
            found[int(id)] = (int(seen), *values[:, at].ravel())
    return found


@pytest.mark.parametrize("spilled", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("piece", [1, 500, 1 << 20])
def test_rows_come_back_from_any_pieces(
    spilled: bool, piece: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(snapshots, "_PIECE_BYTES", piece)
    made, (ids, values) = store(spilled, folder=str(tmp_path)), rows(100)
    for some, part in Snapshot(values, VERSION, ids).pieces(WIDTH):
        made.put_rows(some, part)
    made.begin()
    wanted = {
        int(ids[0, at]): (int(ids[1, at]), *values.reshape(2, -1, WIDTH)[:, at].ravel())
        for at in range(100)
    }
    assert held(made, 0) == wanted
    first = parts(made, 0)[0]
    np.testing.assert_array_equal(first.split(WIDTH)[1], np.arange(2.0 * BEHIND).reshape(2, -1))
    assert first.version == VERSION
    assert not [*tmp_path.iterdir()]  # a file without a name
    made.params[:] += 1
    made.keep(1, made.params, made.state, VERSION + 1)
    assert held(made, 0) == wanted != held(made, 1)
    with pytest.raises(LookupError, match="no snapshot after 2"):
        made.snapshots.kept(2)


def test_rows_that_have_gone_are_in_no_later_snapshot() -> None:
    made, (ids, values) = store(True), rows(60)
    made.put_rows(ids, values)
    made.begin()
    assert made.table is not None
    made.table.expire(0, ROWS, VERSION - 1)
    for epochs in (1, 2, 3, 4):  # over older ones
        made.keep(epochs, made.params, made.state, VERSION)
    assert set(held(made, 4)) == {int(id) for id in ids[0, ids[1] >= VERSION - 1]}


def test_rows_are_admitted_that_were_before_and_are_up_to_date() -> None:
    table = TableSpec(ROWS, WIDTH, min_count=9)
    spec = StoreSpec(
        "f00d", 0, ROWS * WIDTH, "float32", 1, key_width=WIDTH,
        arena=Arena(table, ROWS, ROWS, 7, (0.5,)),
    )  # fmt: skip
    made = Store.create(spec, np.zeros((2, 0), "f4"), VERSION)
    made.update = Update(SGD(), 0.0, 0.0, ((0, ROWS * WIDTH, True),), None)
    ids, values = rows(50)
    made.put_rows(ids, values.astype("f4"))
    assert made.table is not None
    at = made.table.find(ids[0])
    assert (at >= 0).all()
    assert (made.since[at] == VERSION).all()


def test_more_rows_than_there_is_room_for_are_refused() -> None:
    with pytest.raises(TableFullError, match="room for 40: raise max_embeddings"):
        store(False, rows=40).put_rows(*rows(60))


@pytest.mark.parametrize("mode", MODES)
def test_a_fit_whose_snapshots_lie_on_disk_has_the_same_bits(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 20))
    y = (X[:, 0] + rng.normal(size=300) > 0).astype(int)
    model = dps.MLPClassifier(
        (8,), mode=mode, n_replicas=1 if mode == "async" else 2, max_iter=4, random_state=0
    )
    found = []
    for most in (launch._SPILLED, 0):
        monkeypatch.setattr(launch, "_SPILLED", most)
        monkeypatch.setattr(snapshots, "_PIECE_BYTES", 1000)  # several of each vector
        monkeypatch.setattr(watch, "_HEAVY", most)
        made = clone(model).fit(X, y)
        found.append([made.predict_proba(X), made.partial_fit(X, y).predict_proba(X)])
    np.testing.assert_array_equal(*found)


def test_snapshots_without_a_table_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "_PIECE_BYTES", 160)  # ten elements of two rows
    values = np.arange(2 * 34.0).reshape(2, 34)
    placement = Placement((0, 14, 34))
    made = [
        Store.create(
            StoreSpec("f00d", shard, placement.size(shard), "float64", 1),
            placement.take(shard, values), 7,
        )
        for shard in range(2)
    ]  # fmt: skip

    class Shard:
        def __init__(self, store: Store) -> None:
            self.snapshot = store.snapshots.kept

    stores = Stores(tuple(Local(Shard(each)) for each in made), placement, 1.0)
    found = stores.snapshot(0)
    np.testing.assert_array_equal(found.values, values)
    assert (found.version, found.rest) == (7, 0)
    assert made[0].snapshots.kept(0, 10).values.shape == (2, 4)


def test_where_the_disk_is_full_snapshots_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("dps.server.store.store.DiskBuffer", full)
    spec = StoreSpec("f00d", 0, 10, "float64", 1, spilled=True)
    store = Store.create(spec, [1.0, 2.0])
    assert not store.snapshots.spilled
    np.testing.assert_array_equal(store.snapshots.kept(0).values, [[1.0] * 10, [2.0] * 10])


@pytest.mark.parametrize("n_snapshots", [2, 3])
@pytest.mark.parametrize("shared", [True, False])
def test_a_crash_while_a_snapshot_is_written_leaves_the_last_epoch_and_the_last_within_it(
    n_snapshots: int, shared: bool
) -> None:
    rng = np.random.default_rng(n_snapshots)
    spec = StoreSpec("f00d", 0, 4, "float64", n_snapshots=n_snapshots, within=1)
    made = Store.create(spec, np.zeros((1, 4)), shared=shared)
    assert made.has_room_within()
    epochs = steps = best = 0

    def values(epochs: int, steps: int) -> Any:
        return made.snapshots.kept(epochs, 0, steps).values.tolist()

    for value in range(1, 200):
        ends = rng.random() < 0.3
        spare = best if n_snapshots == 3 else None
        before = epochs, steps
        wanted = {(epochs, 0), before} | (set() if spare is None else {(best, 0)})
        epochs, steps = (epochs + 1, 0) if ends else (epochs, steps + 1)
        there = [(word, made.words.load(word)) for word in snapshots._WORDS]
        made.keep(epochs, np.full(4, float(value)), np.empty((0, 4)), value, spare, steps)
        written = [word for word, was in there if made.words.load(word) != was]
        assert len(written) == 1
        now = made.words.load(written[0])
        made.words.store(written[0], 0)  # as it is where the writer dies
        for when in wanted - ({before} if ends and before[1] else set()):
            assert values(*when)
        made.words.store(written[0], now)
        assert values(epochs, steps) == [[float(value)] * 4]
        if ends and rng.random() < 0.5:
            best = epochs
    made.close()


def test_there_is_no_snapshot_within_an_epoch_where_there_is_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(fd: int, nbytes: int, start: int = 0) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    made = Store.create(StoreSpec("f00d", 0, 4, "float64", within=1), np.zeros((1, 4)), shared=True)
    monkeypatch.setattr("dps.server.memory.files._allocate", full)
    assert not made.has_room_within()
    made.close()
