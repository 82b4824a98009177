"""Promises for several hosts, on two that share nothing but a cable.

They are network namespaces of this machine, each with a ``/dev/shm`` of its own, so that no
window is mapped from the other. The host to compare with is this one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import dask.array as da
import numpy as np
import psutil
import pytest
import scipy.sparse
from cases import pairs
from conditions import until
from configure import configure, placed
from distributed import Client
from endless import EndlessFit, fits_end_when_told
from groups import MODES
from uneven import Slow, uneven

from dps import AllReduce, FMClassifier, LinearClassifier, MLPClassifier, Sync
from dps.parameter_server import EmbeddingTable, ParameterServer
from dps.parameter_server.client.access import RemoteAccess
from dps.training.run.supervise import Watcher
from namespaces import ClusterOfHosts, cluster_of_hosts, network, why_not

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

#: A fit that its client does not live to see the end of.
ENDLESS = """
import sys
import dask.array as da
from distributed import Client
from dps import LinearClassifier
client = Client(sys.argv[1])
X = da.random.default_rng(0).normal(size=(8000, 10), chunks=(1000, 10))
y = (X.sum(axis=1) > 0).astype(int)
LinearClassifier(
    mode=sys.argv[2], optimizer="sgd", client=client, max_iter=10**6, tol=None
).fit(X, y)
"""


@pytest.fixture(scope="module")
def pair() -> Iterator[ClusterOfHosts]:
    """Two hosts with a worker each."""
    with cluster_of_hosts(2) as cluster:
        yield cluster


def dense(rows: int = 4000) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 10))
    y = (X @ rng.normal(size=10) + rng.logistic(size=rows) > 0).astype(int)
    return da.from_array(X, chunks=(rows // 8, 10)), da.from_array(y, chunks=rows // 8)


def sparse(rows: int = 400) -> tuple[Any, Any]:
    """Rows that touch so few of the columns that their steps go by keys."""
    rng = np.random.default_rng(0)
    X = scipy.sparse.random_array((rows, 4000), density=0.002, format="csr", random_state=rng)
    y = (X @ rng.normal(size=4000) > 0).astype(int)
    halves = [slice(0, rows // 2), slice(rows // 2, rows)]
    return (
        da.concatenate([da.from_array(X[half], chunks=(-1, -1)) for half in halves]),
        da.concatenate([da.from_array(y[half]) for half in halves]),
    )


def trained(client: Client, data: tuple[Any, Any], **parameters: Any) -> LinearClassifier:
    chosen = {"n_replicas": 2, "random_state": 0, "max_iter": 3, "tol": None} | parameters
    return LinearClassifier(client=client, **placed(chosen)).fit(*data)


WAYS = {
    "dense": (dense, {"optimizer": "momentum", "batch_size": 200}),
    "by keys": (sparse, {"optimizer": "adagrad", "batch_size": 20}),
    "lbfgs": (dense, {"optimizer": "lbfgs"}),
}


def fails_in_hosts() -> Iterator[subprocess.Popen[Any]]:
    with network(2) as made:
        yield from [host.start(["sleep", "1000"]) for host in made.hosts]
        for host in made.hosts:
            assert host.run(["cat", "/proc/sys/kernel/hostname"]).strip() == host.name
            assert f"inet {host.address}/" in host.run(["ip", "address"])
        one, other = made.hosts
        one.run(["sh", "-c", "echo here > /dev/shm/dps-note"])
        assert (one.files(), other.files()) == (["dps-note"], [])
        raise ZeroDivisionError


def links() -> set[str]:
    """Bridges and cables of this process."""
    said = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True)
    names = {line.split("@")[0].split()[0] for line in said.stdout.splitlines()}
    return {name for name in names if name.startswith(f"dps{os.getpid()}n")}


def test_hosts_have_a_name_and_memory_of_their_own_and_an_error_ends_all() -> None:
    before, started = links(), []
    with pytest.raises(ZeroDivisionError):
        started.extend(fails_in_hosts())
    assert links() == before
    assert [process.returncode for process in started] == [-signal.SIGKILL] * 2


def push_to(server: ParameterServer, number: int) -> list[bool | None]:
    """Push to a server; of each of its shards that is not in this process, whether it is mapped."""
    rng = np.random.default_rng(number)
    for _ in range(20):
        server.push("w", rng.normal(size=101))
        server.push("emb", rng.normal(size=(30, 3)), rng.integers(50, size=30))
        server.add("n", 1.0)
        server.pull("w")
    ways = [way for _, way in sorted(server._requests.accesses.items())]
    return [way._mapped is not None if isinstance(way, RemoteAccess) else None for way in ways]


def test_a_parameter_server_on_two_hosts_has_the_bits_of_one(pair: ClusterOfHosts) -> None:
    options = {
        "tensors": {
            "w": np.ones(101),
            "emb": EmbeddingTable(dim=3, init="normal"),
            "n": np.zeros(7),
        },
        "optimizer": "adam",
    }

    def state(server: ParameterServer) -> list[Any]:
        return [server.pull("w"), server.pull("emb", np.arange(50)), server.pull("n")]

    with ParameterServer(**options) as server:
        for number in range(2):
            push_to(server, number)
        expected = state(server)
    with ParameterServer(**options, n_shards=2, client=pair.client, timeout=20) as server:
        for number, host in enumerate(pair.hosts):
            [worker] = pair.of(host)
            task = pair.client.submit(push_to, server, number, workers=[worker], pure=False)
            assert sorted(task.result(60), key=str) == [False, None]
        found = state(server)
    for here, there in zip(found, expected, strict=True):
        np.testing.assert_array_equal(here, there)
    assert found[2].tolist() == [40.0] * 7


def test_what_is_small_has_one_shard_and_what_is_large_has_one_a_host(
    pair: ClusterOfHosts,
) -> None:
    wide = da.random.default_rng(0).normal(size=(8, 400_000), chunks=(4, -1)).astype("f4")
    labels = da.from_array(np.arange(8) % 2, chunks=4)
    for data, n_shards, why in (
        (dense(), 1, "1 shard (2 hosts, 88 B a step)"),
        (sparse(), 1, "1 shard (2 hosts, "),  # of what a batch touches
        ((wide, labels), 2, "2 shards (2 hosts, 1.53 MiB a step)"),
    ):
        parameters: dict[str, Any] = {"optimizer": "adagrad", "batch_size": 20}
        model = trained(pair.client, data, **parameters)
        assert len(model.plan_.shards) == n_shards
        assert why in str(model.fit_report_)
        assert why in repr(model.plan_)
    for tensors, n_shards in (
        ({"w": np.zeros(10)}, 1),
        ({"w": np.zeros(1_000_000)}, 2),
        ({"rows": EmbeddingTable(dim=64)}, 2),
        ({}, 2),  # which are to come
    ):
        with ParameterServer(tensors, client=pair.client) as server:
            assert len(server.stats()["shards"]) == n_shards


def test_a_server_outlives_each_of_its_hosts() -> None:
    with cluster_of_hosts(2) as cluster:
        client, (one, other) = cluster.client, cluster.hosts
        with ParameterServer(
            {"w": np.zeros(10)}, name="long", n_shards=2, client=client, timeout=20
        ) as server:
            writes = 0
            for host, left in ((one, other), (other, one)):
                where = [(each["worker"], each["mirror"]) for each in server.stats()["shards"]]
                assert len(where) == 2
                assert all({*cluster.of(one), *cluster.of(other)} == {*pair} for pair in where)
                os.kill(cluster.workers[cluster.of(host)[0]].pid, signal.SIGKILL)
                del cluster.workers[cluster.of(host)[0]]
                server.add("w", 1.0)
                writes += 1
                assert {each["worker"] for each in server.stats()["shards"]} == {*cluster.of(left)}
                cluster.add_workers([host])

                def all_mirrored(there: str = cluster.of(host)[0]) -> bool:
                    return all(each["mirror"] == there for each in server.stats()["shards"])

                until(all_mirrored, "each shard has a mirror on the new worker")
            assert server.pull("w").tolist() == [float(writes)] * 10


def test_each_host_sees_what_its_cable_carries(pair: ClusterOfHosts) -> None:
    one, other = pair.hosts
    sent, received = one.sent, other.received
    far = pair.client.submit(np.ones, 1_000_000, workers=pair.of(one), pure=False)
    assert pair.client.submit(np.sum, far, workers=pair.of(other)).result() == 1_000_000
    assert 8_000_000 < one.sent - sent < 9_000_000
    assert 8_000_000 < other.received - received < 9_000_000


@pairs(
    mode=["sync", "allreduce"],
    way=WAYS,
    n_shards=["auto", 2, 3],
)
def test_two_hosts_give_the_bits_of_one(
    mode: str, way: str, n_shards: Any, pair: ClusterOfHosts, client: Client
) -> None:
    data, parameters = WAYS[way]
    two, one = (
        trained(place, data(), mode=mode, n_shards=n_shards, **parameters)
        for place in (pair.client, client)
    )
    assert {pair.workers[rank.worker].host.name for rank in two.plan_.ranks} == {"host0", "host1"}
    plans = [[(r.pieces, r.rows, r.steps) for r in model.plan_.ranks] for model in (two, one)]
    assert plans[0] == plans[1]
    np.testing.assert_array_equal(two.coef_, one.coef_)
    np.testing.assert_array_equal(two.intercept_, one.intercept_)
    assert two.loss_ == one.loss_


def test_a_network_on_two_hosts_has_the_bits_of_one(pair: ClusterOfHosts, client: Client) -> None:
    X, y = dense()
    for mode, n_shards in (("sync", 1), ("sync", 3), ("allreduce", 2)):
        two, one = (
            MLPClassifier(
                mode=mode, client=place, n_replicas=2, max_iter=2, random_state=0,
                **placed({"n_shards": n_shards}),
            ).fit(X, y)
            for place in (pair.client, client)
        )  # fmt: skip
        assert {pair.workers[r.worker].host.name for r in two.plan_.ranks} == {"host0", "host1"}
        for layer, other in zip(two.coefs_, one.coefs_, strict=True):
            np.testing.assert_array_equal(layer, other)
    losses = [
        MLPClassifier(mode=mode, client=pair.client, n_replicas=2, random_state=0).fit(X, y)
        for mode in ("sync", "async")
    ]
    assert losses[0].best_loss_ == pytest.approx(losses[1].best_loss_, rel=0.05)


MACHINES: dict[str, tuple[Any, dict[str, Any]]] = {
    "layers": (dense, {"hidden_layer_sizes": (8,)}),
    "by keys": (sparse, {"average": False, "optimizer": "adagrad"}),
    "a table": (sparse, {"max_embeddings": 6000}),
}


@pytest.mark.parametrize("way", MACHINES)
def test_a_factorization_machine_on_two_hosts_has_the_bits_of_one(
    way: str, pair: ClusterOfHosts, client: Client
) -> None:
    data, parameters = MACHINES[way]
    chosen = {"n_factors": 3, "max_iter": 2, "batch_size": 20, "random_state": 0} | parameters
    modes = [("sync", 1), ("sync", 3)] + ([("allreduce", 2)] if way != "a table" else [])
    made = [
        FMClassifier(
            mode=mode, client=place, n_replicas=2, **placed({**chosen, "n_shards": n_shards})
        ).fit(*data())
        for mode, n_shards in modes
        for place in (pair.client, client)
    ]  # fmt: skip
    assert {pair.workers[r.worker].host.name for r in made[0].plan_.ranks} == {"host0", "host1"}
    for model in made:
        np.testing.assert_array_equal(model.factors_, made[0].factors_)
        np.testing.assert_array_equal(model.coef_, made[0].coef_)
    later = FMClassifier(mode="async", client=pair.client, n_replicas=2, **chosen).fit(*data())
    assert later.loss_ == pytest.approx(made[0].loss_, rel=0.05)


def module(n_features: int, n_outputs: int) -> Any:
    """Make a PyTorch module."""
    from torch import nn

    return nn.Sequential(nn.Linear(n_features, 8), nn.ReLU(), nn.Linear(8, n_outputs))


def test_a_module_of_pytorch_on_two_hosts_has_the_bits_of_one(
    pair: ClusterOfHosts, client: Client
) -> None:
    pytest.importorskip("torch")
    from dps.torch import TorchClassifier

    X, y = dense()
    made = [
        TorchClassifier(
            module, mode=mode, client=place, n_replicas=2, max_iter=2, tol=None, random_state=0,
            **placed({"n_shards": n_shards}),
        ).fit(X, y)
        for mode, n_shards in (("sync", 1), ("sync", 3), ("allreduce", 2))
        for place in (pair.client, client)
    ]  # fmt: skip
    for model in made:
        for one, other in zip(
            model.module_.parameters(), made[0].module_.parameters(), strict=True
        ):
            assert one.equal(other)


@pytest.mark.parametrize("place", ["pair", "crowd"])
def test_a_ring_of_two_hosts_has_the_bits_of_the_direct_way(
    place: str, request: pytest.FixtureRequest
) -> None:
    hosts: ClusterOfHosts = request.getfixturevalue(place)
    data, parameters = WAYS["dense"]
    ring, direct = (
        trained(hosts.client, data(), mode=mode, **{"n_replicas": len(hosts.workers)} | parameters)
        for mode in (AllReduce(algorithm="ring"), AllReduce())
    )
    assert len(ring.plan_.shards) == 2
    np.testing.assert_array_equal(ring.coef_, direct.coef_)
    assert ring.loss_ == direct.loss_


@pytest.mark.parametrize("optimizer", ["sgd", "lbfgs"])
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_learns_on_two_hosts(mode: str, optimizer: str, pair: ClusterOfHosts) -> None:
    X, y = dense()
    model = trained(pair.client, (X, y), mode=mode, optimizer=optimizer, max_iter=10)
    assert model.loss_ < 0.5
    assert model.score(X.compute(), y.compute()) > 0.8
    until(lambda: not any(host.files() for host in pair.hosts), "no file is left")


@pytest.fixture(scope="module")
def crowd() -> Iterator[ClusterOfHosts]:
    """Two hosts with two workers each."""
    with cluster_of_hosts(2, 2) as cluster:
        yield cluster


@pytest.mark.parametrize("mode", ["sync", "async", "allreduce"])
@pytest.mark.parametrize("full", ["64k", "1m"])
def test_hosts_with_little_shared_memory_fall_back_to_streams(full: str, mode: str) -> None:
    """Docker's default is 64 MB; several ranks a host."""

    def remount(size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", "/dev/shm"], check=True)

    with cluster_of_hosts(2, 2) as made:
        made.client.run(remount, full)
        X = np.random.default_rng(0).normal(size=(2000, 20)).astype("f4")
        chunks = da.from_array(X, (250, 20)), da.from_array((X[:, 0] > 0).astype(int), 250)
        model = MLPClassifier(
            (300, 300), max_iter=2, batch_size=500, random_state=0, mode=mode, client=made.client,
            early_stopping=False,
        ).fit(*chunks)  # fmt: skip
        assert model.n_iter_ == 2
        assert {epoch["rows"] for epoch in model.history_} == {2000}


@pytest.mark.parametrize(
    ("mode", "place", "late"),
    [
        ("sync", "pair", 1), ("async", "pair", 1), ("allreduce", "pair", 1),
        ("sync", "crowd", 3), ("allreduce", "crowd", 1),
    ],
)  # fmt: skip
def test_a_slow_rank_is_waited_for_on_every_host(
    mode: str, place: str, late: int, request: pytest.FixtureRequest
) -> None:
    """Its pass takes twice the timeout; there is a shard on each host."""
    hosts: ClusterOfHosts = request.getfixturevalue(place)
    workers = [worker for host in hosts.hosts for worker in sorted(hosts.of(host))]
    configure(timeout=0.8, rebalance=False, n_shards=2)
    model = LinearClassifier(
        mode=mode, client=hosts.client, optimizer="lbfgs", loss=Slow(0.2), tol=None,
        max_iter=1, n_replicas=len(workers),
    )  # fmt: skip
    model.fit(*uneven(hosts.client, workers, late))
    assert model.n_iter_ == 1
    assert sorted(rank.rows for rank in model.plan_.ranks)[-2:] == [50, 400]


@pytest.mark.parametrize("way", WAYS)
def test_hosts_of_several_ranks_give_the_same_bits_on_any_shards_in_both_modes(
    way: str, crowd: ClusterOfHosts
) -> None:
    data, parameters = WAYS[way]
    configure(rebalance=False)
    chosen = parameters | {"n_replicas": 4}
    first, *others = (
        trained(crowd.client, data(8000) if way != "by keys" else data(), mode=mode,
                n_shards=n_shards, **chosen)
        for mode, n_shards in (("sync", "auto"), ("sync", 2), ("sync", 3), ("allreduce", "auto"))
    )  # fmt: skip
    for model in others:
        same = [rank.worker for rank in model.plan_.ranks] == [
            rank.worker for rank in first.plan_.ranks
        ]
        close = np.testing.assert_array_equal if same else np.testing.assert_allclose
        close(model.coef_, first.coef_)
    until(lambda: not any(host.files() for host in crowd.hosts), "no file is left")


@pytest.mark.parametrize("way", ["dense", "by keys"])
@pytest.mark.parametrize("place", ["pair", "crowd"])
def test_local_steps_on_two_hosts_are_the_same_on_any_shards(
    place: str, way: str, request: pytest.FixtureRequest
) -> None:
    hosts: ClusterOfHosts = request.getfixturevalue(place)
    data, parameters = WAYS[way]
    configure(rebalance=False)
    chosen = parameters | {"n_replicas": len(hosts.workers)}
    one, other = (
        trained(hosts.client, data(), mode=AllReduce(period=4), n_shards=n_shards, **chosen)
        for n_shards in (1, 3)
    )
    np.testing.assert_array_equal(one.coef_, other.coef_)
    assert one.loss_ == other.loss_


@pytest.mark.parametrize("way", ["dense", "by keys"])
def test_backups_on_crowded_hosts_account_for_every_row(way: str, crowd: ClusterOfHosts) -> None:
    data, parameters = WAYS[way]
    mode = Sync(backups=1, late_gradients="add")
    model = trained(crowd.client, data(), mode=mode, n_shards=2, n_replicas=4, **parameters)
    for record in model.history_:
        assert record["rows"] + record["rows_dropped"] == model.plan_.rows
    until(lambda: not any(host.files() for host in crowd.hosts), "no file is left")


def test_bytes_between_hosts_go_by_the_period(pair: ClusterOfHosts) -> None:
    rng = np.random.default_rng(0)
    X = da.random.default_rng(0).normal(size=(640, 20_000), chunks=(320, -1))
    y = da.from_array(rng.integers(0, 2, 640), chunks=320)
    placed = tuple(pair.client.persist([X, y]))
    sent = []
    configure(rebalance=False)
    for period in (1, 16):
        before = np.array([host.sent for host in pair.hosts])
        trained(
            pair.client, placed, mode=AllReduce(period=period), optimizer="sgd", batch_size=10,
            max_iter=4, n_shards=2, shuffle=False,
        )  # fmt: skip
        sent.append(np.array([host.sent for host in pair.hosts]) - before)
    # Half of a gradient goes to the other host, and half of the mean that is made here.
    spared = 4 * (64 - 4) * 20_000 * 8
    np.testing.assert_allclose(sent[0] - sent[1], spared, rtol=0.05)


@pytest.mark.parametrize("number", [0, 3])
def test_ranks_that_sum_on_their_host_go_on_without_one(
    number: int, crowd: ClusterOfHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits_end_when_told(monkeypatch)
    address = sorted(crowd.workers)[number]
    worker = crowd.workers.pop(address)
    before = training(crowd.client)
    fit = endless(crowd.client, "sync")
    until(lambda: training(crowd.client) - before, "it trains")
    os.kill(worker.pid, signal.SIGKILL)
    until(lambda: fit.recoveries, "it is begun again")
    fit.end(losses=1)
    assert address in fit.recoveries[0].what
    until(lambda: address not in crowd.client.nthreads(), "Dask knows")
    crowd.add_workers([worker.host])


def events(client: Client, kind: str) -> list[Any]:
    """Events of fits."""
    return [event for _, event in client.get_events("dps") if event["kind"] == kind]


def training(client: Client) -> set[str]:
    """The fits that have closed an epoch."""
    return {event["fit"] for event in events(client, "epochs")}


def left_of(fit: str, cluster: ClusterOfHosts) -> list[str]:
    """Files of a fit, its Actors and what runs of it, on all hosts."""

    def running(dask_worker: Any) -> list[str]:
        state = dask_worker.state
        over = ("released", "forgotten")
        tasks = [str(task.key) for task in state.tasks.values() if task.state not in over]
        return [*map(str, state.actors), *tasks]

    found = [name for host in cluster.hosts for name in host.files()]
    found += [key for keys in cluster.client.run(running).values() for key in keys]
    return [name for name in found if fit in name]


@pytest.fixture(scope="module")
def abandoned() -> Iterator[dict[str, list[str]]]:
    """By mode, what is left of a fit 30 seconds after its client was killed, or earlier."""
    with cluster_of_hosts(2) as cluster:
        command = [sys.executable, "-c", ENDLESS, cluster.client.scheduler.address]
        quiet = subprocess.DEVNULL
        clients = [subprocess.Popen([*command, mode], stderr=quiet) for mode in MODES]
        try:
            until(lambda: len(training(cluster.client)) == len(MODES), "all fits train")
        finally:
            for process in clients:
                process.kill()
                process.wait()
        fits = {event["mode"]: event["fit"] for event in events(cluster.client, "started")}

        def left() -> dict[str, list[str]]:
            return {mode: left_of(fit, cluster) for mode, fit in fits.items()}

        deadline = time.monotonic() + 30.0
        while any(left().values()) and time.monotonic() < deadline:
            threading.Event().wait(0.1)
        yield left()


@pytest.mark.parametrize("mode", MODES)
def test_a_killed_client_leaves_nothing_on_any_host(
    mode: str, abandoned: dict[str, list[str]]
) -> None:
    assert abandoned[mode] == []


def endless(client: Client, mode: str) -> EndlessFit:
    """A fit that has begun."""
    made = LinearClassifier(client=client, mode=mode, optimizer="sgd", random_state=0)
    fit = EndlessFit(made, *dense())
    fit.start()
    return fit


@pytest.mark.parametrize("number", [0, 1])
def test_fits_across_hosts_go_on_when_a_worker_is_killed(
    number: int, pair: ClusterOfHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits_end_when_told(monkeypatch)
    address = pair.of(pair.hosts[number])[0]
    worker = pair.workers.pop(address)
    before = training(pair.client)
    fits = [endless(pair.client, mode) for mode in MODES]
    until(lambda: len(training(pair.client) - before) == len(fits), "all fits train")
    os.kill(worker.pid, signal.SIGKILL)
    for fit in fits:
        until(lambda fit=fit: fit.recoveries, "it is begun again")  # type: ignore[misc]
        fit.end(losses=1)
        assert address in fit.recoveries[0].what
    until(lambda: address not in pair.client.nthreads(), "Dask knows")
    pair.add_workers([worker.host])


def connecting(dask_scheduler: Any) -> int:
    """Number of workers that the scheduler tries to reach."""
    return len(dask_scheduler.rpc._connecting)


def threads(worker: Any) -> int:
    """Number of threads of a worker's process."""
    return psutil.Process(worker.pid).num_threads()


@pytest.mark.parametrize("number", [0, 1])
def test_fits_go_on_without_a_host_that_is_cut_off_which_stops_by_itself(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before Dask takes its workers for lost, and while others find it reachable still."""
    fits_end_when_told(monkeypatch)
    with cluster_of_hosts(2) as made:
        host, client = made.hosts[number], made.client
        [address] = made.of(host)
        idle = threads(made.workers[address])
        fits = [endless(client, mode) for mode in MODES]
        until(lambda: len(training(client)) == len(fits), "all fits train")
        host.cut()
        began = time.monotonic()
        for fit in fits:
            until(lambda fit=fit: fit.recoveries, "it is begun again")  # type: ignore[misc]
        assert time.monotonic() - began < 15
        assert address in client.nthreads()
        until(lambda: threads(made.workers[address]) <= idle + 3, "no one is served there")
        for fit in fits:
            fit.end(losses=1)
            assert address in fit.recoveries[0].what
        host.mend()
        until(lambda: not host.files() or address not in client.nthreads(), "its shards end")
        # Dask's scheduler fails to close while it still tries to reach the host.
        until(lambda: not client.run_on_scheduler(connecting), "it is reached, or given up")


@pytest.mark.parametrize("mode", MODES)
def test_ctrl_c_counts_though_a_host_is_cut_off(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster_of_hosts(2) as made:
        fetch, struck, main = Watcher._fetch, [], threading.get_ident()

        def fetched(self: Watcher) -> bool:
            ends = fetch(self)
            if self.progress.closed >= 3 and not struck:
                struck.append(time.monotonic())
                made.hosts[1].cut()
                signal.pthread_kill(main, signal.SIGINT)
            return ends

        monkeypatch.setattr(Watcher, "_fetch", fetched)
        model = LinearClassifier(
            client=made.client, mode=mode, optimizer="adam", n_replicas=2, max_iter=10**6, tol=None
        )
        with pytest.raises(KeyboardInterrupt):
            model.fit(*dense())
        assert time.monotonic() - struck[0] < 20.0  # twice as long as on a machine of its own
        assert 3 <= model.n_iter_ == len(model.history_) < 10**6
        made.hosts[1].mend()
        assert model.score(*dense()) > 0.6
        until(lambda: not made.client.run_on_scheduler(connecting), "it is reached, or given up")


def test_a_ring_goes_round_where_connections_have_no_socket() -> None:
    with cluster_of_hosts(2, protocol="ws") as made:
        configure(timeout=6.0)
        found = [
            trained(
                made.client, dense(), optimizer="momentum", batch_size=800,
                mode=AllReduce(algorithm=algorithm),
            ).coef_
            for algorithm in ("ring", "direct")
        ]  # fmt: skip
        np.testing.assert_allclose(*found, rtol=1e-12)
