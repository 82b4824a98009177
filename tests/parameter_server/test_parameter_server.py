"""Parameter servers: promises to many users at once."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import itertools
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import distributed
import numpy as np
import psutil
import pytest
from conditions import until
from distributed import Client, LocalCluster
from groups import Group
from local import local_client

import dps
from dps._runtime.tensors.part import TensorPart
from dps._runtime.wire.message import Ending, Op
from dps._runtime.wire.service import Service
from dps._runtime.wire.wire import SocketWire
from dps.errors import (
    ClusterError,
    FencedError,
    NonFiniteError,
    ServerLostError,
    StalledError,
    TableFullError,
)
from dps.files import directories
from dps.files.directories import read_directory, write_directory
from dps.modes import Async
from dps.optimizers import SGD, Adagrad, Adam, Constant, Momentum, Optimizer
from dps.optimizers.names import get_optimizer
from dps.optimizers.update import Rates
from dps.parameter_server.client import access
from dps.parameter_server.client.access import RemoteAccess
from dps.parameter_server.shard.layout import ServerSpec, TensorSpec
from dps.parameter_server.shard.state import TensorShardState
from dps.server.memory.files import folder
from dps.transport import wires
from dps.transport.call import Mailbox
from dps.transport.wires import connected

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["this process", "mapped", "stream", "calls"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Options of a server that is reached in that way."""
    if request.param == "this process":
        yield {}
        return
    client = request.getfixturevalue("client")
    if request.param != "mapped":
        monkeypatch.setattr(access, "map_parts", lambda *args: None)
    if request.param == "calls":
        monkeypatch.setattr(wires, "can_be_taken_over", lambda comm: False)
    yield {"client": client}


def twin(optimizer: Optimizer, params: np.ndarray, pushes: Any, rate: float) -> np.ndarray:
    """The twin of pushes to a tensor: the optimizer on the rows that each of them touches."""
    params = params.copy()
    state = np.zeros((optimizer.state_rows, *params.shape), params.dtype)
    optimizer.initialize(state)
    for step, (keys, gradient) in enumerate(pushes, 1):
        for key, given in zip(keys, gradient, strict=True):
            row = state[:, key].copy()
            optimizer.update(params[key], given, row, step=step, lr=rate, l1=0.0, l2=0.0)
            state[:, key] = row
    return params


@pytest.mark.parametrize("n_shards", [1, 3])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adagrad", "adam"])
def test_pushes_are_the_optimizer_s_updates_on_any_number_of_shards(
    optimizer: str, n_shards: int
) -> None:
    rng = np.random.default_rng(0)
    first = rng.normal(size=(7, 4))
    pushes = []
    for number in range(12):
        rows = np.arange(7) if number % 3 == 0 else rng.permutation(7)[:3]
        pushes.append((rows, rng.normal(size=(len(rows), 4))))
    made = get_optimizer(optimizer)
    with dps.ParameterServer(
        {"w": first, "other": np.zeros(2)}, optimizer=optimizer, learning_rate=0.1,
        n_shards=n_shards,
    ) as server:  # fmt: skip
        for rows, gradient in pushes:
            whole = len(rows) == 7
            server.push("w", gradient * 8, None if whole else rows, rows=8)
        found, versions = server.pull("w"), server.versions
    expected = twin(made, first, pushes, 0.1)
    np.testing.assert_array_equal(found, expected)
    assert versions == {"w": 12, "other": 0}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("optimizer", [SGD(), Adagrad(), Adam(lazy=True)])
def test_the_same_pushes_by_keys_give_equal_bits_in_a_fit_and_on_a_server(
    optimizer: Optimizer, dtype: str
) -> None:
    rng, rate, steps = np.random.default_rng(0), 0.1, 20
    first = rng.normal(size=(30, 4)).astype(dtype)
    pushes = [(rng.permutation(30)[: rng.integers(1, 30)], number + 1) for number in range(steps)]
    gradients = [rng.normal(size=(len(keys), 4)).astype(dtype) for keys, _ in pushes]
    keyed = Rates(Constant(rate), steps, 0, 0, 1, width=4)
    options: Any = {"optimizer": optimizer, "keyed": keyed, "dtype": dtype, "rate": rate}
    with Group(Async(), 1, first.size, n_shards=2, **options) as group:
        for shard, window in enumerate(group.windows):
            optimizer.initialize(window.store.state)
            window.store.params[:] = group.placement.take(shard, first.reshape(1, -1))[0]
        step = group.channels[0].step
        step.begin_epoch(0)
        for (keys, rows), gradient in zip(pushes, gradients, strict=True):
            step.keys.begin()
            step.keys.add(keys.tolist())
            assert step.pull_touched() == "ran"
            values = np.zeros(first.size, dtype)
            values[: gradient.size] = gradient.ravel()
            assert step.push_gradient(values, rows, rate) == "ran"
            assert step.wait_for_answers() == "ran"
        fitted = np.empty((1, first.size), dtype)
        for shard, window in enumerate(group.windows):
            group.placement.put(shard, window.store.params[None], fitted)
    with dps.ParameterServer(
        {"w": first}, optimizer=optimizer, learning_rate=rate, n_shards=3
    ) as server:
        for (keys, rows), gradient in zip(pushes, gradients, strict=True):
            server.push("w", gradient, keys, rows=rows)
        np.testing.assert_array_equal(server.pull("w"), fitted.reshape(30, 4))


