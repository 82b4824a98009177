"""Data that is not kept in memory as it is: the same model, every row once, nothing left behind."""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from configure import configure
from distributed import Client, LocalCluster, get_worker
from hypothesis import given, settings, strategies as st

import dps
from dps.data.collections.alignment import partitions_of
from dps.data.feed import cuts as sources
from dps.data.feed.prefetch import ahead
from dps.data.keep import disk, keeping
from dps.data.keep.disk import DiskFile, file_of, forget_files
from dps.data.keep.recipes import recipes_of
from dps.data.keep.streams import Stream, kept_of
from dps.data.keep.tables import table_of, table_of_targets
from dps.errors import ClusterError
from dps.preprocessing.frame_reader import keep_frame, read_frame
from dps.training.replica import cuts, replica
from dps.training.replica.channel import Channel
from dps.training.run import launch

LENGTHS = (300, 0, 70, 830, 500)
ROWS = sum(LENGTHS)
RNG = np.random.default_rng(0)
X = np.where(RNG.random((ROWS, 6)) < 0.6, RNG.normal(size=(ROWS, 6)), 0.0)
Y = np.where(X[:, 0] - X[:, 2] + RNG.logistic(size=ROWS) > 0, "late", "in time").astype(object)
WEIGHT = RNG.integers(0, 4, ROWS).astype(float)
FRAME = pd.DataFrame(
    {
        "city": RNG.choice(["JFK", "LGA", "EWR", "BOS"], ROWS),
        "day": pd.Categorical(RNG.integers(0, 7, ROWS)),
        "miles": RNG.integers(100, 3000, ROWS) / 1000,
    }
)
FRAME["late"] = np.where((FRAME["city"] == "JFK") ^ (RNG.random(ROWS) < 0.2), "late", "in time")


def parts(values: Any) -> list[Any]:
    cuts = np.concatenate([[0], np.cumsum(LENGTHS)])
    return [values[a:b] for a, b in itertools.pairwise(cuts)]


def array(values: Any) -> Any:
    return da.from_array(values, chunks=(LENGTHS, *values.shape[1:]))


def frame(values: Any) -> Any:
    return dd.from_delayed([dask.delayed(part) for part in parts(values)], meta=values[:0])


def delayed(values: Any) -> Any:
    return [dask.delayed(part) for part in parts(values)]


CONTAINERS: dict[str, Any] = {
    "array": lambda: (array(X), array(Y), array(WEIGHT)),
    "csr": lambda: (array(X).map_blocks(scipy.sparse.csr_matrix), array(Y), array(WEIGHT)),
    "coo": lambda: (delayed(scipy.sparse.coo_array(X).tocsr()), delayed(Y), delayed(WEIGHT)),
    "frame": lambda: (frame(pd.DataFrame(X)), frame(pd.Series(Y)), frame(pd.Series(WEIGHT))),
    "encoded": lambda: (
        frame(FRAME)[["city", "day", "miles"]], frame(FRAME)["late"], frame(pd.Series(WEIGHT))
    ),
}  # fmt: skip
WAYS: dict[str, dict[str, Any]] = {
    "steps": {"optimizer": "adagrad"},
    "in order": {"optimizer": "sgd", "learning_rate": 0.1, "shuffle": False},
    "validation": {"early_stopping": True},
    "in python": {"optimizer": "adam", "loss": "modified_huber"},
    "async": {"mode": dps.Async(), "n_replicas": 1},
    "allreduce": {"mode": "allreduce", "optimizer": "momentum", "learning_rate": 0.1},
    "lbfgs": {"optimizer": "lbfgs"},
}


@pytest.fixture(autouse=True)
def _small_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cuts so small that a partition has several."""
    monkeypatch.setattr(launch, "_CUT_BYTES", 1)
    monkeypatch.setattr(launch, "_FEWEST_CUT", 64)


def fitted(make: Any, client: Any, cache: str | None, **options: Any) -> dps.LinearClassifier:
    options = {"max_iter": 4, "tol": None, "batch_size": 100, "random_state": 3, **options}
    if options.get("optimizer") == "lbfgs":
        options |= {"tol": 1e-9, "batch_size": "auto", "max_iter": 100}
    configure(cache=cache)
    model = dps.LinearClassifier(client=client, **options)
    return model.fit(*make())


@pytest.fixture
def _all_in_cuts(client: Client) -> Iterator[None]:
    """Have rows in memory cut as a stream's rows are."""

    def change() -> None:  # in each process for itself: a function would travel by its name
        cuts._before = cuts.streamed, sources._MIXED
        cuts.streamed = lambda partitions: True
        sources._MIXED = sources._MIXED_AHEAD

    def restore() -> None:
        cuts.streamed, sources._MIXED = cuts._before

    change()
    client.run(change)
    yield
    restore()
    client.run(restore)


