"""The state after a killed worker: rows, parameters, bits; and when a fit cannot continue."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import threading
import time
import warnings
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd
import pytest
from cases import slow
from conditions import until
from configure import configure
from distributed import Client, LocalCluster, futures_of, get_worker, wait
from distributed.core import Status
from endless import EndlessFit, fits_end_when_told
from groups import MODES
from local import local_client
from losing import ROWS, assert_exact, classifier, kill, killing_after, rows, slow_loss

import dps
from dps.cluster.dask.fit import DaskCluster
from dps.cluster.dask.loading import send
from dps.cluster.dask.partitions import PlacedData
from dps.cluster.dask.scheduler.standing import unpin
from dps.cluster.dask.work import FitWork
from dps.data.survey.products import products_of
from dps.data.survey.rows import inspect_kept
from dps.errors import ClusterError, VersionError, WorkerLostError
from dps.losses import LogLoss
from dps.preprocessing import FrameEncoder
from dps.training.epochs.records import EpochRecord
from dps.training.epochs.stopping import StoppingRule
from dps.training.plan.plan import Located, Plan, make_plan
from dps.training.position import EpochProgress
from dps.training.run.joining import Joining
from dps.training.run.supervise import Watcher

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture
def client(mortal: Client) -> Client:
    return mortal


def training(client: Client) -> int:
    """Number of fits with closed epochs."""
    events = [event for _, event in client.get_events("dps")]
    return len({event["fit"] for event in events if event["kind"] == "epochs"})


@pytest.mark.parametrize("mode", ["sync", *slow("allreduce")])
def test_a_spare_worker_takes_the_place_of_a_dead_one_with_the_same_bits(
    mode: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = rows()
    data = da.from_array(X, chunks=(500, 10)), da.from_array(y, chunks=500)
    options: dict[str, Any] = {"mode": mode, "n_replicas": 2}  # on the first two workers
    undisturbed = classifier(client, **options).fit(*data)
    second = undisturbed.plan_.ranks[1].worker
    losses = killing_after(monkeypatch, 2, lambda: kill(client, second))
    model = classifier(client, **options).fit(*data)
    assert len(losses) == 1
    assert_exact(model)
    assert [r["loss"] for r in model.history_] == [r["loss"] for r in undisturbed.history_]
    np.testing.assert_array_equal(model.coef_, undisturbed.coef_)
    assert second in str(model.fit_report_)


@pytest.mark.parametrize(
    ("mode", "copied"),
    [
        (dps.AllReduce(snapshot_every=0), False),
        (dps.Sync(snapshot_every=0.01, access="stream"), True),
        *slow((dps.Sync(snapshot_every=0), False)),
    ],
)
def test_the_same_ranks_go_on_within_an_epoch_with_the_same_bits(
    mode: Any, copied: bool, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = rows()
    data = da.from_array(X, chunks=(500, 10)), da.from_array(y, chunks=500)
    options: dict[str, Any] = {"n_replicas": 2, "max_iter": 3, "batch_size": 100}
    options |= {"early_stopping": True, "n_iter_no_change": 9, "validation_fraction": 0.2}
    undisturbed = classifier(client, **options).fit(*data)
    second = undisturbed.plan_.ranks[1].worker
    if copied:  # the client's copy is what counts where a shard's memory is gone
        monkeypatch.setattr("dps.training.run.supervise._COPY_EVERY", 0.0)
        monkeypatch.setattr("dps.training.run.supervise._COPY_SHARE", 0)
    losses = killing_after(monkeypatch, 1, lambda: kill(client, second), steps=10)
    options["loss"] = slow_loss(0.015)  # the worker is to die before the epoch ends
    model = classifier(client, mode=mode, **options).fit(*data)
    assert len(losses) == 1
    assert [r["epoch"] for r in model.history_] == [1, 2, 3]
    for name in ("rows", "rows_per_replica", "loss", "validation_loss"):
        assert [r[name] for r in model.history_] == [r[name] for r in undisturbed.history_]
    np.testing.assert_array_equal(model.coef_, undisturbed.coef_)
    assert re.search(r"epoch 2 went on with step \d\d", str(model.fit_report_))


def test_other_ranks_begin_an_epoch_again(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = rows()
    data = da.from_array(X, chunks=(500, 10)), da.from_array(y, chunks=500)
    losses = killing_after(monkeypatch, 1, lambda: kill(client, min(client.nthreads())), steps=10)
    monkeypatch.setattr(
        EpochProgress, "fits", lambda self, plan: False
    )  # as where no worker is spare
    options: dict[str, Any] = {"max_iter": 3, "batch_size": 100}
    options["loss"] = slow_loss(0.015)  # the worker is to die before the epoch ends
    model = classifier(client, mode=dps.Sync(snapshot_every=0), **options).fit(*data)
    assert len(losses) == 1
    assert_exact(model)
    assert "epoch 2 was begun again" in str(model.fit_report_)


def test_scattered_rows_are_named_when_they_are_lost_or_left_out_if_so_wished(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = rows()
    parts = np.array_split(np.arange(ROWS), 6)

    def scattered() -> tuple[list[Any], list[Any]]:
        workers = sorted(client.nthreads())
        made = [
            client.scatter([X[part], y[part]], workers=[workers[number % 3]], hash=False)
            for number, part in enumerate(parts)
        ]
        return [pair[0] for pair in made], [pair[1] for pair in made]

    def second() -> None:
        kill(client, sorted(client.nthreads())[1])

    with monkeypatch.context() as patch:
        killing_after(patch, 2, second)
        model = classifier(client)
        with pytest.raises(WorkerLostError, match=r"partitions 1, 4 lay in .* dps\.on_data_loss="):
            model.fit(*scattered())
    assert model.n_iter_ == len(model.history_) >= 2  # of the epochs that were closed
    assert model.score(X, y) > 0.6
    model.partial_fit(X, y)
    client.wait_for_workers(3, timeout=60)
    losses = killing_after(monkeypatch, 2, second)
    configure(on_data_loss="drop")
    model = classifier(client).fit(*scattered())
    left = ROWS - len(parts[1]) - len(parts[4])
    assert losses[0].dropped == ROWS - left
    assert {record["rows"] for record in model.history_} == {ROWS, left}
    assert model.history_[-1]["rows"] == left


def test_partitions_are_named_whose_targets_are_lost_before_training(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, workers = rows(), sorted(client.nthreads())
    parts = np.array_split(np.arange(ROWS), 6)
    X, y = (
        [
            client.scatter(array[part], workers=[workers[(number + first) % 3]], hash=False)
            for number, part in enumerate(parts)
        ]
        for first, array in enumerate(values)
    )
    bring = PlacedData._bring

    def kills(self: PlacedData) -> None:
        bring(self)
        if workers:
            kill(client, victim := workers.pop())
            workers.clear()
            until(lambda: victim not in client.nthreads(), "Dask knows")

    monkeypatch.setattr(PlacedData, "_bring", kills)
    # X of 2 and 5, and y of 1 and 4.
    with pytest.raises(WorkerLostError, match="partitions 1, 2, 4, 5 lay in the memory"):
        classifier(client).fit(X, y)


def test_a_fit_ends_that_has_lost_all_its_rows(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = min(client.nthreads())
    X, y = ([client.scatter(values, workers=[victim], hash=False)] for values in rows())
    losses = killing_after(monkeypatch, 2, lambda: kill(client, victim))
    configure(on_data_loss="drop")
    model = classifier(client)
    with pytest.raises(WorkerLostError, match="all remaining rows"):
        model.fit(X, y)
    assert not losses
    with pytest.raises(ClusterError, match="persisted or scattered") as lost:
        classifier(client).fit(X, y)
    assert "partition 0 of X" in lost.value.__notes__[0]


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["auto", "disk", None])
def test_encoded_rows_are_made_again(
    cache: str | None, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = rows()
    frame = pd.DataFrame(X[:, :4], columns=list("abcd"))
    frame["kind"] = np.where(X[:, 4] > 0, "plus", "minus")
    data = dd.from_pandas(frame, npartitions=6), dd.from_pandas(pd.Series(y), npartitions=6)
    configure(cache=cache)
    undisturbed = classifier(client).fit(*data)
    losses = killing_after(monkeypatch, 2, lambda: kill(client, max(client.nthreads())))
    model = classifier(client).fit(*data)
    assert len(losses) == 1
    assert_exact(model)
    np.testing.assert_allclose(model.coef_, undisturbed.coef_, atol=0.05)


def test_the_only_worker_may_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=":0") as made,
        Client(made, set_as_default=False) as client,
    ):
        losses = killing_after(monkeypatch, 2, lambda: kill(client, min(client.nthreads())))
        model = classifier(client).fit(*rows())
        assert_exact(model)
        assert [loss.redone for loss in losses] == [0]  # its memory was shared


def test_a_result_outlives_the_worker_of_its_shard(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = Watcher._result

    def killing(self: Watcher, error: BaseException | None) -> Any:
        kill(client, worker := self._plan.shards[0])
        until(lambda: worker not in client.nthreads(), "Dask knows")
        return result(self, error)

    monkeypatch.setattr(Watcher, "_result", killing)
    model = classifier(client).fit(*rows())
    assert_exact(model)
    assert not model.fit_report_.losses  # it is read in the memory that is left


def unused_ports(n: int) -> int:
    """The first of `n` ports in a row that no system gives to connections."""
    for first in range(20_000 + os.getpid() % 1000 * 10, 32_000, n):
        with ExitStack() as stack, suppress(OSError):
            for port in range(first, first + n):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise AssertionError("all ports are in use")


@pytest.mark.parametrize(("persisted", "n_workers"), [(False, 1), (True, 2)])
def test_a_worker_that_comes_back_at_its_address_is_another_one(
    persisted: bool, n_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its nanny starts it again at the same port, as where there is a firewall."""
    port = unused_ports(n_workers)
    ports = port if n_workers == 1 else f"{port}:{port + n_workers - 1}"
    with (
        LocalCluster(
            n_workers=n_workers, threads_per_worker=1, dashboard_address=":0", worker_port=ports
        ) as made,
        Client(made, set_as_default=False) as client,
    ):

        def id_of(worker: str) -> Any:
            def look(dask_scheduler: Any) -> Any:
                return getattr(dask_scheduler.workers.get(worker), "server_id", None)

            return client.run_on_scheduler(look)

        before = set(client.nthreads())
        victims = iter([min(before), max(before)])

        def strike() -> None:
            victim = next(victims)
            number = id_of(victim)
            kill(client, victim)
            until(lambda: id_of(victim) not in (None, number), "it is there again")

        losses = killing_after(monkeypatch, 2, strike)
        data: Any = rows()
        if persisted:
            data = client.persist([da.from_array(a, chunks=(500, *a.shape[1:])) for a in data])
        model = classifier(client).fit(*data)
        assert_exact(model)
        assert len(losses) == 1
        assert set(client.nthreads()) == before
        assert {rank.worker for rank in model.plan_.ranks} <= before