def test_all_ways_to_a_shard_do_the_same(way: dict[str, Any]) -> None:
    w = np.arange(24.0).reshape(6, 4)
    with dps.ParameterServer(
        {"w": w, "one": 3.0, "emb": dps.EmbeddingTable(dim=2, init="normal", scale=1.0)},
        optimizer=SGD(), learning_rate=1.0, n_shards=2, **way,
    ) as server:  # fmt: skip
        assert server.pull("w", slice(1, 5)).tolist() == w[1:5].tolist()
        assert server.pull("w", slice(None, None, -2)).tolist() == w[::-2].tolist()
        assert server.pull("w", [5, 0, 5]).tolist() == w[[5, 0, 5]].tolist()
        assert server.pull("w", 4).tolist() == w[4].tolist()
        assert server.pull("one") == 3.0
        server.add("w", 1.0, slice(2, 4))
        server.assign("w", np.full((2, 4), 9.0), [0, 5])
        w[2:4] += 1
        w[[0, 5]] = 9
        assert server.pull("w").tolist() == w.tolist()
        after = server.push_pull("w", np.full((2, 4), 10.0), [1, 1], rows=10)
        assert after.tolist() == (np.stack([w[1], w[1]]) - 2).tolist()
        assert server.push_pull("w", np.ones((3, 4)), [5, 2, 5])[:, 0].tolist() == [7.0, 8.0, 7.0]
        w[5] -= 2
        w[2] -= 1
        before = server.pull("emb", [3, 4])
        assert server.push("emb", np.ones((2, 2)), [4, 4]) is None
        assert server.pull("emb", [3, 4]).tolist() == (before - np.float32([[0], [2]])).tolist()
        assert server.apply("w", lambda values: (len(values), values.fill(0))[0]) == [3, 3]
        assert not server.pull("w").any()
        assert sorted(server.apply("emb", lambda ids, rows: ids.tolist())) == [[], [4]]
        handle = server.add("one", 1.0, wait=False)
        assert handle.wait() is None
        assert handle.done
        assert server.pull("one", wait=False).wait(10) == 4.0
        assert server.versions == {"w": 5, "one": 1, "emb": 1}
        stats = server.stats()
        assert stats["tensors"]["emb"]["rows"] == 1
        assert stats["tensors"]["w"]["pushes"] == 2
        assert len(stats["shards"]) == 2
        if not way:
            return
        assert all(f":{os.getpid()}" in shard["callers"][0] for shard in stats["shards"])
        found = {type(access) for access in server._requests.accesses.values()}
        assert found == {RemoteAccess}


@pytest.mark.parametrize("n_shards", [1, 3])
def test_rows_of_tables_follow_from_their_ids_alone(n_shards: int) -> None:
    table = dps.EmbeddingTable(dim=3, init="normal", scale=2.0, capacity=20_000, random_state=5)
    rng = np.random.default_rng(1)
    ids = rng.choice(1 << 40, 10_000, replace=False)
    with dps.ParameterServer({"t": table}, optimizer="adagrad", n_shards=n_shards) as server:
        unseen = server.pull("t", ids)
        assert abs(unseen.mean()) < 0.05
        assert abs(unseen.std() - 2) < 0.05
        assert 0.66 < (abs(unseen) < 2).mean() < 0.70
        for at in range(0, 10_000, 500):
            server.push("t", np.ones((500, 3)), ids[at : at + 500])
        # One step of Adagrad from 0.1, each: lr / sqrt(1.1).
        np.testing.assert_allclose(server.pull("t", ids), unseen - 0.5 / 1.1**0.5, rtol=1e-5)
        assert server.stats()["tensors"]["t"]["rows"] == 10_000
        again = server.pull("t", ids)
    with dps.ParameterServer({"t": table}, optimizer="adagrad") as server:
        server.push("t", np.ones((10_000, 3)), ids)
        np.testing.assert_array_equal(server.pull("t", ids), again)


def test_what_is_wrong_is_refused_in_words_and_nothing_is_applied(way: dict[str, Any]) -> None:
    with dps.ParameterServer(
        {"w": np.zeros((4, 2)), "t": dps.EmbeddingTable(dim=2, capacity=8)}, n_shards=2, **way
    ) as server:
        bad = np.zeros((4, 2))
        bad[3, 1] = np.nan
        refused = [
            (KeyError, "'v'.*'t', 'w'", lambda: server.pull("v")),
            (ValueError, r"'w' must have the shape \(4, 2\), got \(3,\)",
             lambda: server.push("w", np.zeros(3))),
            (TypeError, "real numbers", lambda: server.add("w", np.full((4, 2), "a"))),
            (NonFiniteError, "'w' is NaN or infinite; nothing", lambda: server.push("w", bad)),
            (IndexError, "key 4 of 'w' is outside of its 4 rows", lambda: server.pull("w", [0, 4])),
            (IndexError, "key -1 of 't'", lambda: server.pull("t", [-1])),
            (TypeError, "must be integers", lambda: server.pull("w", [0.5])),
            (ValueError, "'t' is a table", lambda: server.pull("t")),
            (ValueError, "rows must be", lambda: server.push("w", np.zeros((4, 2)), rows=0)),
            (TableFullError, "'t', ids of part . of 2 on shard .*more than capacity=8",
             lambda: server.add("t", 1.0, np.arange(1000))),
            (ZeroDivisionError, "division", lambda: server.apply("w", lambda values: 1 / 0)),
            (NonFiniteError, r"w\[0:2\]", lambda: server.apply("w", lambda v: v.fill(np.inf))),
        ]  # fmt: skip
        for kind, words, call in refused:
            with pytest.raises(kind, match=words):
                call()
        assert not server.pull("w").any()
        assert server.versions["w"] == 0
    with pytest.raises(ServerLostError, match="has been closed"):
        server.pull("w")


def test_what_a_server_is_made_of_is_checked() -> None:
    make = dps.ParameterServer
    for kind, words, args in [
        (TypeError, "mapping", ([1.0],)),
        (TypeError, "'w' must hold real numbers", ({"w": ["a"]},)),
        (ValueError, "no elements", ({"w": np.zeros((0, 3))},)),
        (ValueError, "NaN", ({"w": [np.inf]},)),
    ]:
        with pytest.raises(kind, match=words):
            make(*args)
    for words, options in [
        ("optimizer", {"optimizer": "sdg"}),
        ("learning_rate", {"learning_rate": 0}),
        ("n_shards", {"n_shards": 0}),
        ("placement", {"placement": "random"}),
        ("from 0 to 1", {"placement": lambda name, shape: 2, "n_shards": 2}),
    ]:
        with pytest.raises(ValueError, match=words):
            make({"w": np.zeros(3)}, **options)
    with pytest.raises(ValueError, match="'init' parameter of EmbeddingTable"):
        dps.EmbeddingTable(dim=2, init="ones")
    with make({"w": [1, 2]}, name="here"), pytest.raises(ValueError, match="name='here'"):
        make({"w": [1, 2]}, name="here")
    with pytest.raises(LookupError, match=r"name='here' in this process; there are \[\]"):
        make.connect("here")


