"""Fits on a cluster that others use: their Actors, their tasks, and servers that stand still."""

from __future__ import annotations

import ast
import os
import select
import signal
import time
from pathlib import Path
from typing import Any, ClassVar

import dask
import dask.array as da
import numpy as np
import psutil
import pytest
from conditions import until
from configure import configure
from distributed import (
    Client,
    LocalCluster,
    Nanny,
    Scheduler,
    SpecCluster,
    futures_of,
    get_worker,
    wait,
)
from losing import assert_exact, classifier, kill, rows, slow_loss

import dps
from dps.cluster.dask.fit import DaskCluster
from dps.cluster.dask.partitions import PlacedData
from dps.errors import ClusterError, StalledError, WindowError
from dps.training.replica.steps import Steps
from dps.training.run.supervise import Watcher

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture
def client(mortal: Client) -> Client:
    """A client of three workers."""
    return mortal


def chunks() -> tuple[Any, Any]:
    X, y = rows()
    return da.from_array(X, chunks=(500, 10)), da.from_array(y, chunks=500)


class Theirs:
    """An Actor of another user, which keeps the thread that all Actors of a worker share."""

    def work(self, ended: Path) -> None:
        until(ended.exists, "the test ends it")


def test_actors_of_others_that_work_for_long_hold_up_nothing(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client.as_current():
        actors = [
            client.submit(Theirs, actor=True, workers=[worker], pure=False).result()
            for worker in client.nthreads()
        ]
    fetch, at_work = Watcher._fetch, []

    def fetched(self: Watcher) -> bool:
        ends = fetch(self)
        if self.progress.closed >= 2 and not at_work:
            at_work.extend(actor.work(tmp_path / "ended") for actor in actors)
        return ends

    monkeypatch.setattr(Watcher, "_fetch", fetched)
    configure(timeout=2.0)
    model = classifier(client, max_iter=20).fit(*chunks())
    assert_exact(model)
    assert model.fit_report_.losses == ()
    server = dps.ParameterServer({"w": np.zeros(3)}, n_shards=3, timeout=2.0, client=client)
    with server:
        server.add("w", 1.0)
        assert server.versions == {"w": 1}
        assert len(server.stats()["shards"]) == 3
    assert not any(each.done() for each in at_work)
    (tmp_path / "ended").touch()


@pytest.mark.parametrize("ends", [True, False])
def test_a_replica_that_waits_for_a_thread_is_waited_for_as_a_task_is(
    ends: bool, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks of others come first: several short ones, or one that does not end."""
    launch, theirs = DaskCluster.launch, []

    def endless(told: Path) -> None:
        until(told.exists, "the test ends it")

    work, argument = (time.sleep, 1.0) if ends else (endless, tmp_path / "ended")

    def launched(self: DaskCluster, *args: Any) -> Any:
        worker = min(client.nthreads())
        for number in range(8 if ends else 1):
            theirs.append(
                client.submit(
                    work, argument, workers=[worker], pure=False, key=f"of-others-{number}"
                )
            )
        until(lambda: client.processing()[worker], "the first one is at work")
        return launch(self, *args)

    monkeypatch.setattr(DaskCluster, "launch", launched)
    configure(timeout=4.0)
    model = classifier(client)
    if ends:
        assert_exact(model.fit(*chunks()))
        assert model.fit_report_.losses == ()
    else:
        busy = r"all threads of a worker are at other tasks \(of-others-0\)"
        with pytest.raises(ClusterError, match=busy):
            model.fit(*chunks())
        (tmp_path / "ended").touch()
        client.gather(theirs)


def test_replicas_that_wait_for_each_other_are_an_error_that_says_what_each_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by a mode whose ranks disagree on how many steps there are."""
    epoch = Steps.epoch

    def longer(self: Steps, *args: Any) -> Any:
        result = epoch(self, *args)
        return epoch(self, *args) if self._seed[-1] else result

    monkeypatch.setattr(Steps, "epoch", longer)
    configure(timeout=2.0)
    X, y = rows()
    model = dps.LinearClassifier(optimizer="sgd", n_replicas=2, max_iter=3, shuffle=False)
    with pytest.raises(StalledError, match=r"wait for each other.*0: ARRIVED=\d+ .*1: ARRIVED"):
        model.fit(X, y)


def test_a_frozen_server_does_not_blind_the_fit_that_publishes_into_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica's worker dies while the server's stands still: the fit goes on at once."""
    first, second, third = sorted(client.nthreads())
    pid = client.run(os.getpid, workers=[third])[third]
    fetch, struck = Watcher._fetch, []

    def fetched(self: Watcher) -> bool:
        ends = fetch(self)
        if self.progress.closed >= 3 and not struck:
            struck.append(time.monotonic())
            os.kill(pid, signal.SIGSTOP)
            until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "it stands still")
        elif self.progress.closed >= 4 and len(struck) == 1:
            struck.append(time.monotonic())
            kill(client, second)
        return ends

    monkeypatch.setattr(Watcher, "_fetch", fetched)
    X, y = (client.persist(each, workers=[first, second]) for each in chunks())
    with dps.ParameterServer(
        name="stands", client=client, workers=[third], mirror=False, timeout=4.0
    ):
        try:
            configure(n_shards=1)
            model = classifier(
                client, server="stands", n_replicas=2, max_iter=30, loss=slow_loss(0.003)
            )
            with pytest.warns(UserWarning, match="no longer written into the server 'stands'"):
                model.fit(X, y)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert_exact(model)
        (loss,) = model.fit_report_.losses
        assert second in loss.what
        assert loss.seconds < 5.0


@pytest.mark.parametrize("mode", ["sync", "async", "allreduce"])
def test_a_window_that_cannot_be_mapped_makes_the_fit_go_on_by_streams(
    mode: str, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """As where a container has 64 MB of shared memory, and that is full."""

    def full() -> None:
        from importlib import import_module

        from dps.errors import WindowError

        def refused(card: Any) -> None:
            raise WindowError("shared memory has no room")

        connect = import_module("dps.transport.connect")
        connect.whole, connect.map_window = connect.map_window, refused  # type: ignore[attr-defined]

    def emptied() -> None:
        from importlib import import_module

        connect = import_module("dps.transport.connect")
        connect.map_window = connect.whole  # type: ignore[attr-defined]

    client.run(full)
    model = classifier(client, mode=mode, max_iter=3, loss=slow_loss(0.0)).fit(*chunks())
    assert_exact(model)
    assert "shared memory has no room: the fit goes on by streams" in caplog.text
    with pytest.raises(WindowError, match="has no room"):
        classifier(client, mode=dps.Sync(access="mapped"), max_iter=3).fit(*chunks())
    client.run(emptied)


def test_a_fit_under_an_annotation_runs_where_the_resource_is() -> None:
    workers = {
        number: {"cls": Nanny, "options": {"nthreads": 1, "resources": resources}}
        for number, resources in enumerate(({"big": 1}, {}))
    }
    scheduler = {"cls": Scheduler, "options": {"port": 0, "dashboard_address": ":0"}}
    with (
        SpecCluster(workers, scheduler) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.wait_for_workers(2)
        known = client.scheduler_info(n_workers=-1)["workers"]
        (big,) = (worker for worker, each in known.items() if each["resources"])
        configure(timeout=10.0)
        with dask.annotate(resources={"big": 1}):
            model = classifier(client, max_iter=2, loss=slow_loss(0.0)).fit(*chunks())
        assert list(model.plan_.workers) == [big]
        (small,) = known.keys() - {big}
        data = tuple(client.persist(each, workers=[small]) for each in chunks())
        with client.as_current():
            wait(data)
        with dask.annotate(resources={"big": 1}):
            model = classifier(client, max_iter=2, loss=slow_loss(0.0)).fit(*data)
        assert list(model.plan_.workers) == [big]
        with (
            dask.annotate(resources={"huge": 1}),
            pytest.raises(ClusterError, match=r"no worker has the resources \{'huge': 1\}"),
        ):
            classifier(client).fit(*chunks())


@pytest.mark.parametrize("kind", ["numpy", "dask", "persisted", "copied"])
def test_a_fit_under_an_annotation_runs_on_the_workers_it_names(client: Client, kind: str) -> None:
    first, second, third = sorted(client.nthreads())
    data = rows() if kind == "numpy" else chunks()
    if kind in ("persisted", "copied"):  # elsewhere, and in the second case also there
        data = tuple(client.persist(each, workers=[first]) for each in data)
        with client.as_current():
            wait(data)
    if kind == "copied":
        client.replicate(futures_of(data), workers=[first, second])
    options = {"max_iter": 2, "loss": slow_loss(0.0)}
    with dask.annotate(workers=second):
        model = classifier(client, **options).fit(*data)
        with dps.ParameterServer({"w": np.zeros(3)}, client=client) as server:
            assert [shard["worker"] for shard in server.stats()["shards"]] == [second]
    assert {*model.plan_.workers, *model.plan_.shards} == {second}
    with dask.annotate(workers=[first, third], allow_other_workers=True):  # not binding
        classifier(client, **options).fit(*data)
    configure(timeout=10.0)
    with (
        dask.annotate(workers=["tcp://127.0.0.1:1"]),
        pytest.raises(ClusterError, match=r"no worker is one of workers=\['tcp://127.0.0.1:1'\]"),
    ):
        classifier(client, **options).fit(*data)


def test_a_copy_that_dask_drops_where_an_annotation_wants_the_fit_is_made_again(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Dask's active memory manager does every two seconds."""
    first, second, _ = sorted(client.nthreads())
    data = tuple(client.persist(each, workers=[first]) for each in chunks())
    with client.as_current():
        wait(data)
    client.amm.stop()  # which might drop a copy before
    client.replicate(futures_of(data), workers=[first, second])
    keys = {future.key for future in futures_of(data)}
    compute, dropped = PlacedData._compute, []

    def drop(dask_scheduler: Any) -> None:
        dask_scheduler.request_remove_replicas(second, list(keys), stimulus_id="test")

    def computed(self: PlacedData, *args: Any) -> None:
        compute(self, *args)
        if not dropped:
            dropped.append(True)
            client.run_on_scheduler(drop)
            held = client.has_what
            until(lambda: not keys & {*held([second])[second]}, "the copies are dropped")

    monkeypatch.setattr(PlacedData, "_compute", computed)
    try:
        with dask.annotate(workers=second):
            model = classifier(client, max_iter=2, loss=slow_loss(0.0)).fit(*data)
    finally:
        client.amm.start()
    assert dropped
    assert {*model.plan_.workers, *model.plan_.shards} == {second}


class Prioritized(dps.losses.LogLoss):
    """A loss that writes down the priorities of the tasks on its worker."""

    path: ClassVar[Path]

    def evaluate(self, *args: Any) -> Any:
        worker = get_worker()
        seen = [each.priority[0] for each in worker.state.tasks.values() if each.priority]
        self.path.joinpath(str(os.getpid())).write_text(str(seen))  # of one process and thread
        return super().evaluate(*args)


def test_tasks_of_a_fit_have_the_priority_of_the_annotation(client: Client, tmp_path: Path) -> None:
    class Here(Prioritized):
        path = tmp_path

    def left(dask_worker: Any) -> int:
        return len(dask_worker.state.tasks)

    until(lambda: not any(client.run(left).values()), "workers have let go of other tests' data")
    with dask.annotate(priority=7):
        classifier(client, max_iter=2, loss=Here()).fit(*chunks())
    seen = [ast.literal_eval(each.read_text()) for each in tmp_path.iterdir()]
    assert len(seen) > 1
    assert {priority for each in seen for priority in each} == {-7}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["numpy", "dask"])
def test_a_forked_child_beside_an_active_client_trains_in_place(kind: str) -> None:
    """Its parent's client is the default one there too, and no one reads its answers."""
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        data: Any = rows() if kind == "numpy" else chunks()
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            try:
                model = classifier(None, max_iter=2, loss=slow_loss(0.0)).fit(*data)
                said = f"{model.n_iter_} {model.plan_.workers[0]}"
                try:
                    classifier(client).fit(*data)
                except ClusterError as error:
                    said += f" {error}"
            except BaseException as error:
                said = repr(error)
            os.write(writing, said.encode())
            os._exit(0)
        os.close(writing)
        ended = select.select([reading], [], [], 60)[0]
        said = os.read(reading, 10_000).decode() if ended else "nothing"
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert said.startswith("2 this process")
        assert "made before this process was forked" in said
        assert client.submit(int).result(timeout=30) == 0