def test_a_model_that_kills_its_workers_ends_the_fit(client: Client) -> None:
    def deadly() -> LogLoss:
        @dataclass(frozen=True)
        class Deadly(LogLoss):
            def evaluate(self, y: Any, raw: Any, weight: Any, out: Any) -> float:
                os.kill(os.getpid(), signal.SIGKILL)
                return 0.0

        return Deadly()

    with pytest.raises(WorkerLostError, match="4 losses in a row without progress"):
        classifier(client, n_replicas=1).set_params(loss=deadly()).fit(*rows())


@pytest.mark.parametrize(
    "options", [{"optimizer": "lbfgs", "batch_size": "auto"}, {"early_stopping": True}]
)
def test_a_worker_lost_at_the_very_end_costs_nothing(
    options: dict[str, Any], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = rows()
    undisturbed = classifier(client, **options).fit(X, y)
    watch = Watcher._watch
    struck: list[bool] = []

    def watched(self: Watcher) -> None:
        watch(self)
        if not struck:
            struck.append(True)
            shard = self._session.shards[0].endpoint.address  # type: ignore[attr-defined]
            kill(client, shard)
            until(lambda: shard not in client.nthreads(), "Dask knows")

    monkeypatch.setattr(Watcher, "_watch", watched)
    model = classifier(client, **options).fit(X, y)
    assert struck
    np.testing.assert_array_equal(model.coef_, undisturbed.coef_)
    assert len(model.history_) == len(undisturbed.history_)


def test_the_clients_copy_counts_where_nothing_else_is_left(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(self: Any, session: Any) -> Any:
        raise dps.errors.ServerLostError("the host is gone")

    monkeypatch.setattr("dps.training.run.supervise._COPY_EVERY", 0.0)
    monkeypatch.setattr("dps.training.run.supervise._COPY_SHARE", 0)
    monkeypatch.setattr("dps.cluster.dask.fit.DaskCluster.read_after_death", gone)
    losses = killing_after(monkeypatch, 4, lambda: kill(client, min(client.nthreads())))
    model = classifier(client, max_iter=60).fit(*rows())
    assert_exact(model)
    assert losses[0].epoch - losses[0].redone > 1  # not from the beginning


def test_a_second_shard_that_dies_as_the_first_is_read_is_not_waited_for(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    configure(n_shards=2)
    read, killed = DaskCluster.read_after_death, []

    def killing(self: DaskCluster, session: Any) -> Any:
        found = read(self, session)
        for handle in found[0].shards:
            if (worker := getattr(handle.endpoint, "address", None)) and not killed:
                killed.append(worker)
                kill(client, worker)
                until(lambda: worker not in client.nthreads(), "Dask knows")
        return found

    monkeypatch.setattr(DaskCluster, "read_after_death", killing)
    killing_after(monkeypatch, 2, lambda: kill(client, min(client.nthreads())))
    assert_exact(classifier(client, max_iter=60).fit(*rows()))
    assert killed
    assert "another shard's worker has died" in caplog.text


def test_a_fit_by_a_table_goes_on(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({name: rng.integers(0, 300, ROWS) for name in "uv"}).astype("category")
    y = pd.Series((frame["u"].cat.codes + frame["v"].cat.codes) % 2)
    losses = killing_after(monkeypatch, 2, lambda: kill(client, min(client.nthreads())))
    model = dps.FMClassifier(
        max_embeddings=4096, max_iter=150, tol=None, client=client, random_state=0, mode="async",
        alpha=1 / ROWS,
    ).fit(dd.from_pandas(frame, npartitions=6), dd.from_pandas(y, npartitions=6))  # fmt: skip
    assert_exact(model, model.plan_.rows)
    assert len(losses) == 1


@pytest.mark.parametrize("phase", ["computed", "inspected"])
def test_what_a_worker_held_is_loaded_again_where_it_dies_before_training(
    phase: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = rows()
    victim = min(client.nthreads())

    def dies(*args: Any, **options: Any) -> Any:
        if get_worker().address == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        return args[0] if phase == "computed" else inspect_kept(*args, **options)

    X, y = da.from_array(X, chunks=(500, 10)), da.from_array(y, chunks=500)
    if phase == "computed":
        X = X.map_blocks(dies, meta=np.empty((0, 0)))
    else:
        monkeypatch.setattr("dps.estimators.fit.fit.inspect_kept", dies)
    model = classifier(client, max_iter=2).fit(X, y)
    assert_exact(model)
    (loss,) = model.fit_report_.losses
    assert loss.loading
    assert f"{victim}" in str(model.fit_report_)


def test_a_worker_that_dies_as_products_are_summed_costs_no_bit(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, _ = rows()
    y = X @ np.arange(10.0) + np.random.default_rng(1).normal(size=len(X))
    given = da.from_array(X, chunks=(500, 10)), da.from_array(y, chunks=500)
    alone = dps.LinearRegressor(client=client).fit(*given)
    victim = min(client.nthreads())

    def dies(*args: Any, **options: Any) -> Any:
        if get_worker().address == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        return products_of(*args, **options)

    monkeypatch.setattr("dps.estimators.auto.least_squares.products_of", dies)
    model = dps.LinearRegressor(client=client).fit(*given)
    assert model.coef_.tobytes() == alone.coef_.tobytes()
    assert model.history_[-1]["rows"] == len(X)
    (loss,) = model.fit_report_.losses
    assert loss.loading
    assert victim in str(model.fit_report_)


def test_persisted_rows_that_are_lost_as_a_fit_begins_are_made_again(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(block: Any) -> Any:
        time.sleep(0.3)
        return block

    X, y = (
        client.persist(da.from_array(each, chunks=(500, *each.shape[1:])).map_blocks(slowly))
        for each in rows()
    )
    until(lambda: all(f.done() for f in futures_of([X, y])), "they are computed")
    awaited, struck = PlacedData._await_partitions, []

    def lost_first(self: PlacedData, numbers: Any) -> None:
        if not struck:
            futures = [part.X for part in self._partitions]
            for victim in sorted(client.nthreads())[:2]:
                struck.append(victim)
                kill(client, victim)
            until(lambda: "lost" in [future.status for future in futures], "Dask says so")
        awaited(self, numbers)

    monkeypatch.setattr(PlacedData, "_await_partitions", lost_first)
    model = classifier(client, max_iter=2).fit(X, y)
    assert_exact(model)


def test_persisted_rows_do_not_wait_for_the_workers_that_stayed_in_an_earlier_fit() -> None:
    def pin(dask_scheduler: Any, keys: Any, worker: str) -> None:
        """As a fit leaves tasks that has gone on without a frozen worker."""
        for key in keys:
            task = dask_scheduler.tasks[key]
            task.worker_restrictions, task.loose_restrictions = {worker}, True

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as made,
        Client(made) as client,
    ):
        X, y = (
            client.persist(da.from_array(each, chunks=(500, *each.shape[1:]))) for each in rows()
        )
        wait([X, y])
        there = sorted(client.nthreads())
        keys = [future.key for future in futures_of([X, y])]
        client.run_on_scheduler(pin, keys=keys, worker=there[0])
        for worker in there:
            kill(client, worker)
        until(lambda: not set(there) & set(client.nthreads()), "both are gone")
        configure(timeout=10.0)
        model = classifier(client, max_iter=2).fit(X, y)
        assert_exact(model)


def test_rows_do_not_wait_for_a_worker_that_is_gone_and_that_a_task_was_pinned_to(
    client: Client,
) -> None:
    X, y = rows()
    there = min(client.nthreads())
    drawn = client.submit(rows, workers=[there], pure=False)
    until(drawn.done, "it is there")
    kill(client, there)
    until(lambda: drawn.status != "finished", "it is gone")
    parts = [dask.delayed(lambda pair, at=at: pair[at])(drawn) for at in (0, 1)]
    data = (
        da.from_delayed(part, of.shape, of.dtype) for part, of in zip(parts, (X, y), strict=False)
    )
    configure(timeout=5.0)
    model = classifier(client, max_iter=2)
    assert_exact(model.fit(*(each.rechunk((500, *each.shape[1:])) for each in data)))


def test_rows_are_sent_to_another_worker_where_one_dies_before_they_come(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[str] = []

    def kills(made: Client, part: Any, worker: str, *args: Any) -> Any:
        if not killed:
            killed.append(worker)
            kill(client, worker)
            until(lambda: worker not in client.nthreads(), "Dask knows")
        return send(made, part, worker, *args)

    monkeypatch.setattr("dps.cluster.dask.partitions.send", kills)
    model = classifier(client, max_iter=2).fit(*rows())
    assert_exact(model)
    assert killed[0] in model.fit_report_.losses[0].what


@pytest.mark.parametrize("phase", ["training", *slow("loading")])
def test_a_worker_that_is_retired_is_left_out(
    phase: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = rows()
    client.cluster.scale(len(client.cluster.worker_spec) + 1)
    until(lambda: len(client.nthreads()) == 4, "another worker has come")
    victim = min(client.nthreads())
    victims, leaving = [victim], []

    def retire() -> None:
        if phase == "loading":
            until(lambda: client.processing().get(victim), "a chunk is computed")
        client.retire_workers(victims)

    def begin_to_retire() -> None:
        shards = client.run(lambda dask_worker: len(dask_worker.state.actors))
        victims[0] = min(worker for worker, n in shards.items() if not n)
        leaving.append(threading.Thread(target=retire, daemon=True))
        leaving[0].start()

    def begun(x: Any) -> Any:
        while get_worker().address == victim and get_worker().status == Status.running:
            time.sleep(0.01)
        return x

    X, y = da.from_array(X, chunks=(500, 10)), da.from_array(y, chunks=500)
    if phase == "loading":
        X = X.map_blocks(begun, meta=np.empty((0, 0)))
        begin_to_retire()
    else:
        killing_after(monkeypatch, 1, begin_to_retire)
    configure(cache="disk", timeout=20, n_shards=1)
    model = classifier(client, batch_size=250, max_iter=15).fit(X, y)
    assert_exact(model)
    leaving[0].join(20)
    assert victims[0] not in client.nthreads()
    (loss,) = model.fit_report_.losses
    assert loss.loading == (phase == "loading")
    assert victims[0] in loss.what


@pytest.mark.parametrize("mode", ["sync", *slow("async", "auto")])
def test_workers_that_join_take_part(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dps.training.run.joining._LOOK_EVERY", 0.0)
    monkeypatch.setattr("dps.training.run.joining._MIN_SAVED_SECONDS", 0.001)
    with local_client(1) as client:
        killing_after(monkeypatch, 2, lambda: client.cluster.scale(3))
        model = classifier(client, mode=mode, max_iter=40, n_replicas=3)
        model.fit(*rows())
        assert_exact(model)
        assert set(model.plan_.workers) == set(client.nthreads())
        assert not model.fit_report_.losses


def test_a_worker_that_joins_with_another_dps_does_not_end_the_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dps.training.run.joining._LOOK_EVERY", 0.0)
    asked: list[bool] = []

    def other(*args: Any) -> Any:
        asked.append(True)
        raise VersionError("a worker has dps 0.0.0")

    with local_client(1) as client:

        def join() -> None:
            monkeypatch.setattr("dps.cluster.dask.work.present", other)
            client.cluster.scale(2)

        killing_after(monkeypatch, 1, join)
        fits_end_when_told(monkeypatch)
        fit = EndlessFit(classifier(client), *rows())
        fit.start()
        until(lambda: asked, "the worker is looked at")
        fit.end(losses=0)


def test_a_worker_that_thaws_takes_part_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dps.training.run.joining._LOOK_EVERY", 0.0)
    monkeypatch.setattr("dps.training.run.joining._MIN_SAVED_SECONDS", 0.001)
    with local_client(2) as client:
        pids = client.run(os.getpid)
        frozen = max(pids)
        losses = killing_after(monkeypatch, 2, lambda: os.kill(pids[frozen], signal.SIGSTOP))

        def thaw() -> None:
            until(lambda: losses, "the fit goes on without it")
            os.kill(pids[frozen], signal.SIGCONT)

        thawing = threading.Thread(target=thaw)
        thawing.start()
        configure(timeout=2)
        model = classifier(client, max_iter=100, n_replicas=2)
        data = client.persist([da.from_array(each, chunks=ROWS // 4) for each in rows()])
        model.fit(*data)
        thawing.join()
        assert_exact(model)
        assert [frozen in loss.what for loss in model.fit_report_.losses] == [True]
        assert sorted(model.plan_.workers) == sorted(pids)
        keys = [future.key for future in futures_of(data)]
        assert client.run_on_scheduler(pins, keys=keys) == [None] * len(keys)


def pins(dask_scheduler: Any, keys: list[Any]) -> list[Any]:
    return [dask_scheduler.tasks[key].worker_restrictions or None for key in keys]


@pytest.mark.slow
def test_an_adaptive_cluster_is_asked_for_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """For as many as a long fit could use, and for none once it has ended."""
    monkeypatch.setattr("dps.training.run.joining._LOOK_EVERY", 0.0)
    fits_end_when_told(monkeypatch)
    with local_client(0) as client:
        client.cluster.adapt(minimum=0, maximum=2, interval="200ms", wait_count=10)
        fit = EndlessFit(classifier(client, n_replicas=2), *rows())
        fit.start()
        until(lambda: len(client.nthreads()) == 2, "it has another worker")

        def begins() -> list[Any]:
            """The workers of each generation."""
            started = [e for _, e in client.get_events("dps") if e["kind"] == "started"]
            return [{replica["worker"] for replica in event["replicas"]} for event in started]

        until(lambda: len(begins()[-1]) == 2, "the fit takes it in")
        fit.end(losses=0)
        until(lambda: not client.nthreads(), "the cluster shrinks")


@dataclass
class Growing:
    """A cluster whose second worker joins later."""

    now: tuple[str, ...] = ("a",)
    room: int = 0
    wished: int = 0
    holders: tuple[str, ...] = ("a", "a")
    can_grow: bool = True

    def threads(self) -> dict[str, int]:
        return {"a": 1}

    def joined(self) -> dict[str, int]:
        return dict.fromkeys(self.now, 1) if len(self.now) > 1 else {}

    def memory(self) -> int:
        return self.room

    def wish(self, n: int) -> None:
        self.wished = n


@pytest.mark.parametrize(
    ("now", "epochs", "done", "seconds", "rows", "room", "leaves", "wished"),
    [
        ("ab", 100, 20, 1.0, 1 << 20, 0, True, 2),  # spares half of 20 epochs, or of none that come
        ("ab", 23, 20, 1.0, 1 << 20, 0, False, 0),  # of 3 epochs
        ("ab", 100, 20, 0.1, 1 << 20, 0, False, 0),
        ("ab", 1000, 500, 0.1, 1 << 20, 0, True, 2),
        ("ab", 100, 20, 1.0, 1 << 15, 0, True, 2),  # also of few rows
        ("ab", 100, 20, 1.0, 1 << 10, 0, False, 0),  # which one replica trains on
        ("a", 100, 20, 1.0, 1 << 20, 0, False, 3),  # 20 s of work, of 5 s a worker
        ("a", 100, 20, 1.0, 1 << 14, 0, False, 1),  # which are worth two replicas
        ("a", 100, 20, 0.4, 1 << 20, 0, False, 0),
        ("ab", 100, 20, 1.0, 1 << 20, 1 << 30, True, 2),
        ("ab", 100, 20, 1.0, 1 << 20, 1 << 27, False, 0),  # the rows that move are 64 MiB
    ],
)
def test_a_fit_looks_whether_further_workers_spare_enough(
    now: str, epochs: int, done: int, seconds: float, rows: int, room: int, leaves: bool,
    wished: int, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("dps.training.run.joining._LOOK_EVERY", 0.0)

    def planned(threads: Any, moves: bool = False) -> Plan:
        return make_plan(
            dps.Sync(), Located([rows], ["a"], threads, rows << 4),
            count=lambda piece: piece.rows, batch_size=100, n_replicas="auto",
            rebalance=True if moves else "auto",
        )  # fmt: skip

    rule = StoppingRule(max_iter=epochs, tol=1e-4, n_iter_no_change=5, validate=False)
    cluster = Growing(tuple(now), room)
    joining = Joining(cluster, rule, row_bytes=128, state_bytes=80)
    joining.plan(planned)
    record = EpochRecord.unknown(1, 1)._replace(seconds=seconds)
    assert joining.should_end([record] * done) == leaves
    assert cluster.wished == wished


def test_nothing_is_planned_for_workers_that_cannot_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dps.training.run.joining._LOOK_EVERY", 0.0)
    plans = []

    def planned(threads: Any, moves: bool = False) -> Plan:
        plans.append(threads)
        return make_plan(
            dps.Sync(), Located([1 << 20], ["a"], threads, 1 << 24),
            count=lambda piece: piece.rows, batch_size=100, n_replicas="auto", rebalance="auto",
        )  # fmt: skip

    rule = StoppingRule(max_iter=100, tol=1e-4, n_iter_no_change=5, validate=False)
    joining = Joining(Growing(can_grow=False), rule, row_bytes=128, state_bytes=80)
    joining.plan(planned)
    assert not joining.should_end([EpochRecord.unknown(1, 1)._replace(seconds=1.0)] * 20)
    assert len(plans) == 1


def test_rows_move_to_idle_workers_after_a_loss_where_that_pays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dps.training.run.joining._LOOK_EVERY", 0.0)
    holders = ["a", "b"]

    def planned(threads: Any, moves: bool = False) -> Plan:
        return make_plan(
            dps.Sync(), Located([1 << 15] * 2, holders, threads, 1 << 20),
            count=lambda piece: piece.rows, batch_size=100, n_replicas="auto", rebalance=moves,
        )  # fmt: skip

    cluster = Growing()
    cluster.threads = lambda: dict.fromkeys("abc", 1)  # type: ignore[method-assign]
    rule = StoppingRule(max_iter=100, tol=None, n_iter_no_change=5, validate=False)
    joining = Joining(cluster, rule, row_bytes=128, state_bytes=80)
    assert set(joining.plan(planned).workers) == {"a", "b"}
    joining.should_end([EpochRecord.unknown(1, 1)._replace(seconds=1.0)])
    assert set(joining.plan(planned).workers) == {"a", "b"}  # another one took a dead one's place
    holders[1] = "a"
    assert set(joining.plan(planned).workers) == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("now", "silent", "trains", "joined"),
    [("ab", "", "ab", ""), ("abc", "", "ab", "abc"), ("bc", "", "ab", ""),
     ("abcd", "bd", "ab", "abc"), ("abcd", "cd", "abc", "abc")],
)  # fmt: skip
def test_who_has_joined(now: str, silent: str, trains: str, joined: str) -> None:
    """None while a holder of rows is gone; idle workers that do not answer are left out."""
    there = dict.fromkeys(now, 1)
    work = SimpleNamespace(
        silent=set(), staying=lambda: there, present=lambda: there, has_new=lambda: False,
        reborn=set(), ask_silent=lambda others=(): work.silent.update(set(silent) & set(others)),
    )  # fmt: skip
    cluster: Any = SimpleNamespace(
        _work=work, _threads={"a": 1, "b": 1}, holders=["a", "b", "a"],
        _running=SimpleNamespace(workers=set(trains)),
    )  # fmt: skip
    assert DaskCluster.joined(cluster) == dict.fromkeys(joined, 1)


@pytest.mark.slow
def test_an_adaptive_cluster_may_change_while_fits_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others' tasks have it grow, and it shrinks again, again and again."""
    fits_end_when_told(monkeypatch)
    X, y = rows()
    data = da.from_array(X, chunks=(500, 10)), da.from_array(y, chunks=500)
    with local_client(1) as client:
        client.cluster.adapt(
            minimum=1, maximum=4, interval="50ms", wait_count=2, target_duration="200ms"
        )
        fits = [
            EndlessFit(classifier(client, mode=mode), *data)
            for mode in ("sync", "async", "allreduce")
        ]
        for fit in fits:
            fit.start()
        until(lambda: training(client) == len(fits), "all train")
        for _ in range(3):
            tasks = [client.submit(time.sleep, 0.2, pure=False) for _ in range(500)]
            until(lambda: len(client.nthreads()) > 2, "it grows")
            del tasks
            until(lambda: len(client.nthreads()) < 3, "it shrinks")
        for fit in fits:
            fit.end()


@pytest.mark.parametrize("most", [0, 1])
def test_a_fit_goes_on_after_so_many_losses(
    most: int, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = killing_after(monkeypatch, 2, lambda: kill(client, min(client.nthreads())))
    model = classifier(client)
    configure(max_losses=most)
    if most:
        assert_exact(model.fit(*rows()))
        assert len(losses) == 1
        return
    with pytest.raises(WorkerLostError, match=r"dps\.max_losses=0"):
        model.fit(*rows())
    assert model.n_iter_ == len(model.history_) >= 2  # of the epochs that were closed


FAST_STRIKES = [("sync", "SIGKILL", True), ("async", "SIGSTOP", True)]


@pytest.mark.parametrize(
    ("mode", "how", "of_shard"),
    [
        *FAST_STRIKES,
        *slow(*sorted({*product(MODES, ("SIGKILL", "SIGSTOP"), (True, False))} - {*FAST_STRIKES})),
    ],
)
def test_ctrl_c_counts_though_a_worker_dies_or_freezes(
    mode: str, how: str, of_shard: bool, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It arrives soon, with what has been learned."""
    pids, struck, main = client.run(os.getpid), [], threading.get_ident()
    fetch = Watcher._fetch

    def fetched(self: Watcher) -> bool:
        ends = fetch(self)
        if self.progress.closed >= 3 and not struck:
            (shard,), ranks = self._plan.shards, {rank.worker for rank in self._plan.ranks}
            struck.extend([shard if of_shard else max(ranks - {shard}), time.monotonic()])
            os.kill(pids[struck[0]], getattr(signal, how))
            signal.pthread_kill(main, signal.SIGINT)
        return ends

    monkeypatch.setattr(Watcher, "_fetch", fetched)
    model = classifier(client, mode=mode, max_iter=10**6, n_replicas=3)
    configure(n_shards=1)
    try:
        with pytest.raises(KeyboardInterrupt):
            model.fit(*rows())
        assert time.monotonic() - struck[1] < 20.0  # twice as long as on a machine of its own
    finally:
        with suppress(ProcessLookupError):
            os.kill(pids[struck[0]], signal.SIGCONT)
    assert 3 <= model.n_iter_ == len(model.history_) < 10**6
    assert model.score(*rows()) > 0.6
    until(lambda: len(client.nthreads()) == 3, "the worker is there again")


@pytest.mark.slow
def test_rows_that_kill_every_worker_end_the_fit(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*args: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr("dps.estimators.fit.fit.inspect_kept", dies)
    with pytest.raises(ClusterError, match="on 4 workers that died before training began"):
        classifier(client, n_replicas=1).fit(*rows())


class Freezing:
    """Rows with which the process freezes that sends them to another."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __reduce__(self) -> Any:
        os.kill(os.getpid(), signal.SIGSTOP)
        return Freezing, (self.values,)


@pytest.mark.slow
def test_what_a_frozen_worker_was_to_send_is_made_again_where_it_was_awaited() -> None:
    X, y = rows()
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as made,
        Client(made) as client,
    ):
        there = max(client.nthreads())
        pid = client.run(os.getpid, workers=[there])[there]
        sent = [client.submit(Freezing, part, workers=[there]) for part in np.split(X, 4)]
        wait(sent)
        read = dask.delayed(lambda part: part.values)
        parts = [da.from_delayed(read(part), (ROWS // 4, 10), X.dtype) for part in sent]
        try:
            configure(timeout=3.0)
            model = classifier(client)
            model.fit(da.concatenate(parts), da.from_array(y, chunks=ROWS // 4))
            assert_exact(model)
            assert there in str(model.fit_report_)
        finally:
            os.kill(pid, signal.SIGCONT)


def slow_to_hang_up() -> None:
    """Have this worker take its time to give up a connection; it does so where it is busy."""
    connect = distributed.core.connect

    async def connecting(*args: Any, **options: Any) -> Any:
        try:
            return await connect(*args, **options)
        except asyncio.CancelledError:
            await asyncio.sleep(1.0)
            raise

    distributed.core.connect = connecting


def note_who_hangs_up(dask_worker: Any) -> None:
    """Have this worker note that it gives up connections."""
    drop_connections, dask_worker.hung_up = dask_worker._handle_remove_worker, False

    def noted(*args: Any) -> None:
        dask_worker.hung_up = True
        drop_connections(*args)

    dask_worker._handle_remove_worker = noted


def test_a_worker_that_is_to_hang_up_for_many_fits_at_once_lives_on() -> None:
    """And one that none of these fits has given anything hears nothing of it."""
    with (
        LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=":0") as made,
        Client(made) as client,
    ):
        (here, left), (aside, _), (there, pid) = sorted(client.run(os.getpid).items())
        client.run(note_who_hangs_up)
        wait(sent := client.submit(bytes, 1000, workers=[there]))
        client.run(slow_to_hang_up, workers=[here])
        os.kill(pid, signal.SIGSTOP)
        try:
            length = client.submit(len, sent, workers=[here])
            until(
                lambda: client.run(
                    lambda dask_worker: there in dask_worker.rpc._connecting, workers=[here]
                )[here],
                "it connects to the frozen one",
            )
            for _ in range(10):
                unpin(client, [length.key], {there}, 5.0)
            # It is to be called again while a worker is silent: Dask asks that one again.
            until(
                lambda: length.done() or unpin(client, [length.key], {there}, 5.0) is None,
                "the bytes are made again",
                20.0,
            )
            assert length.result(timeout=20) == 1000
            assert client.run(os.getpid, workers=[here]) == {here: left}
            hung_up = client.run(lambda dask_worker: dask_worker.hung_up, workers=[here, aside])
            took_over = aside in client.who_has([sent])[sent.key]
            assert hung_up == {here: True, aside: took_over}
        finally:
            os.kill(pid, signal.SIGCONT)


def test_what_a_dead_worker_held_may_take_longer_than_the_timeout_to_make_again(
    client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    X, y = rows()
    began, again = tmp_path / "began", tmp_path / "again"

    def slow_again(values: Any) -> Any:
        if began.exists():
            again.touch()
            time.sleep(3.0)
        began.touch()
        return values

    (lost, _, kept), half = sorted(client.nthreads()), len(X) // 2
    data: Any = [
        [
            client.submit(make, rows[:half], workers=[lost], allow_other_workers=True),
            client.submit(np.copy, rows[half:], workers=[kept]),
        ]
        for make, rows in ((slow_again, X), (np.copy, y))
    ]
    client.gather(data)
    configure(timeout=2.0)
    losses = killing_after(monkeypatch, 2, lambda: kill(client, lost))
    assert_exact(classifier(client, n_replicas=2).fit(*data))
    assert len(losses) == 1
    assert again.exists()


@pytest.mark.parametrize("threshold", ["150kB", *slow("10MB")])
def test_a_worker_that_dies_with_the_encoder_for_all_costs_no_row(
    threshold: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, killed = PlacedData._put, list[str]()

    def killing(self: PlacedData, calls: Any, stage: int) -> None:
        if not killed:
            killed.append(self.holders[min(calls)])
            kill(client, killed[0])
        put(self, calls, stage)

    monkeypatch.setattr(PlacedData, "_put", killing)
    numbers = np.arange(3000)
    frame = pd.DataFrame({"a": numbers % 7, "n": numbers % 5, "long": numbers}).astype(str)
    frame["y"] = numbers % 7 > 3
    lazy = dd.from_pandas(frame, npartitions=6)
    lazy["long"] = "many letters " * 10 + lazy["long"]
    X, y = lazy.drop(columns="y"), lazy["y"]
    model = dps.LinearClassifier(client=client, encoder=FrameEncoder())
    with (  # names of values are longer than a graph may be, or not
        dask.config.set({"distributed.admin.large-graph-warning-threshold": threshold}),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("error", message="Sending large graph")
        model.fit(X, y)
        assert killed
        assert model.history_[-1]["rows"] == 3000
        model.partial_fit(X, y)
    assert model.score(X, y) == 1.0


def test_a_worker_that_dies_with_parts_of_a_fitted_encoder_costs_no_row(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, killed = FitWork.sent, list[str]()

    def killing(self: FitWork, value: Any, worker: str) -> list[Any]:
        parts = sent(self, value, worker)
        if len(parts) > 1 and not killed:  # before a task needs them
            killed.append(worker)
            kill(client, worker)
        return parts

    numbers = np.arange(3000)
    frame = pd.DataFrame({"a": numbers % 7, "long": numbers}).astype(str)
    frame["y"] = numbers % 7 > 3
    lazy = dd.from_pandas(frame, npartitions=6)
    for each in frame, lazy:
        each["long"] = "many letters " * 10 + each["long"]
    model = dps.LinearClassifier(encoder=FrameEncoder()).fit(frame[["a", "long"]], frame["y"])
    monkeypatch.setattr(FitWork, "sent", killing)
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "150kB"}):
        model.set_params(client=client).partial_fit(lazy[["a", "long"]], lazy["y"])
    assert killed
    assert model.history_[-1]["rows"] == 3000