@pytest.mark.parametrize(
    ("way", "container", "clustered"),
    [*zip(WAYS, itertools.cycle(CONTAINERS), itertools.cycle([False, True]), strict=False)],
)
@pytest.mark.usefixtures("_all_in_cuts")
def test_streamed_rows_are_trained_on_as_the_same_cuts_in_memory(
    container: str, way: str, clustered: bool, client: Client
) -> None:
    make, where = CONTAINERS[container], client if clustered else None
    known, streamed = (fitted(make, where, cache, **WAYS[way]) for cache in ("memory", "disk"))
    np.testing.assert_array_equal(streamed.coef_, known.coef_)
    assert replace(streamed.plan_, shards=known.plan_.shards) == known.plan_
    for record, before in zip(streamed.history_, known.history_, strict=True):
        assert record["rows_per_replica"] == before["rows_per_replica"]
        assert record["rows"] == sum(rank.rows for rank in streamed.plan_.ranks)
    assert (streamed.classes_ == ["in time", "late"]).all()


@pytest.mark.parametrize(
    ("container", "clustered"), [("csr", False), ("frame", False), ("encoded", True)]
)
def test_rows_that_are_computed_again_lead_to_the_same_optimum(
    container: str, clustered: bool, client: Client
) -> None:
    make, where = CONTAINERS[container], client if clustered else None
    known, streamed = (fitted(make, where, cache, optimizer="lbfgs") for cache in ("memory", None))
    np.testing.assert_allclose(streamed.coef_, known.coef_, rtol=1e-5, atol=1e-7)
    steps = fitted(make, where, None)
    assert [record["rows"] for record in steps.history_] == [ROWS] * 4


@pytest.mark.parametrize("clustered", [False, True], ids=["threads", "cluster"])
def test_a_partition_is_computed_once_where_it_is_kept_and_each_epoch_where_it_is_not(
    clustered: bool, client: Client, tmp_path: Path
) -> None:
    def counted(block: Any, number: int, folder: Path) -> Any:
        with (folder / f"{number}").open("a") as file:
            file.write(".")
        return block

    def times(cache: str | None, **options: Any) -> set[int]:
        folder = tmp_path / f"{cache}{options}"
        folder.mkdir()
        data = [dask.delayed(counted)(part, n, folder) for n, part in enumerate(parts(X))]
        where = client if clustered else None
        fitted(lambda: (data, delayed(Y)), where, cache, max_iter=5, **options)
        return {len(file.read_text()) for file in folder.iterdir()}

    assert times("auto") == times("disk") == times("memory") == {1}
    again = times(None)
    # To be kept, to be looked at, and once an epoch; an empty one is never trained on.
    assert again == {2, 7}
    # Replicas of a worker share a partition at the edges of their rows alone.
    assert max(times(None, n_replicas=4)) <= 2 + 5 * 3


@pytest.mark.parametrize("clustered", [False, True], ids=["threads", "cluster"])
def asks_for_its_worker(block: Any) -> Any:
    assert get_worker().address
    return block


@pytest.mark.parametrize("processes", [True, False])
def test_tasks_that_are_run_again_know_their_worker(client: Client, processes: bool) -> None:
    def fit(client: Any) -> dps.LinearClassifier:
        rows = array(X).map_blocks(asks_for_its_worker, meta=np.empty((0, 6)))
        return fitted(lambda: (rows, array(Y)), client, None)

    if processes:
        assert fit(client).n_iter_ == 4
        with client.as_current():  # and in a task, where threads train
            assert client.submit(lambda: fit(None).n_iter_, pure=False).result() == 4
        return
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as near,
    ):
        assert fit(near).n_iter_ == 4


