"""Reports of a fit on a cluster: events, stragglers, metrics, spans."""

from __future__ import annotations

import threading
import time
import urllib.request
from dataclasses import dataclass
from typing import Any, ClassVar, get_type_hints

import dask
import dask.array as da
import distributed
import event_tables
import msgpack
import numpy as np
import pytest
from conditions import until
from configure import configure
from distributed import Client, LocalCluster, get_worker, span
from distributed.security import Security
from groups import MODES

import dps
from dps._runtime.modes.synchronous import SynchronousChannel
from dps.cluster.dask.shard import FitShard
from dps.losses import LogLoss
from dps.monitor import events
from dps.monitor.events import KINDS
from dps.monitor.scheduler.checking import is_sound
from dps.monitor.scheduler.prometheus import FitCollector
from dps.monitor.scheduler.store import FITS, FitStore
from dps.optimizers import SGD
from dps.optimizers.update import Update
from dps.server.group.window import WindowSpec
from dps.server.shard import Initial, MonitorInfo, ShardSpec
from dps.server.store.store import StoreSpec
from dps.transport.remote import Remote

SCHEMA: dict[str, Any] = {
    "loading": events.LoadingEvent,
    "started": events.StartedEvent,
    "replicas": events.ReplicasEvent,
    "shard": events.ShardEvent,
    "epochs": events.EpochsEvent,
    "straggler": events.StragglerEvent,
    "recovered": events.RecoveredEvent,
    "stopped": events.StoppedEvent,
    "failed": events.FailedEvent,
    "server": events.ServerEvent,
}


