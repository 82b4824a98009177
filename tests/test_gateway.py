"""The gateway's connections: refusals, repeated messages, odd arrays, and how they end."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster, get_worker
from distributed.security import Security

import dps
from dps.errors import FencedError, NonFiniteError, ServerLostError
from dps.modes import asynchronous, synchronous
from dps.optimizers import SGD
from dps.optimizers.update import Update
from dps.server import operations
from dps.server.gateway import Connection
from dps.server.links import GatewayLink
from dps.server.operations import claim
from dps.server.remote import Remote
from dps.server.shard import ParameterShard, ShardSpec
from dps.server.window import WindowSpec

SIZE = 20_000  # an answer's memory is used again


def cluster_of(**options: Any) -> LocalCluster:
    options = {"n_workers": 2, "threads_per_worker": 2, **options}
    return LocalCluster(dashboard_address=":0", **options)


class Shard:
    """A shard on one worker of a cluster, and calls of ranks on the other."""

    def __init__(self, client: Client, n_ranks: int = 1, name: str = "shard") -> None:
        window = WindowSpec("f00d", 0, n_ranks, SIZE, "float64", 0, True, 16, "digest")
        update = Update(SGD(), 0.0, 0.0, ((0, SIZE, False),))
        spec = ShardSpec(window, update, np.zeros(SIZE), np.empty((0, SIZE)), 0, False, 30.0)
        self.client = client
        self.home, self.far = sorted(client.nthreads())
        self.actor = client.submit(ParameterShard, spec, actor=True, workers=self.home, key=name)
        self.actor.result(timeout=30)
        self.remote = Remote(self.home, name, client)

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


def until(condition: Callable[[], Any], what: str, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain: {what}"
        threading.Event().wait(0.02)


def found(client: Client) -> list[str]:
    """Handlers and connections of dps on the workers."""

    def names(dask_worker: Any) -> list[str]:
        return [*dask_worker.handlers, *map(str, dask_worker._comms.values())]

    answers = client.run(names, on_error="ignore")  # a worker may be dying
    return [name for some in answers.values() for name in some if name.startswith("dps-")]


def link(remote: Remote, rank: int = 0, timeout: float = 30.0) -> GatewayLink:
    link = GatewayLink(remote, rank, 1, timeout)
    link.claim()
    assert link._connection is not None
    return link


def pushes(remote: Remote, update: Any, gradients: list[Any], *rest: Any) -> list[Any]:
    """The parameters after each of some pushes of (sequence, gradient)."""
    way = link(remote)
    answers = []
    for sequence, gradient in gradients:
        answer = way.run(update, sequence, gradient, 1, *rest)
        answers.append(np.array(answer[0] if isinstance(answer, tuple) else answer))
    way.close()
    return answers


@pytest.mark.parametrize(
    ("update", "rest"),
    [(synchronous.update, (1, 0.5)), (asynchronous.update, (0.5,))],
    ids=["sync", "async"],
)
def test_a_message_that_comes_twice_is_applied_once(shard: Shard, update: Any, rest: Any) -> None:
    gradient = np.arange(float(SIZE))
    twice = [(1, gradient), (1, gradient), (2, gradient), (1, gradient)]
    first, again, second, late = shard.run(pushes, update, twice, *rest)
    assert np.array_equal(first, -0.5 * gradient)
    assert np.array_equal(again, first)
    assert np.array_equal(second, -gradient)
    assert np.array_equal(late, second)


def odd_arrays(remote: Remote) -> list[Any]:
    """Unaligned, read-only, strided, of another dtype: each is a gradient of ones."""
    unaligned = np.frombuffer(b"\0" + np.ones(SIZE).tobytes(), offset=1)
    assert not unaligned.flags.aligned
    frozen = np.ones(SIZE)
    frozen.flags.writeable = False
    odd = [unaligned, frozen, np.ones(2 * SIZE)[::2], np.ones(SIZE, np.float32)]
    return pushes(remote, synchronous.update, list(enumerate(odd, 1)), 1, 0.5)


def test_gradients_may_be_laid_out_in_any_way(shard: Shard) -> None:
    answers = shard.run(odd_arrays)
    for step, params in enumerate(answers, 1):
        assert np.array_equal(params, np.full(SIZE, -0.5 * step))


def refused(remote: Remote) -> list[float]:
    way = link(remote)
    with pytest.raises(NonFiniteError, match="NaN or infinite"):
        way.run(synchronous.update, 1, np.full(SIZE, np.nan), 1, 1, 0.5)
    with pytest.raises(ValueError, match="64 values at most"):
        way.run(operations.reduce, 1, [0.0] * 65)
    params = way.run(synchronous.update, 1, np.ones(SIZE), 1, 1, 0.5)
    way.close()
    return [params.min(), params.max()]


def test_an_error_in_an_operation_leaves_the_connection_in_use(shard: Shard) -> None:
    assert shard.run(refused) == [-0.5, -0.5]


def strangers(remote: Remote) -> None:
    name = remote.call("admit", claim, 0, 1, timeout=10)
    with pytest.raises(FencedError, match="attempt 2 refused"):
        Connection.open(remote, name, 0, 2, 10)
    connection = Connection.open(remote, name, 0, 1, 10)
    with pytest.raises(FencedError, match="second connection"):
        Connection.open(remote, name, 0, 1, 10)
    assert connection is not None
    (_, version), _ = connection.start(operations.pull).result(10)
    assert version == 0
    with pytest.raises(ServerLostError, match="released"):
        Connection.open(remote, "dps-gateway-of-yesterday", 0, 1, 10)
    connection.close()


def test_only_the_attempt_that_owns_the_rank_is_let_in_and_once(shard: Shard) -> None:
    shard.run(strangers)


def on_both(remote: Remote, other: Remote) -> list[float]:
    ways = [link(remote), link(other)]
    for way in ways:
        way.start(synchronous.update, 1, np.ones(SIZE), 1, 1, 0.5)
    arrived: list[tuple[int, ...]] = []
    while arrived != [(1, 0), (1, 0)]:
        arrived = [each.call("status", 0, timeout=10).steps for each in (remote, other)]
    other_ranks = [link(each, rank=1) for each in (remote, other)]
    for way in other_ranks:
        way.run(synchronous.update, 1, np.ones(SIZE), 1, 1, 0.5)
    results = [float(way.finish().sum()) for way in ways]
    for way in [*ways, *other_ranks]:
        way.close()
    return results


def test_a_step_is_under_way_on_all_shards_at_once(client: Client) -> None:
    shards = [Shard(client, n_ranks=2, name=name) for name in ("first", "second")]
    assert shards[0].run(on_both, shards[1].remote) == [-0.5 * SIZE] * 2
    for shard in shards:
        shard.close()
    until(lambda: not found(client), "everything is given back")


def alone_at_a_barrier(remote: Remote, timeout: float) -> BaseException | None:
    """What becomes of a rank that waits for another, which never comes."""
    way = link(remote, timeout=timeout)
    way.start(synchronous.update, 1, np.ones(SIZE), 1, 1, 0.5)
    get_worker().log_event("dps-test", "waiting")
    try:
        way.finish()
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
        assert len(found(client)) == 2  # the handler, and one that is at work
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
    way.run(operations.pull)
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
    opened = []
    open_ = Connection.open

    def noting(*args: Any) -> Any:
        opened.append(open_(*args))
        return opened[-1]

    monkeypatch.setattr(Connection, "open", noting)
    with (
        cluster_of(processes=False) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        coef = trained(client, dps.Sync(access="gateway"))
        assert opened == [None, None]
        assert np.array_equal(coef, trained(client, dps.Sync()))
        until(lambda: not found(client), "everything is given back")


def peer(remote: Remote) -> str:
    way = link(remote)
    assert way._connection is not None
    address: str = way._connection._comm.peer_address
    params, _ = way.run(operations.pull)
    assert not params.any()
    way.close()
    return address


def test_connections_are_as_secure_as_the_cluster() -> None:
    pytest.importorskip("cryptography")
    security = Security.temporary()
    with (
        cluster_of(security=security) as cluster,
        Client(cluster, security=security, set_as_default=False) as client,
    ):
        shard = Shard(client)
        assert shard.run(peer) == shard.home
        assert shard.home.startswith("tls://")
        shard.close()
        coef = trained(client, dps.Sync(access="gateway"))
        assert np.array_equal(coef, trained(client, dps.Sync(access="mapped")))
        until(lambda: not found(client), "everything is given back")