def test_threads_of_this_process_share_a_server() -> None:
    with dps.ParameterServer({"n": np.zeros(50)}, name="counts", n_shards=2) as server:

        def count() -> None:
            mine = dps.ParameterServer.connect("counts")
            for _ in range(300):
                mine.add("n", 1.0)
                assert len(set(mine.pull("n")[:25])) == 1

        threads = [threading.Thread(target=count) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert server.pull("n").tolist() == [2400.0] * 50
        assert [each["name"] for each in dps.ParameterServer.list()] == ["counts"]
    assert dps.ParameterServer.list() == []


def test_a_read_in_mapped_memory_is_never_torn() -> None:
    """Many looks at a part that is written without a pause: each is a state between two writes."""
    server = dps.ParameterServer({"n": np.zeros(3000)})
    held: TensorPart = server._requests.place._holdings[0].parts[0]  # type: ignore[attr-defined]
    ending = threading.Event()

    def write() -> None:
        ones = np.ones(3000)
        while not ending.is_set():
            held.do(Op.ADD, 0, None, ones, 1.0, None)

    writer = threading.Thread(target=write)
    writer.start()
    out, seen = np.empty(3000), set()
    while len(seen) < 20:
        if held.peek(0, None, out) == Ending.RAN:
            assert (out == out[0]).all()
            seen.add(out[0])
    ending.set()
    writer.join()
    server.close()


def in_task(name: str) -> tuple[float, int]:
    server = dps.ParameterServer.connect(name)
    server.add("w", np.ones(3))
    return float(server.pull("w").sum()), os.getpid()


def given(server: dps.ParameterServer) -> float:
    return float(server.push_pull("w", np.full(3, -1.0)).sum())


def test_tasks_and_other_clients_connect_by_name(client: Client) -> None:
    with dps.ParameterServer({"w": np.zeros(3)}, name="ranker", learning_rate=1.0, client=client):
        workers = sorted(client.nthreads())
        found = [
            client.submit(in_task, "ranker", workers=[worker], pure=False).result()
            for worker in workers
        ]
        assert [total for total, _ in found] == [3.0, 6.0]
        assert len({process for _, process in found}) == 2
        with Client(client.scheduler.address, set_as_default=False) as other:
            second = dps.ParameterServer.connect("ranker", client=other)
            assert second.pull("w").tolist() == [2.0] * 3
            assert other.submit(given, second, pure=False).result() == 9.0
            [listed] = dps.ParameterServer.list(client=other)
            assert listed["name"] == "ranker"
            assert listed["tensors"]["w"]["writes"] == 3
            assert listed["writes_per_second"] > 0
            with pytest.raises(ValueError, match="there is a server with name='ranker'"):
                dps.ParameterServer({"w": np.ones(1)}, name="ranker", client=other)
            assert second.pull("w").tolist() == [3.0] * 3
            with pytest.raises(LookupError, match="there are \\['ranker'\\]"):
                dps.ParameterServer.connect("rankor", client=other)
            second.disconnect()
    assert dps.ParameterServer.list(client=client) == []
    assert client.list_datasets() == ()


def test_a_name_that_is_taken_and_a_second_close_leave_no_error_in_dasks_log(
    client: Client, caplog: Any
) -> None:
    server = dps.ParameterServer({"w": np.zeros(1)}, name="taken", client=client)
    with pytest.raises(ValueError, match="there is a server with name='taken'"):
        dps.ParameterServer({"w": np.zeros(1)}, name="taken", client=client)
    for _ in range(2):
        server.close()
    assert [each.message for each in caplog.records if each.name.startswith("distributed")] == []


MAKER = """
import sys, numpy as np, dps
from distributed import Client

if __name__ == "__main__":
    client = Client(sys.argv[1])
    named = dps.ParameterServer({"w": np.zeros(4)}, name="heirloom")
    other = dps.ParameterServer({"w": np.zeros(4)})
    other.add("w", 1.0)
    named.add("w", 2.0)
    print(*(memory.path for memory in other._requests.place._card.cards[0].memories), flush=True)
    sys.stdin.read()
"""


def start(script: str, *args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, *args]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)


def test_a_named_server_outlives_its_maker_and_another_does_not(client: Client) -> None:
    maker = start(MAKER, client.scheduler.address)
    assert maker.stdout is not None
    path = Path(maker.stdout.readline().strip())
    assert path.exists()
    maker.kill()
    maker.communicate()
    until(lambda: not path.exists(), "the memory is given back")
    server = dps.ParameterServer.connect("heirloom", client=client)
    server.add("w", 1.0)
    assert server.pull("w").tolist() == [3.0] * 4
    server.close()


def count(number: int, server: dps.ParameterServer) -> int:
    server.add("n", 1.0)
    return len(server.stats()["shards"][0]["callers"])


def test_tasks_with_a_handle_each_share_the_connections_of_their_process(client: Client) -> None:
    with dps.ParameterServer({"n": 0.0}, client=client) as server:
        found = client.gather(client.map(count, range(100), server=server, pure=False))
        # A request that is under way has a connection: one a thread, and ours.
        assert max(found) <= sum(client.nthreads().values()) + 1
        assert server.pull("n") == 100
        until(
            lambda: len(server.stats()["shards"][0]["callers"]) <= 1,
            "workers have given back what no task uses any more",
        )