def problem(rows: int = 4000) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 10))
    y = (X[:, 0] + rng.logistic(size=rows) > 0).astype(int)
    return da.from_array(X, chunks=(rows // 4, 10)), da.from_array(y, chunks=rows // 4)


class Told:
    """The events that a client has kept of one fit."""

    def __init__(self, client: Client, known: set[str]) -> None:
        self._client = client
        self._known = known

    def __call__(self, kind: str | None = None) -> list[dict[str, Any]]:
        told = [event for _, event in self._client.get_events("dps")]
        new = [event for event in told if event["fit"] not in self._known]
        return [event for event in new if kind in (None, event["kind"])]

    def last(self, kind: str) -> Any:
        return until(lambda: self(kind), f"an event {kind}")[-1]

    def final(self, kind: str) -> Any:
        return until(lambda: [event for event in self(kind) if event["final"]], "the last one")[-1]


@pytest.fixture
def told(client: Client) -> Told:
    return Told(client, {event["fit"] for _, event in client.get_events("dps")})


def check_schema(event: dict[str, Any]) -> None:
    """Exactly the fields of its kind, each of the type that the schema gives it."""
    assert is_sound(event), event
    fields = get_type_hints(SCHEMA[event["kind"]])
    from_a_worker = event["kind"] in ("replicas", "shard", "straggler")
    assert set(event) == set(fields) | ({"worker"} if from_a_worker else set())
    assert event["v"] == 2
    assert msgpack.unpackb(msgpack.packb(event), use_list=False) == event
    for name, nested in (
        ("replicas", events.ReplicaStart),
        ("shards", events.ShardStart),
        ("epochs", events.EpochFields),
    ):
        for item in event[name] if isinstance(event.get(name), tuple) else ():
            assert set(item) == set(get_type_hints(nested))


@pytest.mark.parametrize("access", ["mapped", "stream"])
@pytest.mark.parametrize("mode", list(MODES))
def test_a_fit_tells_its_story(client: Client, told: Told, mode: str, access: str) -> None:
    X, y = problem()
    configure(n_shards=2)
    model = dps.LinearClassifier(
        mode=MODES[mode](access=access), client=client, optimizer="sgd", n_replicas=2,
        max_iter=3, tol=None, batch_size=400, early_stopping=True, random_state=0,
    ).fit(X, y)  # fmt: skip
    replicas = told.final("replicas")
    until(lambda: sum(shard["final"] for shard in told("shard")) == 2, "both shards' last word")
    for event in told():
        check_schema(event)
    assert {event["fit"] for event in told()} == {replicas["fit"]}
    assert [e["kind"] for e in told() if e["kind"] in ("started", "stopped")] == [
        "started", "stopped",
    ]  # fmt: skip
    started, stopped = told.last("started"), told.last("stopped")
    plan = model.plan_
    assert (started["name"], started["mode"]) == ("LinearClassifier", mode)
    assert (started["optimizer"], started["rows"]) == ("sgd", plan.rows)
    assert [r["worker"] for r in started["replicas"]] == [rank.worker for rank in plan.ranks]
    assert [s["worker"] for s in started["shards"]] == list(plan.shards)
    closed = [epoch for event in told("epochs") for epoch in event["epochs"]]
    for field in ("epoch", "loss", "validation_loss", "rows"):
        assert [e[field] for e in closed] == [record[field] for record in model.history_]
    assert (stopped["reason"], stopped["epochs"], stopped["loss"]) == ("max_iter", 3, model.loss_)
    assert set(replicas["replicas"]) == set(get_type_hints(events.ReplicaColumns))
    each = events.replicas_of(replicas["replicas"])
    assert len(each) == len(plan.ranks)
    for rank, did in enumerate(each):
        assert (did["epoch"], did["rows"]) == (3, 3 * plan.ranks[rank].rows)
        assert did["epoch_rows"] == plan.ranks[rank].rows
        assert did["compute"] > 0
    total = sum(did["loss"] * did["epoch_rows"] for did in each)
    assert total / plan.rows == pytest.approx(model.history_[-1]["loss"])
    pushes = sum(did["step"] for did in each)
    for shard in (e for e in told("shard") if e["final"]):
        assert shard["pushes"] == pushes
        assert shard["version"] == (pushes if mode == "async" else 3 * started["updates"])
        assert shard["bytes"] == 8 * started["shards"][shard["shard"]]["parameters"] * pushes
        assert shard["apply_seconds"] > 0
        assert shard["worker"] == plan.shards[shard["shard"]]
        assert [sum(histogram) for histogram in shard["staleness"]] == (
            [did["step"] for did in each] if mode == "async" else []
        )


def test_a_fit_without_replicas_tells_its_story(client: Client, told: Told) -> None:
    X = np.random.default_rng(0).normal(size=(1000, 3))
    model = dps.LinearRegressor(client=client).fit(da.from_array(X, chunks=(100, 3)), X[:, 0])
    stopped = told.last("stopped")
    for event in told():
        check_schema(event)
    started = told.last("started")
    assert (started["optimizer"], started["rows"]) == ("least squares", 1000)
    assert (started["replicas"], started["shards"]) == ((), ())
    (closed,) = (epoch for event in told("epochs") for epoch in event["epochs"])
    assert closed["loss"] == model.loss_
    assert (stopped["reason"], stopped["epochs"]) == ("converged", 1)


def test_the_phases_before_training_are_named(
    client: Client, told: Told, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("dps.cluster.dask.calls._TICK_SECONDS", 0.05)
    gate = distributed.Event("looked-at", client)

    class Slow(dps.losses.SquaredError):
        """It waits where the survey of a partition asks whether targets are allowed."""

        domain: ClassVar[str] = "numbers"

        def allows(self, y: Any) -> Any:
            distributed.Event("looked-at").wait()
            return np.ones(np.shape(y), bool)

    X, y = problem()
    model = dps.LinearRegressor(Slow(), client=client, max_iter=2, tol=None, verbose=1)
    fitting = threading.Thread(target=model.fit, args=(X, y))
    fitting.start()
    printed = [""]

    def shown() -> bool:
        printed[0] += capsys.readouterr().err
        return "looking at the rows, 0 of 4 partitions |" in printed[0]

    try:
        until(shown, "the bar names the phase")
        until(
            lambda: [e for e in told("loading") if e["phase"] == "looking at the rows"],
            "so do events",
        )
    finally:
        gate.set()
        fitting.join(60)
    assert model.n_iter_ == 2


@pytest.mark.parametrize("fails", [False, True])
def test_a_fit_says_how_many_partitions_are_loaded(
    fails: bool, client: Client, told: Told, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("dps.cluster.dask.calls._TICK_SECONDS", 0.05)
    gate = distributed.Event(f"loaded-{fails}", client)

    def loaded(block: Any, block_info: Any = None) -> Any:
        if block_info[0]["chunk-location"][0] > 1:
            distributed.Event(f"loaded-{fails}").wait()
            if fails:
                raise RuntimeError("the file is gone")
        return block

    X, y = problem()
    X = X.map_blocks(loaded, dtype=float, meta=np.empty((0, 0)))
    model = dps.LinearClassifier(client=client, n_replicas=2, max_iter=2, tol=None, verbose=1)
    errors: list[BaseException] = []

    def fit() -> None:
        try:
            model.fit(X, y)
        except BaseException as error:
            errors.append(error)

    fitting = threading.Thread(target=fit)
    fitting.start()
    try:
        until(lambda: [e for e in told("loading") if e["loaded"] == 2], "two of four are there")
        assert not told("started")
    finally:
        gate.set()
        fitting.join(60)
    store = FitStore()
    for event in told("loading"):
        check_schema(event)
        assert (event["name"], event["partitions"]) == ("LinearClassifier", 4)
        store.add(event, now=0.0)
    (shown,) = store.fits
    assert (shown.name, shown.outcome) == ("LinearClassifier 1", "loading")
    assert "loading, 2 of 4 partitions |" in capsys.readouterr().err
    if fails:
        assert isinstance(errors[0], RuntimeError)
        assert told.last("failed")["message"] == "RuntimeError: the file is gone"
    else:
        assert not errors
        assert told.last("stopped")["epochs"] == 2
    for event in told():
        store.add(event, now=0.0)
    assert shown.outcome == ("failed" if fails else "max_iter")


def test_every_kind_has_a_schema_and_the_page_has_it() -> None:
    assert set(SCHEMA) == set(KINDS)
    assert event_tables.PAGE.read_text() == event_tables.written(), (
        "run python tests/harness/event_tables.py"
    )


def test_a_cluster_told_to_be_silent_says_nothing(client: Client, told: Told) -> None:
    X, y = problem()
    with dask.config.set({"dps.monitor": False}):
        dps.LinearClassifier(client=client, n_replicas=2, max_iter=2, tol=None).fit(X, y)
    dps.LinearClassifier(client=client, n_replicas=2, max_iter=2, tol=None).fit(X, y)
    until(lambda: told("stopped"), "the second fit ends")
    assert len({event["fit"] for event in told()}) == 1


def test_a_cluster_told_to_be_silent_says_nothing_of_loading(
    client: Client, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dps.cluster.dask.calls._TICK_SECONDS", 0.05)

    def slow(block: Any) -> Any:
        threading.Event().wait(0.3)
        return block

    X, y = problem()
    X = X.map_blocks(slow, meta=np.empty((0, 0)))
    for watched in (False, True):
        with dask.config.set({"dps.monitor": watched}):
            dps.LinearClassifier(client=client, n_replicas=2, max_iter=2, tol=None).fit(X, y)
    until(lambda: told("stopped"), "the second fit ends")
    assert told("loading")
    assert len({event["fit"] for event in told()}) == 1


def failing() -> LogLoss:
    """A loss that no one can evaluate; pickled by value."""

    @dataclass(frozen=True)
    class Failing(LogLoss):
        def evaluate(self, y: Any, raw: Any, weight: Any, out: Any) -> float:
            raise RuntimeError("no more rows, please")

    return Failing()


def test_a_fit_that_fails_says_where(client: Client, told: Told) -> None:
    X, y = problem()
    model = dps.LinearClassifier(
        client=client, loss=failing(), optimizer="sgd", n_replicas=2, batch_size=20
    )
    with pytest.raises(RuntimeError, match="no more rows, please") as info:
        model.fit(X, y)
    failed = told.last("failed")
    check_schema(failed)
    assert failed["error"] == "RuntimeError"
    assert failed["message"] == "RuntimeError: no more rows, please"
    assert failed["step"] == 1
    place = f"raised in replica {failed['rank']} at step 1 (worker {failed['worker']})"
    assert info.value.__notes__ == [place]
    assert not told("stopped")


def slow_on(address: str, seconds: float) -> LogLoss:
    """A loss that takes four times as long on one worker; pickled by value."""

    @dataclass(frozen=True)
    class Slow(LogLoss):
        def evaluate(self, y: Any, raw: Any, weight: Any, out: Any) -> float:
            try:
                here = get_worker().address
            except ValueError:
                here = ""
            time.sleep(4 * seconds if here == address else seconds)
            return LogLoss.evaluate(self, y, raw, weight, out)

    return Slow()


class Endless(threading.Thread):
    """A fit that goes on until it is stopped; its step may be made slow on a worker."""

    def __init__(self, client: Client, **options: Any) -> None:
        super().__init__()
        self.client = client
        self.over = threading.Event()
        self.options = options
        self.start()

    def run(self) -> None:
        X, y = problem()
        while not self.over.is_set():
            dps.LinearClassifier(
                client=self.client, n_replicas=2, tol=None, random_state=0, **self.options
            ).fit(X, y)

    def end(self) -> None:
        self.over.set()
        self.join(60)
        assert not self.is_alive()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_slow_replica_is_named(client: Client, told: Told, mode: str) -> None:
    victim = max(client.nthreads())
    fit = Endless(
        client, mode=mode, loss=slow_on(victim, 0.01), optimizer="sgd", max_iter=40,
        batch_size=1000,
    )  # fmt: skip
    try:
        began = told.last("started")
        found = told.last("straggler")
    finally:
        fit.end()
    check_schema(found)
    assert found["slow"]
    assert found["replica_worker"] == victim
    assert found["replica_worker"] == began["replicas"][found["rank"]]["worker"]
    assert found["ratio"] == pytest.approx(0.25, abs=0.1)
    # Five seconds, as the slow one counts them: each of its steps takes 0.04 at the least.
    before = [e for e in told("replicas") if e["fit"] == found["fit"] and e["time"] < found["time"]]
    assert before[-1]["replicas"]["step"][found["rank"]] <= 5 / 0.04


def metrics(client: Client) -> list[str]:
    """The lines of dps that Prometheus would read from the scheduler."""
    with urllib.request.urlopen(client.dashboard_link.replace("/status", "/metrics")) as page:
        lines = page.read().decode().splitlines()
    return [line for line in lines if line.startswith("dps_")]


def test_prometheus_reads_replicas_and_shards(client: Client, told: Told) -> None:
    pytest.importorskip("prometheus_client")
    X, y = problem()
    configure(n_shards=2)
    model = dps.LinearClassifier(
        mode="async", client=client, optimizer="sgd", n_replicas=2, max_iter=3,
        tol=None, batch_size=100,
    ).fit(X, y)  # fmt: skip
    fit = told.last("started")["fit"]
    told.final("replicas")
    until(lambda: len([each for each in told("shard") if each["final"]]) == 2, "both shards end")
    found = {
        line.split("{")[0] + "{" + line.split("{")[1].replace(f'fit="{fit}",', "").split("}")[0]:
        float(line.rsplit(" ", 1)[1])
        for line in metrics(client)
        if f'fit="{fit}"' in line
    }  # fmt: skip
    rows = {n: v for n, v in found.items() if n.startswith("dps_replica_rows_total")}
    assert sum(rows.values()) == 3 * model.plan_.rows
    assert set(rows) == {f'dps_replica_rows_total{{replica="{rank}"' for rank in range(2)}
    pushes = {n: v for n, v in found.items() if n.startswith("dps_shard_pushes_total")}
    steps = sum(v for n, v in found.items() if n.startswith("dps_replica_steps_total"))
    assert pushes == {f'dps_shard_pushes_total{{shard="{shard}"': steps for shard in range(2)}
    stale = [v for n, v in found.items() if n.startswith("dps_push_staleness_count")]
    assert sum(stale) == steps
    phases = [n for n in found if n.startswith("dps_replica_seconds_total")]
    assert len(phases) == 2 * 5


def test_prometheus_reads_fits_from_the_scheduler(client: Client, told: Told) -> None:
    pytest.importorskip("prometheus_client")
    X, y = problem()
    model = dps.LinearClassifier(client=client, n_replicas=2, max_iter=3, tol=None).fit(X, y)
    fit = told.last("stopped")["fit"]
    lines = metrics(client)
    labels = f'{{fit="{fit}",mode="sync",name="LinearClassifier"}}'
    found = {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in lines if labels in line}
    assert found == {
        "dps_fit_epochs_total": 3.0,
        "dps_fit_rows_total": 3.0 * model.plan_.rows,
        "dps_fit_loss": pytest.approx(model.loss_),
        "dps_fit_running": 0.0,
        "dps_fit_stragglers": 0.0,
    }
    assert any(line.startswith('dps_fits_total{outcome="max_iter"}') for line in lines)


def started(fit: str) -> dict[str, Any]:
    numbers = ("parameters", "rows", "batch_rows", "updates", "max_epochs", "epochs_before")
    texts = ("mode", "optimizer", "loss", "dtype")
    return events.event(
        "started", fit, name="LinearClassifier", replicas=[], shards=[], together=True,
        max_delay=None,
        **dict.fromkeys(numbers, 1), **dict.fromkeys(texts, "sync"),
    )  # fmt: skip


def stopped(fit: str) -> dict[str, Any]:
    return events.event("stopped", fit, reason="converged", epochs=1, loss=0.5, seconds=1.0)


def test_series_of_fits_are_bounded_and_end_some_time_after_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("prometheus_client")
    store, collector = FitStore(), FitCollector()
    collector.stores.add(store)

    def shown() -> set[str]:
        samples = [s for family in collector.collect() for s in family.samples]
        return {s.labels["fit"] for s in samples if s.name == "dps_fit_running"}

    for number in range(200):
        store.add(started(str(number)), time.time())
        if number:
            store.add(stopped(str(number)), time.time())
    assert shown() == {"0", *(str(n) for n in range(201 - FITS, 200))}
    monkeypatch.setattr("dps.monitor.scheduler.prometheus.LINGER", -1.0)
    assert shown() == {"0"}


def test_tasks_say_what_they_are_and_belong_together(client: Client, told: Told) -> None:
    X, y = problem()
    with span("mine"):
        dps.LinearClassifier(client=client, n_replicas=2, max_iter=3, tol=None).fit(X, y)

    def found(dask_scheduler: Any) -> tuple[Any, Any]:
        spans = dask_scheduler.extensions["spans"].spans_search_by_name["mine", "dps"]
        groups = [group.prefix.name for span in spans for group in span.traverse_groups()]
        return groups, [
            key[2] for key in dask_scheduler.cumulative_worker_metrics
            if key[:2] == ("execute", "dps-replica")
        ]  # fmt: skip

    groups, _ = client.run_on_scheduler(found)
    assert {"dps-replica", "dps-shard", "dps-inspect"} <= set(groups)
    until(
        lambda: {"dps compute", "dps wait"} <= set(client.run_on_scheduler(found)[1]),
        "the metrics of the task have come with a heartbeat",
    )


def test_all_fits_have_one_span_which_the_cluster_remembers(client: Client) -> None:
    X, y = problem()

    def spans(dask_scheduler: Any) -> list[Any]:
        known = dask_scheduler.extensions["spans"].spans
        return sorted(one.name for one in known.values() if "dps" in one.name)

    def in_digests(dask_worker: Any) -> list[str]:
        return sorted({str(key[1]) for key in dask_worker.digests_total if key[0] == "execute"})

    def fit() -> tuple[list[Any], Any]:
        dps.LinearClassifier(client=client, n_replicas=2, max_iter=3, tol=None).fit(X, y)
        return client.run_on_scheduler(spans), client.run(in_digests)

    names, digests = fit()
    assert ("dps",) in names
    for _ in range(3):
        assert fit() == (names, digests)
    with span("mine"):
        fit()
        assert fit()[0] == sorted([*names, ("mine", "dps")])


def test_nothing_is_left_running_on_workers(client: Client, told: Told) -> None:
    X, y = problem()
    dps.LinearClassifier(client=client, n_replicas=2, max_iter=3, tol=None).fit(X, y)
    told.final("replicas")

    def reporters(dask_worker: Any) -> int:
        import gc

        from dps.monitor.shard.reporter import Reporter

        gc.collect()
        return sum(isinstance(thing, Reporter) for thing in gc.get_objects())

    until(lambda: not any(client.run(reporters).values()), "no reporter is left")


@pytest.mark.slow
def test_a_shard_that_nobody_closes_is_silent_once_its_client_has_gone(client: Client) -> None:
    store = StoreSpec("dead", 0, 40, "float64")
    update = Update(SGD(), 0.0, 0.0, ((0, 40, False),))
    spec = ShardSpec(
        WindowSpec("dead", 1, store, 16), Initial(40, "float64", (0.0,)), SynchronousChannel, 30.0,
        0, update, watched=MonitorInfo(("here",), True),
    )  # fmt: skip

    def told_of() -> int:
        return sum(event["fit"] == "dead" for _, event in client.get_events("dps"))

    with Client(client.scheduler.address, set_as_default=False) as other:
        worker = min(other.nthreads())
        actor = other.submit(FitShard, spec, actor=True, workers=worker)
        actor.result(timeout=30)
        Remote(worker, actor.key, other).call("open", timeout=10)
        until(lambda: told_of() > 2, "it says something")

    def shards(dask_worker: Any) -> int:
        import gc

        gc.collect()
        return sum(isinstance(thing, FitShard) for thing in gc.get_objects())

    until(lambda: not any(client.run(shards).values()), "the shard has gone")
    before = told_of()
    client.submit(time.sleep, 1.5, pure=False).result(timeout=30)  # six looks
    assert told_of() == before


def test_a_secure_cluster_is_told_as_well() -> None:
    pytest.importorskip("cryptography")
    security = Security.temporary()
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, security=security, dashboard_address=":0"
        ) as cluster,
        Client(cluster, security=security, set_as_default=False) as client,
    ):
        X, y = problem()
        dps.LinearClassifier(client=client, n_replicas=1, max_iter=2, tol=None).fit(X, y)
        told = Told(client, set())
        assert told.last("stopped")["epochs"] == 2
        assert told.final("replicas")["replicas"]["epoch"][0] == 2
