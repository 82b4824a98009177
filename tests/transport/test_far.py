"""Ranks that reach a shard by a stream, and how they connect."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import dask
import numpy as np
import pytest
from conditions import until
from configure import configure
from distributed import Client, LocalCluster, get_worker
from distributed.security import Security

import dps
from dps._runtime.modes.synchronous import SynchronousChannel, SynchronousStep
from dps._runtime.shared.activity import Activity
from dps._runtime.step import Step
from dps.cluster.dask import fit as cluster, work
from dps.cluster.dask.shard import FitShard
from dps.errors import FencedError, ServerLostError
from dps.losses import LogLoss
from dps.optimizers import SGD
from dps.optimizers.update import Update
from dps.server.group import operations
from dps.server.group.operations import Access
from dps.server.group.window import Window, WindowSpec
from dps.server.shard import Initial, ShardSpec
from dps.server.store.store import Store, StoreSpec
from dps.transport import connect, far as far_links
from dps.transport.far import FarLink
from dps.transport.remote import Remote
from dps.transport.wires import connected

SIZE = 20_000  # some pieces of a socket's


def cluster_of(**options: Any) -> LocalCluster:
    options = {"n_workers": 2, "threads_per_worker": 2, **options}
    return LocalCluster(dashboard_address=":0", **options)


class Shard:
    """A shard on one worker of a cluster, and calls of ranks on the other."""

    def __init__(self, client: Client, n_ranks: int = 1, name: str = "shard") -> None:
        store = StoreSpec("f00d", 0, SIZE, "float64")
        update = Update(SGD(), 0.0, 0.0, ((0, SIZE, False),))
        window = WindowSpec("f00d", n_ranks, store, 16)
        initial = Initial(SIZE, "float64", (0.0,))
        spec = ShardSpec(window, initial, SynchronousChannel, 30.0, 0, update)
        self.client = client
        self.home, self.far = sorted(client.nthreads())
        self.actor = client.submit(FitShard, spec, actor=True, workers=self.home, key=name)
        self.actor.result(timeout=30)
        self.remote = Remote(self.home, name, client)
        self.remote.call("open", timeout=10)

    def start(self, function: Callable[..., Any], *args: Any) -> Any:
        return self.client.submit(function, self.remote, *args, workers=self.far, pure=False)

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return self.start(function, *args).result(timeout=30)

    def close(self) -> None:
        self.remote.call("close", timeout=10)
        self.actor.release()


@pytest.fixture
def shard(client: Client) -> Iterator[Shard]:
    shard = Shard(client)
    yield shard
    shard.close()
    until(lambda: not found(client), "everything is given back")


def found(client: Client) -> list[str]:
    """Handlers and threads of dps on the workers."""

    def names(dask_worker: Any) -> list[str]:
        threads = [thread.name for thread in threading.enumerate()]
        return [name for name in [*dask_worker.handlers, *threads] if name.startswith("dps-")]

    answers = client.run(names, on_error="ignore")  # a worker may be dying
    return [name for some in answers.values() if isinstance(some, list) for name in some]


def link(remote: Remote, rank: int = 0, timeout: float = 30.0) -> FarLink:
    card = remote.call("card", timeout=10)
    link = FarLink(card, remote, rank, 1, timeout)
    link.claim()
    return link


def step_of(*links: FarLink, rank: int = 0) -> Step:
    """The steps of a rank, whose vector is as long as the vectors of all shards together."""
    activity = Activity([link.counts for link in links])
    ends = [
        link.channel(SynchronousChannel, number, SIZE * number, activity)
        for number, link in enumerate(links)
    ]
    params = np.zeros(SIZE * len(links))
    return SynchronousStep(rank, ends, params, np.empty_like(params), 0, activity)


def refused(remote: Remote) -> list[Any]:
    way = link(remote)
    step = step_of(way)
    endings = [step.push_gradient(np.full(SIZE, value), 1, 0.5) for value in (np.nan, 1.0)]
    with pytest.raises(ValueError, match="64 values at most"):
        way.call(operations.reduce, 1, [0.0] * 65)
    with pytest.raises(RuntimeError, match="Unknown: cannot travel"):
        way.call(unknown)
    endings.append(step.push_gradient(np.ones(SIZE), 1, 0.5))
    version = way.call(operations.version)
    way.close()
    return [*endings, version]


class Unknown(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("it stays here")


def unknown(access: Access) -> None:
    raise Unknown("cannot travel")


def test_an_error_leaves_the_connection_in_use(shard: Shard) -> None:
    assert shard.run(refused) == ["gradient", "ran", "ran", 3]


def strangers(remote: Remote) -> None:
    way = link(remote)
    with pytest.raises(FencedError, match="started twice"):
        link(remote)
    name = remote.call("admit", nothing, 0, timeout=10)
    for fence, reason in ((2, "attempt 2 refused"), (1, "second connection")):
        who = (0, fence), lambda: None, ServerLostError, 10
        with pytest.raises(FencedError, match=reason):
            remote.submit(connected(remote, name, *who)).result(10)
        with pytest.raises(ServerLostError, match="released"):
            remote.submit(connected(remote, "dps-shard-of-yesterday", *who)).result(10)
    assert way.call(operations.version) == 0
    way.close()


def nothing(access: Access) -> None:
    """An operation."""


def test_only_the_attempt_that_owns_the_rank_is_let_in_and_once(shard: Shard) -> None:
    shard.run(strangers)


def on_both(remote: Remote, other: Remote) -> list[str]:
    ways = [[link(each, rank) for each in (remote, other)] for rank in (0, 1)]
    endings: list[str] = []
    first = threading.Thread(
        target=lambda: endings.append(step_of(*ways[0]).push_gradient(np.ones(2 * SIZE), 1, 0.5))
    )
    first.start()
    arrived: list[tuple[int, ...]] = []
    while arrived != [(1, 0), (1, 0)]:
        arrived = [each.call("status", 0, timeout=10).steps for each in (remote, other)]
    endings.append(step_of(*ways[1], rank=1).push_gradient(np.ones(2 * SIZE), 1, 0.5))
    first.join()
    for way in [*ways[0], *ways[1]]:
        way.close()
    return endings


def test_who_comes_when_the_shard_has_closed_is_refused_and_leaves_nothing(shard: Shard) -> None:
    shard.remote.call("close", timeout=10)
    with pytest.raises(FencedError, match="no group is at work on this shard"):
        shard.remote.call("admit", nothing, 0, timeout=10)

    def handlers(dask_worker: Any) -> list[str]:
        return [name for name in dask_worker.handlers if name.startswith("dps-")]

    assert not any(shard.client.run(handlers).values())


def windows(dask_worker: Any) -> int:
    import gc

    gc.collect()
    return sum(isinstance(thing, (Window, Store)) for thing in gc.get_objects())


def test_a_fit_over_streams_leaves_no_memory_on_workers(client: Client) -> None:
    X = np.random.default_rng(0).random((400, 3))
    mode = dps.Sync(access="stream")
    configure(n_shards=2)
    dps.LinearClassifier(client=client, mode=mode, max_iter=2, tol=None).fit(X, X.sum(axis=1) > 1.5)
    until(lambda: not any(client.run(windows).values()), "no window is left")


def test_a_step_is_under_way_on_all_shards_at_once(client: Client) -> None:
    shards = [Shard(client, n_ranks=2, name=name) for name in ("first", "second")]
    assert shards[0].run(on_both, shards[1].remote) == ["ran", "ran"]
    for shard in shards:
        shard.close()
    until(lambda: not found(client), "everything is given back")


def alone_at_a_barrier(remote: Remote, timeout: float) -> BaseException | None:
    """The fate of a rank that waits for another, which never comes."""
    way = link(remote, timeout=timeout)
    step = step_of(way)
    get_worker().log_event("dps-test", "waiting")
    try:
        step.push_gradient(np.ones(SIZE), 1, 0.5)
    except dps.errors.DPSError as error:
        return error
    finally:
        way.close()
    return None


def waiting(client: Client) -> bool:
    return len(client.get_events("dps-test")) > 0


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_a_shard_that_is_lost_in_the_middle_of_a_call_is_an_error(way: int) -> None:
    with cluster_of() as cluster, Client(cluster, set_as_default=False) as client:
        shard = Shard(client, n_ranks=2)
        pid = client.run(os.getpid)[shard.home]
        call = shard.start(alone_at_a_barrier, 2.0)
        until(lambda: waiting(client), "a rank waits")
        os.kill(pid, way)
        try:
            error = call.result(timeout=15)
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert isinstance(error, ServerLostError)
        assert error.worker == shard.home
        assert shard.remote.key in str(error)
        until(lambda: shard.home not in client.nthreads(), "the death is known")
        until(lambda: not found(client), "the connection is closed")


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_rank_that_is_killed_leaves_no_connection() -> None:
    with cluster_of() as cluster, Client(cluster, set_as_default=False) as client:
        shard = Shard(client, n_ranks=2)
        pid = client.run(os.getpid)[shard.far]
        shard.start(alone_at_a_barrier, 30.0)
        until(lambda: waiting(client), "a rank waits")
        assert len(found(client)) == 2  # the handler, and a thread
        os.kill(pid, signal.SIGKILL)
        shard.remote.call("close", timeout=10)
        until(lambda: not found(client), "everything is given back")


def test_a_shard_that_nobody_closes_goes_with_its_client() -> None:
    with cluster_of() as cluster, Client(cluster, set_as_default=False) as watching:
        with Client(cluster, set_as_default=False) as client:
            shard = Shard(client)
            shard.run(pull_and_leave_open)
            assert len(found(watching)) == 2
            del shard
        until(lambda: not found(watching), "everything is given back")


_left_open = []


def pull_and_leave_open(remote: Remote) -> None:
    way = link(remote)
    way.call(operations.version)
    _left_open.append(way)


def trained(client: Client | None, mode: Any) -> Any:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 7))
    model = dps.LinearClassifier(
        mode=mode, client=client, n_replicas=2, max_iter=3, tol=None, random_state=0,
        learning_rate=0.05, shuffle=False,
    )  # fmt: skip
    return model.fit(X, (X.sum(axis=1) > 0).astype(int)).coef_


def test_a_kind_of_comm_without_a_stream_is_served_by_actor_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wires: list[str] = []
    made = FarLink._made

    def noting(self: FarLink, *args: Any) -> Any:
        wires.append(type(self._wire).__name__)
        return made(self, *args)

    monkeypatch.setattr(far_links.FarLink, "_made", noting)
    with (
        cluster_of(processes=False) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        coef = trained(client, dps.Sync(access="stream"))
        assert set(wires) == {"ObjectWire"}
        assert np.array_equal(coef, trained(client, dps.Sync()))
        until(lambda: not found(client), "everything is given back")


def secured(remote: Remote) -> str:
    way = link(remote)
    kind = type(way._wire.over).__name__
    step = step_of(way)
    assert [step.push_gradient(np.ones(SIZE), 1, 0.5) for _ in range(9)] == ["ran"] * 9
    assert way.call(operations.version) == 9
    way.close()
    return kind


def test_connections_are_as_secure_as_the_cluster() -> None:
    pytest.importorskip("cryptography")
    security = Security.temporary()
    with (
        cluster_of(security=security) as cluster,
        Client(cluster, security=security, set_as_default=False) as client,
    ):
        shard = Shard(client)
        assert shard.run(secured) == "_Secured"
        assert shard.home.startswith("tls://")
        shard.close()
        coef = trained(client, dps.Sync(access="stream"))
        assert np.array_equal(coef, trained(client, dps.Sync(access="mapped")))
        until(lambda: not found(client), "everything is given back")


@pytest.mark.parametrize("mode", ["sync", "allreduce"])
def test_initial_values_go_to_the_worker_and_not_to_the_scheduler(
    mode: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []

    def noted(function: Any) -> Any:
        made = original(function)
        if getattr(function, "func", None) is FitShard:
            given.append(len(pickle.dumps(made)))
        return made

    original = work.sealed
    monkeypatch.setattr(work, "sealed", noted)
    monkeypatch.setattr(cluster, "_PIECE_BYTES", 10_000)  # some pieces, the last one short
    X = np.random.default_rng(0).normal(size=(50, 9001))
    y = X[:, 0] > 0
    far, near = (
        dps.LinearClassifier(
            client=where, mode=mode, n_replicas=1, optimizer="adagrad", random_state=0
        )
        for where in (client, None)
    )
    for _ in range(3):
        far.partial_fit(X, y, classes=[False, True])
        near.partial_fit(X, y, classes=[False, True])
    np.testing.assert_array_equal(far.coef_, near.coef_)
    assert len(given) == 3
    assert max(given) < min(given) + 1000 < 10_000


def test_a_long_part_that_all_replicas_have_in_common_is_in_no_graph(client: Client) -> None:
    @dataclass(frozen=True)
    class Heavy(LogLoss):
        kept: Any = field(default_factory=lambda: np.zeros(1 << 17), compare=False)

    X = np.random.default_rng(0).normal(size=(400, 3))
    model = dps.LinearClassifier(
        loss=Heavy(), optimizer="sgd", n_replicas=4, max_iter=1, tol=None, client=client
    )
    with (
        dask.config.set({"distributed.admin.large-graph-warning-threshold": "500kB"}),
        warnings.catch_warnings(record=True) as said,
    ):
        warnings.simplefilter("always")
        model.fit(X, X[:, 0] > 0)
    assert len(model.plan_.ranks) == 4
    # That is to look at the data.
    assert sum("Sending large graph" in str(each.message) for each in said) == 1


N_SHARDS = 5


class Connecting:
    """A link that has the rank once the others, but for the first shard's, are asked as well."""

    def __init__(self, window: Any, rank: int, *_: Any) -> None:
        self._shards, self._number = window
        self._shards.links.append(self)
        self.claimed = self.closed = False

    def claim(self) -> None:
        assert (self._number == 0) == (not self._shards.links[0].claimed)
        if self._number:
            self._shards.all_asked.wait(10)
        if self._number == self._shards.taken:
            raise FencedError("another attempt has it", rank=0)
        self.claimed = True

    def close(self) -> None:
        self.closed = True


def shards(monkeypatch: pytest.MonkeyPatch, taken: int | None = None) -> Any:
    made = SimpleNamespace(links=[], taken=taken, all_asked=threading.Barrier(N_SHARDS - 1))
    module = sys.modules["dps.transport.connect"]
    monkeypatch.setattr(module, "MappedLink", Connecting)
    monkeypatch.setattr(module, "map_window", lambda card: (made, card))
    made.session = SimpleNamespace(
        shards=[SimpleNamespace(card=number, endpoint=None) for number in range(N_SHARDS)],
        server=SimpleNamespace(timeout=1.0, silence=1.0),
    )
    return made


def test_a_rank_connects_to_its_shards_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = shards(monkeypatch)
    links = connect(made.session, 0, 1, access="auto")
    assert links == made.links
    assert all(link.claimed for link in made.links)


@pytest.mark.parametrize("taken", [0, 3])
def test_all_connections_are_closed_where_a_shard_refuses(
    taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = shards(monkeypatch, taken)
    with pytest.raises(FencedError):
        connect(made.session, 0, 1, access="auto")
    assert len(made.links) == N_SHARDS
    assert all(link.closed for link in made.links)
    assert taken or not any(link.claimed for link in made.links)