BY_CALLS = """
import sys, dps
from distributed import Client
from dps.parameter_server.client import access
from dps.transport import wires

if __name__ == "__main__":
    access.map_parts = lambda *args: None
    wires.can_be_taken_over = lambda comm: False
    server = dps.ParameterServer.connect("called", client=Client(sys.argv[1]))
    server.add("w", 1.0)
    print("there", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_a_caller_by_actor_calls_that_is_killed_leaves_nothing(client: Client) -> None:
    with dps.ParameterServer({"w": np.zeros(4)}, name="called", client=client) as server:
        shard = server.stats()["shards"][0]
        before, [home] = len(shard["callers"]), [shard["worker"]]
        threads = client.run(threading.active_count, workers=[home])[home]
        callers = [start(BY_CALLS, client.scheduler.address) for _ in range(2)]
        for caller in callers:
            assert caller.stdout is not None
            assert caller.stdout.readline() == "there\n"
        assert len(server.stats()["shards"][0]["callers"]) == before + 2
        callers[0].kill()
        callers[0].communicate()
        until(
            lambda: len(server.stats()["shards"][0]["callers"]) == before + 1,
            "only the caller that lives is there",
        )
        callers[1].communicate("")
        until(
            lambda: client.run(threading.active_count, workers=[home])[home] <= threads,
            "the threads have ended",
        )
        assert server.pull("w").tolist() == [2.0] * 4


PUSHER = r"""
import sys, threading, numpy as np, dps
from distributed import Client

def push(number):
    server = dps.ParameterServer.connect("counts", client=client)
    for done in range(int(sys.argv[3])):
        server.add("n", 1.0)
        server.add("t", 1.0, [number, 7])
        if sys.argv[3] != "60":
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()
        elif done % 20 == 0:
            assert len(set(server.pull("n").tolist())) == 1
    server.disconnect()