def test_a_replica_beats_while_it_reads_where_workers_are_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    beats: list[str] = []
    beat, cuts_of = Channel.beat, replica.cuts_of

    def beating(channel: Channel) -> None:
        beat(channel)
        beats.append(threading.current_thread().name)

    def slow(*args: Any) -> Any:
        deadline = time.monotonic() + 60
        while "dps-heartbeat" not in beats and time.monotonic() < deadline:
            threading.Event().wait(0.01)
        return cuts_of(*args)

    monkeypatch.setattr(replica, "_BEAT_EVERY", 0.01)
    monkeypatch.setattr(replica, "_MANY_ROWS", 1)
    monkeypatch.setattr(replica, "cuts_of", slow)
    monkeypatch.setattr(Channel, "beat", beating)
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as near,
    ):
        fitted(lambda: (array(X), array(Y)), near, "memory", mode=dps.Sync(access="stream"))
    assert "dps-heartbeat" in beats


@pytest.mark.parametrize("clustered", [False, True], ids=["threads", "cluster"])
def test_what_fits_nowhere_is_computed_again(
    clustered: bool, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere() -> None:
        keeping._FILLED = 0.0  # of memory
        disk._MOST_LEFT, disk._LEFT = 1 << 60, 1.0

    def restored() -> None:
        keeping._FILLED, disk._MOST_LEFT, disk._LEFT = 0.5, 4 << 30, 0.05

    nowhere()
    client.run(nowhere)
    try:
        where = client if clustered else None
        steps = fitted(CONTAINERS["encoded"], where, "auto")
        assert [record["rows"] for record in steps.history_] == [ROWS] * 4
        shared = array(X)
        shared = shared - shared.mean(axis=0)
        with pytest.raises(ClusterError, match=r"partition 0 \(.*GiB\) fits neither in memory nor"):
            fitted(lambda: (shared, array(Y)), where, "auto")
    finally:
        restored()
        client.run(restored)


def test_partitions_that_share_work_are_kept_with_a_word(client: Client) -> None:
    shared = array(X)
    shared = shared - shared.mean(axis=0)
    with pytest.warns(UserWarning, match="the partitions share work"):
        model = fitted(lambda: (shared, array(Y)), client, None)
    known = fitted(lambda: (shared, array(Y)), client, "memory")
    np.testing.assert_array_equal(model.coef_, known.coef_)


def test_partitions_that_share_work_are_computed_together_with_a_message(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    shared = array(X)
    shared = shared - shared.mean(axis=0)
    with caplog.at_level(logging.INFO, "dps"):
        fitted(lambda: (array(X), array(Y)), client, "auto")
        assert "share work" not in caplog.text
        fitted(lambda: (shared, array(Y)), client, "auto")
    assert "the partitions share work" in caplog.text
    assert "Dask computes them together, and spills what does not fit" in caplog.text


def test_partitions_in_memory_stay_there(client: Client) -> None:
    lying, labels = client.persist([array(X), array(Y)])
    assert recipes_of(partitions_of(lying, labels, None)) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = fitted(lambda: (lying, labels), client, None)
    np.testing.assert_array_equal(
        model.coef_, fitted(lambda: (lying, labels), client, "memory").coef_
    )


@pytest.mark.parametrize("cache", ["disk", None])
@pytest.mark.parametrize("optimizer", ["adagrad", "lbfgs"])
def test_a_partition_that_cannot_be_read_again_ends_the_fit_and_is_named(
    cache: str | None, optimizer: str, client: Client, tmp_path: Path
) -> None:
    def once(block: Any, number: int) -> Any:
        if number == 3:
            with (tmp_path / "read").open("a") as file:
                file.write(".")
            if len((tmp_path / "read").read_text()) > 3:
                raise FileNotFoundError("part.3.parquet")
        return block

    data = [dask.delayed(once)(part, number) for number, part in enumerate(parts(X))]
    if cache == "disk":
        fitted(lambda: (data, delayed(Y)), client, cache, optimizer=optimizer)
        return
    with pytest.raises(FileNotFoundError, match=r"part\.3\.parquet\npartition 3 could not be read"):
        fitted(lambda: (data, delayed(Y)), client, cache, optimizer=optimizer)


def open_files() -> int:
    """Files without a name that this process holds."""
    gc.collect()
    names = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # another thread has closed it meanwhile
            names.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sum("(deleted)" in name and "/dps-" in name for name in names)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="files are listed by Linux only")
def test_nothing_is_left_on_disk(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def held() -> int:
        return sum(client.run(open_files).values()) + open_files()

    seen: list[int] = []
    monkeypatch.setattr(
        "dps.estimators.fit.callbacks.showing",
        lambda *_: contextlib.nullcontext(lambda records: seen.extend([held()] * len(records))),
    )
    for where, files in ((client, 2), (None, 1)):
        fitted(CONTAINERS["array"], where, "disk", max_iter=2, verbose=1)
        assert seen == [files] * 2
        seen.clear()
        deadline = time.monotonic() + 10
        while held():
            assert time.monotonic() < deadline


def test_a_fit_that_fails_before_it_trains_leaves_nothing_written_down(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_down() -> int:  # as Dask does when memory is short
        for file in disk._files.values():
            disk._written_down[file.token] = file
        return len(disk._written_down)

    def fails(*_: Any, **__: Any) -> None:
        assert sum(client.run(write_down).values()) == 2
        raise ZeroDivisionError

    monkeypatch.setattr("dps.estimators.fit.fit.combine", fails)
    with pytest.raises(ZeroDivisionError):
        fitted(CONTAINERS["array"], client, "disk")
    assert sum(client.run(lambda: len(disk._written_down)).values()) == 0


def test_an_exchange_asks_for_memory(client: Client) -> None:
    with pytest.raises(ValueError, match="shuffle='global' exchanges rows in memory, and part"):
        fitted(CONTAINERS["array"], client, "disk", shuffle="global")


def test_moved_rows_of_a_stream_lie_in_memory(client: Client) -> None:
    configure(rebalance=True)
    models = [
        fitted(CONTAINERS["array"], client, cache, n_replicas=3, optimizer="lbfgs")
        for cache in ("memory", "disk")
    ]
    assert models[0].plan_ == models[1].plan_
    assert any(piece.moved for rank in models[0].plan_.ranks for piece in rank.pieces)
    np.testing.assert_allclose(models[0].coef_, models[1].coef_, rtol=1e-5, atol=1e-7)


# What streams are made of.

TABLES: dict[str, Any] = {
    "C": X,
    "F": np.asfortranarray(X.astype("f4")),
    "int8": (10 * X).astype(np.int8),
    "csr_matrix": scipy.sparse.csr_matrix(X),
    "csr_array": scipy.sparse.csr_array(X.astype("f4")),
    "csc": scipy.sparse.csc_array(X),
    "frame": pd.DataFrame(X, columns=list("abcdef")).astype({"b": "f4", "c": bool}),
    "named table": pd.DataFrame(X, columns=["table", *"bcdef"]),
}


def dense(values: Any) -> Any:
    return values.toarray() if hasattr(values, "toarray") else np.asarray(values)


@pytest.mark.parametrize("values", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("stored", [False, True], ids=["memory", "disk"])
@given(cut=st.tuples(st.integers(0, ROWS), st.integers(0, ROWS)))
@settings(max_examples=20)
def test_rows_of_a_table_are_rows_of_the_value(values: Any, stored: bool, cut: Any) -> None:
    start, stop = sorted(cut)
    table = table_of(values)
    assert table is not None
    if stored:
        table = table.put(DiskFile("fit", "/tmp").put)
    some = table.rows(start, stop)
    np.testing.assert_array_equal(dense(some), dense(values)[start:stop])
    assert some.shape == (stop - start, 6)
    if hasattr(values, "columns"):
        pd.testing.assert_frame_equal(some, values[start:stop].reset_index(drop=True))
    else:
        assert some.dtype == values.dtype


TARGETS: dict[str, Any] = {
    "strings": pd.Series(Y), "objects": np.array(["a", "b", 3.5, "a"] * 10, object),
    "numbers": np.arange(40), "bool": np.arange(40) % 3 == 0, "unicode": np.array(list("abcd") * 9),
    "outputs": np.arange(60.0).reshape(-1, 3), "one column": np.arange(40.0).reshape(-1, 1),
    "nullable": pd.Series([1, 2, 3] * 9, dtype="Int64"), "none": np.empty(0),
}  # fmt: skip


@pytest.mark.parametrize("y", TARGETS.values(), ids=TARGETS)
def test_targets_are_what_they_were(y: Any) -> None:
    table = table_of_targets(y).put(DiskFile("fit", "/tmp").put)
    values = np.asarray(y)
    values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    for start, stop in ((0, len(values)), (3, 7), (5, 5)):
        some = table.rows(start, stop)
        np.testing.assert_array_equal(some, values[start:stop])
        assert some.dtype == values.dtype


def test_rows_of_what_was_read_of_a_frame_encode_as_rows_of_the_frame() -> None:
    odd = FRAME.drop(columns="late").assign(
        words=[["a", "b"], ["b"], [], None, ["c"]] * (ROWS // 5), gone=None
    )
    odd.loc[5::7, ["miles", "city"]] = None
    encoder = dps.preprocessing.FrameEncoder(
        missing="indicator", interactions=[("city", "day")]
    ).fit(odd.drop(columns="gone"))
    read = keep_frame(read_frame(odd, [*odd.columns[:-1]]), hashed=False)
    table = read.table().put(DiskFile("fit", "/tmp").put)
    expected = encoder.transform(odd.drop(columns="gone"))
    for start, stop in ((0, ROWS), (17, 900), (40, 40)):
        found = encoder._layout(table.rows(start, stop))
        assert found.shape == (stop - start, expected.shape[1])
        assert (found != expected[start:stop]).nnz == 0
        assert found.nnz == expected[start:stop].nnz


def test_a_stream_needs_no_values_once_it_is_encoded() -> None:
    encoder = dps.preprocessing.FrameEncoder(interactions=[("city", "day")]).fit(FRAME)
    values = (keep_frame(read_frame(FRAME, list(FRAME.columns)), hashed=False), Y, None)
    stream = Stream(0, kept_of(*values)).then(encoder._layout)
    assert b"JFK" not in pickle.dumps(stream)
    assert (stream.read(5, 900)[0] != encoder.transform(FRAME)[5:900]).nnz == 0
    copies = pickle.loads(pickle.dumps([encoder._layout])) + pickle.loads(
        pickle.dumps([encoder._layout])
    )
    assert copies[0] is copies[1]


def test_a_file_may_be_written_and_read_by_many_threads(tmp_path: Path) -> None:
    file = file_of("shared", str(tmp_path))
    assert file_of("shared", str(tmp_path)) is file
    assert list(tmp_path.iterdir()) == []
    found = {}

    def work(number: int) -> None:
        mine = [np.full((number + 1, 3), number, np.int16) for _ in range(50)]
        kept = [file.put(array) for array in mine]
        found[number] = all((k[:] == m).all() for k, m in zip(kept, mine, strict=True))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(8), True)


def test_who_holds_a_file_may_be_written_down_by_dask(tmp_path: Path) -> None:
    array = file_of("spilled", str(tmp_path)).put(np.arange(10))
    written = pickle.dumps(array)
    del array
    gc.collect()
    np.testing.assert_array_equal(pickle.loads(written)[2:4], [2, 3])
    code = "import pickle, sys; pickle.load(sys.stdin.buffer)"
    ended = subprocess.run([sys.executable, "-c", code], input=written, capture_output=True)
    assert b"can be read by that process alone" in ended.stderr
    forget_files("spilled")
    gc.collect()
    with pytest.raises(OSError, match="by that process alone"):
        pickle.loads(written)


def test_items_are_made_ahead_and_no_more_than_wanted() -> None:
    alive = most = 0
    lock = threading.Lock()

    class Item:
        def __init__(self, number: int) -> None:
            nonlocal alive, most
            self.number = number
            with lock:
                alive += 1
                most = max(most, alive)

        def __del__(self) -> None:
            nonlocal alive
            with lock:
                alive -= 1

    numbers = []
    for item in ahead(map(Item, range(50)), lambda: None, at_once=3):
        numbers.append(item.number)
        del item
    assert numbers == list(range(50))
    assert alive == 0 < most <= 3


def test_an_error_ahead_comes_in_its_turn() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ZeroDivisionError

    made = ahead(items(), lambda: None)
    assert next(made) == 1
    with pytest.raises(ZeroDivisionError):
        next(made)


def test_whoever_waits_may_give_up() -> None:
    going = threading.Event()

    def items() -> Iterator[int]:
        yield 1
        going.wait()
        yield 2

    def waiting() -> None:
        going.set()
        raise KeyError("stopped")

    made = ahead(items(), waiting)
    assert next(made) == 1
    with pytest.raises(KeyError, match="stopped"):
        next(made)


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_a_thread_ends_with_the_one_who_used_it(taken: int) -> None:
    made = ahead(itertools.count(), lambda: None)
    assert list(itertools.islice(made, taken)) == list(range(taken))
    made.close()
    assert not [t for t in threading.enumerate() if t.name == "dps-prefetch"]