if __name__ == "__main__":
    client = Client(sys.argv[1], set_as_default=False)
    threads = [threading.Thread(target=push, args=(n,)) for n in range(int(sys.argv[2]))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print("done", flush=True)
"""


def test_counts_of_fifty_clients_are_exact_while_one_is_killed(
    client: Client, tmp_path: Path
) -> None:
    """They are read and saved meanwhile; only the one that is killed has an error."""
    with dps.ParameterServer(
        {"n": np.zeros(5000), "t": dps.EmbeddingTable(dim=4)}, name="counts", client=client
    ) as server:
        address = client.scheduler.address
        pushers = [start(PUSHER, address, "16", "60") for _ in range(3)]
        victim = start(PUSHER, address, "2", "1000000")
        assert victim.stdout is not None
        said = [int(victim.stdout.readline()) for _ in range(100)]
        saves = 0
        victim.send_signal(signal.SIGKILL)
        # Not by `communicate`, which passes over what has been read ahead.
        said += list(map(int, victim.stdout.read().split()))
        victim.communicate()
        while any(pusher.poll() is None for pusher in pushers):
            now = server.pull("n")
            assert (now == now[0]).all()
            server.save(tmp_path / "saved")
            saves += 1
            with dps.ParameterServer.load(tmp_path / "saved", n_shards=saves % 3 + 1) as saved:
                kept = saved.pull("n")
                assert (kept == kept[0]).all()
                assert kept[0] >= now[0]
        assert saves > 0
        for pusher in pushers:
            assert pusher.communicate()[0] == "done\n"
            assert pusher.returncode == 0
        counted, rows = server.pull("n"), server.pull("t", np.arange(16))
        assert (counted == counted[0]).all()
        of_victim = counted[0] - 3 * 16 * 60
        assert len(said) <= of_victim <= len(said) + 2
        # Two threads of the victim push rows 0 and 1, all push row 7 too.
        assert (rows == rows[:, :1]).all()
        assert rows[2:7, 0].tolist() == rows[8:, 0][:5].tolist() == [180.0] * 5
        assert len(said) <= rows[:2, 0].sum() - 360 <= of_victim
        assert rows[7, 0] - 48 * 60 - 180 == rows[:2, 0].sum() - 360
        until(lambda: len(server.stats()["shards"][0]["callers"]) == 1, "one caller")


@pytest.mark.parametrize("n_shards", [1, 2, 3])
def test_what_is_saved_goes_on_on_any_number_of_shards(n_shards: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    first = {"w": rng.normal(size=(5, 3)).astype(np.float32), "b": 1.5,
             "t": dps.EmbeddingTable(dim=3, init="uniform", random_state=9)}  # fmt: skip
    ids = rng.integers(0, 1 << 50, 40)
    steps = [(rng.normal(size=(5, 3)), rng.normal(size=(40, 3))) for _ in range(6)]

    def push(server: dps.ParameterServer, some: Any) -> None:
        for dense, sparse in some:
            server.push("w", dense)
            server.push("t", sparse, ids)

    with dps.ParameterServer(first, optimizer=Adam(beta1=0.8), n_shards=2) as server:
        push(server, steps[:3])
        server.save(tmp_path / "saved")
        push(server, steps[3:])
        expected = server.pull("w"), server.pull("t", ids), server.pull("t", [1, 2])
    with dps.ParameterServer.load(tmp_path / "saved", n_shards=n_shards) as server:
        push(server, steps[3:])
        found = server.pull("w"), server.pull("t", ids), server.pull("t", [1, 2])
        assert server.pull("b") == 1.5
    for each, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(each, wanted)
    with dps.ParameterServer.load(
        tmp_path / "saved", optimizer="sgd", learning_rate=1.0, name="again"
    ) as server:
        assert dps.ParameterServer.connect("again").pull("b") == 1.5
        before = server.pull("w")
        server.push("w", np.ones((5, 3)))
        np.testing.assert_array_equal(server.pull("w"), before - np.float32(1))


@pytest.mark.filterwarnings("ignore:the loss still improved")
def test_other_files_are_no_server(tmp_path: Path) -> None:
    dps.LinearRegressor(max_iter=1).fit(np.eye(3), [1.0, 2, 3]).save(tmp_path / "model")
    with pytest.raises(ValueError, match="no parameter server"):
        dps.ParameterServer.load(tmp_path / "model")

    @dataclass(frozen=True)
    class Own(Momentum):
        pass

    with (
        dps.ParameterServer({"w": np.zeros(2)}, optimizer=Own()) as server,
        pytest.raises(TypeError, match="Own"),
    ):
        server.save(tmp_path / "own")


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """All places of a manifest: what holds a value, and its key there."""
    keys = value if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0)
    for key in keys:
        yield value, key
        yield from places(value[key])


@pytest.mark.parametrize("forged", [None, -1, 2**70, 1.5, "x", [1], {"kind": "array"}])
def test_a_forged_file_is_refused_or_loads(forged: Any, tmp_path: Path) -> None:
    tensors = {"w": np.ones((3, 2)), "one": 1.0, "t": dps.EmbeddingTable(dim=2, capacity=50)}
    with dps.ParameterServer(tensors, optimizer="adam") as server:
        server.push("t", np.ones((3, 2)), [4, 5, 6])
        server.put_note("n", b"abc")
        server.save(tmp_path / "saved")
    content, arrays = read_directory(tmp_path / "saved")
    loaded = 0
    for number in range(sum(1 for _ in places(content))):
        forgery = copy.deepcopy(content)
        holder, key = list(places(forgery))[number]
        holder[key] = forged
        write_directory(tmp_path / "forged", forgery, arrays)
        try:
            dps.ParameterServer.load(tmp_path / "forged").close()
            loaded += 1
        except ValueError:
            pass
    assert loaded < number / 5  # such as another learning rate


def test_a_file_that_is_nested_deeply_is_damaged(tmp_path: Path) -> None:
    with dps.ParameterServer({"w": np.ones(2)}) as server:
        server.save(tmp_path / "saved")
    content, arrays = read_directory(tmp_path / "saved")
    nested: Any = 1
    for _ in range(700):
        nested = [nested]
    write_directory(tmp_path / "forged", {**content, "notes": nested}, arrays)
    with pytest.raises(ValueError, match="nested too deeply"):
        dps.ParameterServer.load(tmp_path / "forged")


def test_two_that_replace_a_state_at_once_both_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_directory(tmp_path / "saved", {"state": 0}, {"w": np.zeros(2)})
    (older,) = (tmp_path / "saved").glob("*.safetensors")
    replaced = directories._replace

    def beaten(one: Any, other: Any) -> None:
        replaced(one, other)
        if str(other).endswith("manifest.json"):  # by one that has read the older manifest, too
            older.unlink()

    monkeypatch.setattr(directories, "_replace", beaten)
    write_directory(tmp_path / "saved", {"state": 1}, {"w": np.ones(2)})
    content, arrays = read_directory(tmp_path / "saved")
    assert content == {"state": 1}
    assert arrays["w"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"capacity": 1 << 60},
        {"dim": 1 << 30, "capacity": 1 << 30},
        {"random_state": 1 << 70},
        {"random_state": -1},
    ],
)
def test_a_table_that_cannot_be_is_refused_when_it_is_described(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"'(capacity|random_state)' parameter of Embedding"):
        dps.EmbeddingTable(**{"dim": 2, **wrong})


def test_wrong_keys_and_rows_are_named_as_they_were_given() -> None:
    with dps.ParameterServer({"w": np.zeros(4), "t": dps.EmbeddingTable(dim=1)}) as server:
        large = np.uint64(2**63 + 5)
        for name in ("w", "t"):
            with pytest.raises(IndexError, match=f"key {large} of '{name}' is outside"):
                server.pull(name, np.array([1, large], np.uint64))
        for rows in ("3", None, True):
            with pytest.raises(TypeError, match="rows must be a number above 0, got"):
                server.push("w", np.ones(4), rows=rows)


def test_an_optimizer_in_python_runs_on_the_shard(client: Client) -> None:
    @dataclass(frozen=True)
    class Halving(SGD):
        def update(self, params: Any, grad: Any, state: Any, **options: Any) -> bool:
            if (grad < 0).any():
                raise ZeroDivisionError("of the user's")
            params[:] = params / 2 - grad
            return True

    with dps.ParameterServer({"w": np.ones(4)}, optimizer=Halving(), client=client) as server:
        assert server.push_pull("w", np.ones(4)).tolist() == [-0.5] * 4
        with pytest.raises(ZeroDivisionError, match="of the user's"):
            server.push("w", -np.ones(4))
        assert server.push_pull("w", np.ones(2), [1, 2]).tolist() == [-1.25] * 2


def test_a_coroutine_awaits_a_handle(client: Client) -> None:
    with dps.ParameterServer({"w": np.zeros(2)}, client=client) as server:

        async def both() -> Any:
            await server.add("w", 1.0, wait=False)
            return await server.pull("w", wait=False)

        assert asyncio.run(both()).tolist() == [1.0, 1.0]
        with pytest.raises(KeyError, match="'v'"):
            asyncio.run(_awaited(server.pull("v", wait=False)))


def test_an_asynchronous_client_is_asked_in_another_thread(client: Client) -> None:
    async def use() -> list[float]:
        address = client.scheduler.address
        async with Client(address, asynchronous=True, set_as_default=False) as other:
            with pytest.raises(ClusterError, match=r"asyncio.to_thread"):
                dps.ParameterServer.connect("loop", client=other)
            server = await asyncio.to_thread(dps.ParameterServer.connect, "loop", client=other)
            with pytest.raises(ClusterError, match="block the event loop"):
                server.push("w", np.ones(2))
            found = await server.push_pull("w", np.ones(2), wait=False)
            server.disconnect()
            return list(found)

    with dps.ParameterServer({"w": np.zeros(2)}, learning_rate=2.0, name="loop", client=client):
        assert asyncio.run(use()) == [-2.0, -2.0]


def in_threads(server: dps.ParameterServer) -> list[float]:
    threads = [threading.Thread(target=server.add, args=("w", 1.0)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return list(server.add("w", 1.0, wait=False).wait() or server.pull("w"))  # type: ignore[union-attr]


def test_threads_of_a_task_use_its_server(client: Client) -> None:
    with dps.ParameterServer({"w": np.zeros(2)}, client=client) as server:
        assert client.submit(in_threads, server, pure=False).result() == [6.0, 6.0]


async def _awaited(handle: Any) -> Any:
    return await handle


def test_a_function_on_a_shard_that_asks_it_is_refused(client: Client) -> None:
    def recursive(values: Any) -> None:
        (worker,) = distributed.Worker._instances
        dps.ParameterServer.connect("self", client=worker._get_client()).add("w", 1.0)

    with (
        dps.ParameterServer({"w": np.zeros(2)}, name="self", client=client) as server,
        pytest.raises(RuntimeError, match="must not ask that shard"),
    ):
        server.apply("w", recursive)


class TwoWords(Exception):
    """Can be pickled, but not unpickled."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def test_what_a_function_raises_or_returns_and_cannot_be_sent_is_described(client: Client) -> None:
    def raising(values: Any) -> None:
        raise TwoWords("too", "bad")

    with dps.ParameterServer({"w": np.zeros(2)}, client=client) as server:
        for kind, words, function in [
            (RuntimeError, "TwoWords: too bad", raising),
            (TypeError, "result of the call cannot be pickled", lambda values: (n for n in values)),
        ]:  # fmt: skip
            with pytest.raises(kind, match=words):
                server.apply("w", function)


def test_connections_that_are_no_longer_used_are_closed(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "_KEPT", 0.0)
    with dps.ParameterServer({"w": np.zeros(2)}, client=client, n_shards=1) as server:
        in_threads(server)

        def served(dask_worker: Any) -> int:
            return sum(each.name.startswith("dps-service") for each in threading.enumerate())

        until(lambda: server.add("w", 1.0) or sum(client.run(served).values()) <= 1, "they end")


def test_clients_take_turns_by_waiting_for_writes(way: dict[str, Any]) -> None:
    with dps.ParameterServer({"w": np.zeros(4)}, n_shards=2, **way) as server:
        turns: list[int] = []

        def play(first: int) -> None:
            for turn in range(first, 20, 2):
                server.wait("w", turn)
                turns.append(turn)
                server.add("w", 1.0)

        players = [threading.Thread(target=play, args=(first,)) for first in (1, 0)]
        for player in players:
            player.start()
        for player in players:
            player.join(60)
        assert turns == list(range(20))
        assert server.wait("w", 5) == 20
        with pytest.raises(TimeoutError, match=r"'w' has had 20 writes, and not 21, after 0.05 s"):
            server.wait("w", 21, timeout=0.05)
        with pytest.raises(KeyError, match="there is no tensor 'v'"):
            server.wait("v", 1)


def test_a_server_tells_its_names_and_takes_texts_as_keys(way: dict[str, Any]) -> None:
    words = np.array(["the", "of", "the", "\u00e9t\u00e9"])
    with dps.ParameterServer(
        {"n": dps.EmbeddingTable(dim=1, capacity=100)}, n_shards=2, **way
    ) as server:
        assert server.names() == list(server) == ["n"]
        server.create({"w": np.zeros(2)})
        assert "w" in server
        assert "v" not in server
        assert (len(server), bool(server)) == (2, True)
        server.add("n", np.ones((4, 1)), words)
        server.add("n", np.ones((2, 1)), ["of", "the"])
        assert server.pull("n", ["the", "of", "a"]).ravel().tolist() == [3.0, 2.0, 0.0]
        assert server.pull("n", words.reshape(2, 2)[:, 0]).shape == (2, 1)
        assert server.pull("n", server.ids_of(words)).ravel().tolist() == [3.0, 2.0, 3.0, 1.0]
        ids = [each for part in server.apply("n", lambda ids, rows: ids.tolist()) for each in part]
        assert set(ids) == set(server.ids_of(words).tolist())
        with pytest.raises(TypeError, match="keys of 'w' must be integers"):
            server.pull("w", ["the"])
        with pytest.raises(TypeError, match="texts must be strings"):
            server.pull("n", ["the", 1.5])
        with pytest.raises(TypeError, match="texts must be strings"):
            server.ids_of([1])
        with pytest.raises(TypeError, match="the name of a tensor first"):
            server.apply(len, "w")
    assert dps.ParameterServer.ids_of("the") == 4223034638837015711  # in every process


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_lost_shard_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", resources={"server": 1}
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        workers = sorted(client.nthreads())
        for wrong in ({"server": 2}, ["tcp://127.0.0.1:1"], []):
            with pytest.raises(ValueError, match=r"workers must be|has the resources"):
                dps.ParameterServer({"a": [1.0]}, workers=wrong, client=client)
        server = dps.ParameterServer(
            {"a": np.zeros(3), "b": np.zeros(3)}, n_shards=2, workers={"server": 1},
            placement="round_robin", name="half", client=client, timeout=20,
        )  # fmt: skip
        assert {shard["worker"] for shard in server.stats()["shards"]} == set(workers)
        cut = dps.ParameterServer(
            {"w": np.arange(10.0), "emb": dps.EmbeddingTable(dim=2, capacity=100)},
            optimizer="adagrad", n_shards=2, workers=workers, name="cut", client=client, timeout=20,
        )  # fmt: skip
        cut.add("emb", np.ones((50, 2)), np.arange(50))
        cut.put_note("what", b"kept")
        processes = client.run(os.getpid)
        os.kill(processes[workers[1]], signal.SIGKILL)
        # It leaves the scheduler before it gives up its files, which can be read till then.
        until(lambda: not psutil.pid_exists(processes[workers[1]]), "the process has ended")
        until(lambda: workers[1] not in client.nthreads(), "the worker has left")
        for call in (lambda: server.pull("b"), lambda: server.add("b", 1.0)):
            with pytest.raises(
                ServerLostError, match=r"shard 1 of server 'half'.*b\[0:3\]"
            ) as info:
                call()
            assert info.value.worker == workers[1]
        for each in (server, dps.ParameterServer.connect("half", client=client)):
            each.add("a", 1.0)
        assert server.pull("a").tolist() == [2.0] * 3
        listed = {each["name"]: each for each in dps.ParameterServer.list(client=client)}
        assert "b[0:3]" in listed["half"]["shards"][1]["lost"]
        server.close()
        there = [cut, dps.ParameterServer.connect("cut", client=client)]
        for each in there:  # rows that are there can be written, and are counted
            each.add("w", 1.0, slice(0, 5))
            each.push("w", np.ones(2), [0, 4])
            assert each.push_pull("w", np.zeros((0,)), slice(0, 0)).size == 0
            assert each.wait("emb", 0) == 1
        with pytest.raises(ServerLostError, match=r"shard 1 of .*w\[5:10\]"):
            cut.add("w", 1.0, [4, 5])
        found = cut.stats()
        assert [shard["lost"] is None for shard in found["shards"]] == [True, False]
        assert 0 < found["tensors"]["emb"]["rows"] < 50
        with pytest.raises(ServerLostError, match=r"w\[5:10\]"):
            cut.save(tmp_path / "whole")
        with pytest.raises(ServerLostError, match=r"w\[5:10\]"):
            cut.create({"more": np.ones(3)})
        with pytest.warns(UserWarning, match=r"lacks lost parts: .*w\[5:10\].* Zeros stand"):
            cut.save(tmp_path / "rescued", lost="skip")
        assert not (tmp_path / "whole").exists()
        with dps.ParameterServer.load(tmp_path / "rescued") as rescued:
            np.testing.assert_array_equal(
                rescued.pull("w", slice(0, 5)), cut.pull("w", slice(0, 5))
            )
            assert rescued.pull("w", slice(5, 10)).tolist() == [0.0] * 5
            assert rescued.stats()["tensors"]["emb"]["rows"] == found["tensors"]["emb"]["rows"]
            assert rescued.note("what") == b"kept"
            rescued.push("w", np.ones(10))
        cut.close()
        assert dps.ParameterServer.list(client=client) == []


def test_a_server_is_saved_with_little_more_memory_than_one_copy(
    way: dict[str, Any], tmp_path: Path
) -> None:
    n_bytes = 2 * 8 * 4_000_000  # with the optimizer's state
    with dps.ParameterServer({"w": np.zeros(4_000_000)}, optimizer="adagrad", **way) as server:
        copies = 1.4 if "client" in way else 2.4  # the shard has one, too
        tracemalloc.start()
        try:
            server.save(tmp_path / "saved")
            _, saving = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert saving < copies * n_bytes


def test_saves_while_others_write_hold_each_a_state_between_two_writes(
    way: dict[str, Any], tmp_path: Path
) -> None:
    with dps.ParameterServer({"w": np.zeros(5000)}, n_shards=1, **way) as server:
        ending = threading.Event()

        def add() -> None:
            while not ending.is_set():
                server.add("w", 1.0)

        threads = [threading.Thread(target=add) for _ in range(2)]
        for thread in threads:
            thread.start()
        found = []
        for number in range(5):
            server.save(tmp_path / str(number))
            with dps.ParameterServer.load(tmp_path / str(number), **way) as loaded:
                values = loaded.pull("w")
            assert (values == values[0]).all()
            found.append(values[0])
        ending.set()
        for thread in threads:
            thread.join()
        assert found == sorted(found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Client .* desires key")  # the scheduler's, of what was there
def test_a_frozen_shard_is_an_error_in_time_and_a_restart_one_that_frees_the_name() -> None:
    with local_client(2) as client:
        workers = sorted(client.nthreads())
        options = {"workers": workers[1:], "client": client, "name": "cold", "timeout": 1.0}
        server = dps.ParameterServer({"w": np.zeros(3)}, **options)
        server.add("w", 1.0)
        pid = client.run(os.getpid)[workers[1]]
        os.kill(pid, signal.SIGSTOP)
        try:
            until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "it is frozen")
            began = time.monotonic()
            with pytest.raises((ServerLostError, StalledError), match="1 s"):
                server.add("w", 1.0)
            assert time.monotonic() - began < 10
        finally:
            os.kill(pid, signal.SIGCONT)
        until(lambda: "writes" in server.stats()["tensors"]["w"], "the shard answers again")
        server.add("w", 1.0)
        assert set(server.pull("w").tolist()) <= {2.0, 3.0}  # what was asked for first may be done
        client.restart()
        with pytest.raises(ServerLostError):
            server.add("w", 1.0)
        server.close()
        with dps.ParameterServer({"w": np.zeros(3)}, client=client, name="cold") as again:
            assert again.pull("w").tolist() == [0.0] * 3


def test_nothing_is_left_of_a_closed_server(client: Client) -> None:
    server = dps.ParameterServer({"w": np.zeros(3)}, client=client)
    name = server._requests.spec.id
    assert list(folder().glob(f"dps-{name}-*"))
    server.close()
    assert not list(folder().glob(f"dps-{name}-*"))

    def handlers(dask_worker: Any) -> list[str]:
        return [each for each in dask_worker.handlers if each.startswith("dps-server-")]

    until(lambda: not any(client.run(handlers).values()), "no handler is left")
    assert not [t.name for t in threading.enumerate() if t.name.startswith("dps-")]


def held_memory(dask_worker: Any) -> int:
    import gc

    from dps.server.store.store import Store

    gc.collect()
    return sum(isinstance(thing, Store) for thing in gc.get_objects())


def test_a_server_that_is_closed_leaves_no_memory_on_workers(client: Client) -> None:
    with dps.ParameterServer({"w": np.zeros(1000)}, client=client, n_shards=2) as server:
        client.gather(client.map(lambda n, s: s.push_pull("w", np.ones(1000)), range(4), s=server))
        server.pull("w")
    until(lambda: not any(client.run(held_memory).values()), "no memory is left")


def test_a_handle_that_is_forgotten_leaves_no_caller(client: Client) -> None:
    with dps.ParameterServer({"w": np.zeros(10)}, client=client, name="forgotten") as server:

        def callers() -> int:
            gc.collect()
            return sum(len(shard["callers"]) for shard in server.stats()["shards"])

        first = callers()
        for _ in range(3):
            dps.ParameterServer.connect("forgotten", client=client).push("w", np.ones(10))
        until(lambda: callers() == first, "the callers of before")


def test_what_was_handed_over_is_done_before_a_server_is_closed() -> None:
    server = dps.ParameterServer({"w": np.zeros(10)})
    handles = [server.add("w", 1.0, wait=False) for _ in range(30)]
    server.close()
    for handle in handles:
        handle.wait()


@pytest.mark.parametrize("n", [(1 << 60) + 5, 1 << 61, 1 << 62, -1])
def test_counts_that_no_message_can_have_are_refused(n: int) -> None:
    spec = ServerSpec("f", None, (TensorSpec("w", (4, 2), "float64", ((0, 0, 4),)),), SGD(), 0.1, 1)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
    wire = SocketWire(theirs, b"", lambda: None, ConnectionError, 1.0)
    service = Service(
        wire, lambda message: b"", parts=TensorShardState(spec, 0, shared=False).parts
    )
    counts = [Op.READ, n, n, 0, 0, 0, 0, 0, 0.0, 0, 0, *[0.0] * 8, 0, -1, 0, 1.0, 0, 0, 0, -1, 0]
    ours.sendall(struct.pack("8qd2q8d3qd5q", *counts) + bytes(100))
    service.run(lambda error: str(error).encode())
    assert b"a request is refused: kind" in ours.recv(1000)
    ours.close()
    wire.close()


def test_a_request_to_a_mailbox_that_nobody_reads_any_more_is_refused() -> None:
    mailbox = Mailbox(1.0)
    mailbox.close()
    with pytest.raises(ConnectionError, match="stopped answering"):
        asyncio.run(mailbox.relay(b"late"))


def test_a_refused_write_takes_no_room(way: Any) -> None:
    with dps.ParameterServer(
        {"e": dps.EmbeddingTable(dim=1, capacity=100)}, n_shards=1, **way
    ) as server:
        with pytest.raises(TableFullError):
            server.assign("e", 1.0, np.arange(1000))
        assert server.stats()["tensors"]["e"]["rows"] == 0
        assert server.versions == {"e": 0}
        room = server._requests.spec.tensors[0].parts[0][2]
        server.assign("e", 1.0, np.repeat(np.arange(room), 2))  # an id that comes twice has one row
        assert server.stats()["tensors"]["e"]["rows"] == room
        with pytest.raises(TableFullError):
            server.add("e", 1.0, [room - 1, room])
        server.add("e", 1.0, [room - 1])
        np.testing.assert_array_equal(server.pull("e", [room - 1, room]), [[2.0], [0.0]])


@pytest.mark.parametrize(("rows", "n_shards"), [(100, 3), (10_000, 4)])
def test_a_table_that_took_more_rows_than_it_was_made_for_is_loaded_on_any_shards(
    rows: int, n_shards: int, tmp_path: Path
) -> None:
    with dps.ParameterServer(
        {"e": dps.EmbeddingTable(dim=1, capacity=rows)}, n_shards=n_shards
    ) as server:
        held = 0
        with contextlib.suppress(TableFullError):
            for held in itertools.count():
                server.assign("e", [[float(held)]], [held])
        server.save(tmp_path / "table")
    assert held > rows
    for number in (1, 2, 3, 5):
        with dps.ParameterServer.load(tmp_path / "table", n_shards=number) as server:
            np.testing.assert_array_equal(
                server.pull("e", np.arange(held))[:, 0], np.arange(held, dtype=np.float32)
            )


def test_what_has_overflowed_is_said_and_not_saved(tmp_path: Path) -> None:
    with dps.ParameterServer({"w": np.full(4, 1e308)}) as server:
        server.save(tmp_path / "sound")
        with pytest.raises(NonFiniteError, match=r"elements of w\[0:4\] on shard 0, are infinite"):
            server.add("w", 1e308)
        with pytest.raises(
            NonFiniteError, match="'w' is NaN or infinite in 4 rows, at first in 0:"
        ):
            server.save(tmp_path / "sound")
        with dps.ParameterServer.load(tmp_path / "sound") as loaded:
            np.testing.assert_array_equal(loaded.pull("w"), 1e308)
        server.assign("w", 1.0)
        server.save(tmp_path / "sound")


def test_a_function_that_hangs_stops_nobody_for_ever(way: Any, tmp_path: Path) -> None:
    go_on = tmp_path / "go on"

    def hangs(values: Any) -> None:
        until(go_on.exists, "the test lets it go on")

    server = dps.ParameterServer({"w": np.zeros(3)}, n_shards=1, timeout=1.0, **way)
    thread = threading.Thread(target=lambda: server.apply("w", hangs), daemon=True)
    try:
        thread.start()
        until(lambda: not _is_free(server), "the function has begun")
        with pytest.raises(StalledError, match="a function has been at work on a part for 1 s"):
            server.push("w", np.ones(3))
    finally:
        go_on.touch()
        thread.join(30)
    server.push("w", np.ones(3))
    server.close()


def _is_free(server: Any) -> bool:
    try:
        server.add("w", 0.0)
    except StalledError:
        return False
    return True


def test_a_function_that_asks_its_own_shard_in_another_thread_has_an_error() -> None:
    with dps.ParameterServer({"w": np.zeros(3)}, timeout=1.0) as server:
        with pytest.raises(StalledError, match="must not ask the server"):
            server.apply("w", lambda _: server.push("w", np.ones(3), wait=False).wait())
        server.push("w", np.ones(3))


def test_datasets_and_callers_of_others_that_look_like_ours_break_nothing(client: Client) -> None:
    client.publish_dataset(5, name="dps-server-odd")
    client.publish_dataset(("a", b"no pickle"), name="dps-server-text")
    try:
        with dps.ParameterServer({"w": np.zeros(2)}, name="mine", client=client) as server:
            assert [each["name"] for each in dps.ParameterServer.list(client=client)] == ["mine"]
            for name in ("odd", "text"):
                with pytest.raises(LookupError, match=f"there is no server with name='{name}'"):
                    dps.ParameterServer.connect(name, client=client)
            access = server._requests.reach(0)
            odd = connected(access.remote, access._card.handler, 5, int, ServerLostError, 10.0)
            with pytest.raises(FencedError, match="gives 5 as its name"):
                access.remote.submit(odd).result(10)
            server.add("w", 1.0)
            assert len(server.stats()["shards"][0]["callers"]) == 1
    finally:
        for name in ("dps-server-odd", "dps-server-text"):
            client.unpublish_dataset(name)
