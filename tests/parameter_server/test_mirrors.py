"""Mirrors of a parameter server: what was acknowledged is kept, and done once."""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import slow
from conditions import until
from distributed import Client

import dps
from dps._runtime.wire.message import Ending, Op
from dps._runtime.wire.service import Service
from dps._runtime.wire.wire import SocketWire
from dps.errors import ServerLostError
from dps.optimizers import SGD
from dps.parameter_server.client import access
from dps.parameter_server.shard.frozen import Frozen
from dps.parameter_server.shard.layout import ServerSpec, TensorSpec
from dps.parameter_server.shard.mirroring import CallerSlots, PartSnapshot
from dps.parameter_server.shard.state import TensorShardState
from dps.server.memory.files import folder
from dps.transport.remote import Remote

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture
def three(mortal: Client) -> Client:
    """A client of three workers, of whom some will be killed."""
    return mortal


def kill(client: Client, worker: str) -> None:
    os.kill(client.run(os.getpid, workers=[worker])[worker], signal.SIGKILL)


def use(server: dps.ParameterServer, first: int) -> None:
    """Some of everything, the same each time it is called with the same number."""
    rng = np.random.default_rng(first)
    for number in range(first, first + 8):
        server.push("w", rng.normal(size=(60, 3)), rows=number + 1)
        keys = rng.integers(0, 60, 20)
        server.push("w", rng.normal(size=(20, 3)), keys)
        server.push("t", rng.normal(size=(20, 2)), rng.integers(0, 1 << 40, 20))
        server.add("t", rng.normal(size=(5, 2)), rng.integers(0, 30, 5))
        server.assign("n", float(number))
    server.apply("w", np.tanh)  # which changes nothing
    server.apply("w", lambda values: np.multiply(values, 0.5, out=values))
    server.apply("t", lambda ids, rows: np.add(rows, ids[:, None] % 3, out=rows))
    server.put_note("note", str(first).encode())


def state_of(server: dps.ParameterServer) -> dict[str, Any]:
    """All that a server has, in order of ids."""
    found: dict[str, Any] = {"note": server.note("note"), "versions": server.versions}
    whole, _, _ = server._requests.whole(rescue=False)
    for name in whole:
        found[name] = list(vars(whole[name]).values())
    return found


@pytest.mark.parametrize("how", ["mapped", "stream"])
def test_a_mirror_has_every_bit_of_its_shard(
    three: Client, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "stream":
        monkeypatch.setattr(access, "map_parts", lambda *args: None)
    first = np.random.default_rng(0).normal(size=(60, 3))
    options: dict[str, Any] = {"optimizer": "adam", "learning_rate": 0.1, "n_shards": 2}
    later = {"t": dps.EmbeddingTable(dim=2, capacity=400, init="normal"), "n": 1.0}
    mirrored = dps.ParameterServer({"w": first}, name="kept", mirror=True, client=three, **options)
    with dps.ParameterServer({"w": first}, **options) as alone:
        for server in (mirrored, alone):
            server.create(later)
            use(server, 0)
        before = mirrored.stats()["shards"]
        assert all(shard["mirror"] not in (None, shard["worker"]) for shard in before)
        kill(three, before[0]["worker"])
        use(mirrored, 100)
        use(alone, 100)
        after = mirrored.stats()["shards"]
        assert after[0]["worker"] == before[0]["mirror"]
        assert [shard["lost"] for shard in after] == [None, None]
        other = dps.ParameterServer.connect("kept", client=three)
        for server in (mirrored, other):
            np.testing.assert_equal(state_of(server), state_of(alone))
        other.create({"more": np.ones(3)})
        np.testing.assert_array_equal(mirrored.pull("more"), np.ones(3))
        other.disconnect()
    mirrored.close()
    assert dps.ParameterServer.list(client=three) == []


def test_twenty_callers_go_on_when_a_shard_is_killed_and_no_write_is_lost_or_done_twice(
    three: Client,
) -> None:
    with dps.ParameterServer(
        {"c": np.zeros(20), "t": dps.EmbeddingTable(dim=1, capacity=100)},
        learning_rate=1.0, n_shards=1, mirror=True, client=three,
    ) as server:  # fmt: skip
        done, longest, errors = [0] * 20, [0.0] * 20, []
        ending = threading.Event()

        def push(number: int) -> None:
            try:
                last = time.monotonic()
                while not ending.is_set():
                    if number % 2:
                        server.push("c", [-1.0], [number])
                    else:
                        server.add("t", [[1.0]], [number])
                    now = time.monotonic()
                    longest[number] = max(longest[number], now - last)
                    last, done[number] = now, done[number] + 1
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=push, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        until(lambda: errors or min(done) > 50, "all are at work")
        shard = server.stats()["shards"][0]
        kill(three, shard["worker"])
        before = list(done)
        until(lambda: errors or min(np.subtract(done, before)) > 50, "all go on")
        ending.set()
        for thread in threads:
            thread.join()
        assert not errors
        assert server.stats()["shards"][0]["worker"] == shard["mirror"]
        assert server.pull("t", np.arange(0, 20, 2))[:, 0].tolist() == done[0::2]
        assert server.pull("c", slice(1, 20, 2)).tolist() == done[1::2]
        assert max(longest) < 2.0


def test_a_caller_that_connects_as_the_shard_dies_goes_on_with_the_mirror(
    three: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected, called, calls, armed = access.connected, access.called, [], [True]
    monkeypatch.setattr(access, "map_parts", lambda *args: None)
    with dps.ParameterServer({"w": np.zeros(4)}, n_shards=1, mirror=True, client=three) as server:
        worker = server.stats()["shards"][0]["worker"]

        def dying(*args: Any) -> Any:
            if armed and armed.pop():
                kill(three, worker)
            return connected(*args)

        def counted(*args: Any) -> Any:
            calls.append(args)
            return called(*args)

        monkeypatch.setattr(access, "connected", dying)
        monkeypatch.setattr(access, "called", counted)
        began = time.monotonic()
        for _ in range(10):
            server.add("w", 1.0)
        assert time.monotonic() - began < 5.0
        assert server.pull("w").tolist() == [10.0] * 4
        assert not armed
        assert not calls  # it has come back from Actor calls, if it had taken to them


def test_a_server_goes_on_without_a_mirror_that_died(three: Client) -> None:
    with dps.ParameterServer(
        {"w": np.zeros(4), "v": np.zeros(2)}, n_shards=1, mirror=True, client=three
    ) as server:
        server.add("w", 1.0)
        shard = server.stats()["shards"][0]
        kill(three, shard["mirror"])
        server.add("w", 1.0)
        server.add("v", 1.0)
        server.create({"more": np.zeros(2)})
        server.add("more", 1.0)
        assert server.pull("w").tolist() == [2.0] * 4
        assert server.stats()["shards"][0] | {"callers": []} == shard | {
            "callers": [], "mirror": None,
        }  # fmt: skip
        kill(three, shard["worker"])
        with pytest.raises(ServerLostError, match=r"its worker has died.*w\[0:4\]"):
            server.add("w", 1.0)


def _shut_wires(key: str, dask_worker: Any) -> int:
    services = dask_worker.state.actors[key]._services
    with services._lock:
        wires = list(services._served)
    for wire in wires:
        wire.shut()
    return len(wires)


def test_a_mirror_that_was_cut_off_gets_all_that_it_lacks(three: Client) -> None:
    options: dict[str, Any] = {"optimizer": "adam", "learning_rate": 0.1, "n_shards": 1}
    tensors = {
        "w": np.ones((60, 3)),
        "t": dps.EmbeddingTable(dim=2, capacity=400, init="normal"),
        "n": 1.0,
    }
    with (
        dps.ParameterServer(tensors, mirror=True, client=three, **options) as server,
        dps.ParameterServer(tensors, **options) as alone,
    ):
        use(server, 0)
        shard = server.stats()["shards"][0]
        key = f"dps-mirror-{server._requests.spec.id}-0-1"
        assert three.run(_shut_wires, key, workers=[shard["mirror"]])[shard["mirror"]] > 0
        use(server, 10)
        assert server.stats()["shards"][0]["mirror"] == shard["mirror"]
        kill(three, shard["worker"])
        use(server, 20)
        for first in (0, 10, 20):
            use(alone, first)
        np.testing.assert_equal(state_of(server), state_of(alone))


def test_a_shard_whose_mirror_has_taken_over_answers_no_write(three: Client) -> None:
    with dps.ParameterServer({"w": np.zeros(4)}, n_shards=1, mirror=True, client=three) as server:
        server.add("w", 1.0)
        shard = server.stats()["shards"][0]
        key = f"dps-mirror-{server._requests.spec.id}-0-1"
        Remote(shard["mirror"], key, three).call("promote", timeout=10)
        for _ in range(2):
            with pytest.raises(ServerLostError):
                server.add("w", 1.0)
        for call in (
            lambda: server.pull("w"),
            lambda: server.apply("w", lambda values: np.negative(values, out=values)),
            lambda: server.put_note("what", b"lost"),
        ):
            with pytest.raises(ServerLostError):
                call()
        kill(three, shard["worker"])
        server.add("w", 1.0)
        assert server.pull("w").tolist() == [2.0] * 4
        assert server.note("what") is None


def test_a_server_with_a_name_outlives_one_shard_after_another(three: Client) -> None:
    tensors = {
        "w": np.ones((60, 3)),
        "t": dps.EmbeddingTable(dim=2, capacity=900, init="normal"),
        "n": 1.0,
    }
    options: dict[str, Any] = {"optimizer": "adam", "learning_rate": 0.1, "n_shards": 1}
    server = dps.ParameterServer(tensors, mirror=True, name="long", client=three, **options)
    with dps.ParameterServer(tensors, **options) as alone:
        stopped, done, errors = threading.Event(), [0], []
        server.create({"count": np.zeros(2)})
        alone.create({"count": np.zeros(2)})

        def add() -> None:
            try:
                while not stopped.is_set():
                    server.add("count", 1.0)
                    done[0] += 1
            except Exception as error:
                errors.append(error)

        adding = threading.Thread(target=add)
        adding.start()
        for round_ in range(3):
            use(server, 10 * round_)
            use(alone, 10 * round_)
            shard = server.stats()["shards"][0]
            assert shard["mirror"] is not None
            kill(three, shard["worker" if round_ < 2 else "mirror"])

            def has_another(before: str = shard["mirror"]) -> bool:
                return server.stats()["shards"][0]["mirror"] not in (None, before)

            until(lambda: bool(errors) or has_another(), "there is another mirror")
        stopped.set()
        adding.join()
        assert not errors
        assert server.pull("count").tolist() == [done[0]] * 2
        alone.assign("count", float(done[0]))
        one, other = state_of(server), state_of(alone)
        assert one.pop("versions") == other.pop("versions") | {"count": done[0]}
        np.testing.assert_equal(one, other)
    dps.ParameterServer.connect("long", client=three).close()
    assert list(three.list_datasets()) == []


def request(op: int, number: int, again: int = 0, entry: int = 0, passed: int = 0) -> bytes:
    """As a caller sends it, with one element."""
    fields = [op, 8, 1, 0, 0, 0, 0, 0, 0.0, 0, 0, *[0.0] * 8]
    values = [*fields, 0, 0, 0, 1.0, 77, number, again, entry, passed]
    return struct.pack("8qd2q8d3qd5q", *values) + struct.pack("d", 1.0)


@pytest.mark.parametrize(
    ("first", "between"), [("mirror", "rest"), ("worker", "reads"), *slow(("mirror", "reads"))]
)
def test_a_server_that_is_only_read_or_at_rest_gets_another_mirror(
    first: str, between: str, three: Client
) -> None:
    """Without writes, each side looks whether the other one lives."""
    with dps.ParameterServer(
        {"w": np.zeros(4), "t": dps.EmbeddingTable(dim=2)}, name="read", mirror=True, n_shards=1,
        timeout=10, client=three, optimizer="adam",
    ) as server:  # fmt: skip
        server.push("w", np.ones(4))
        server.add("t", np.ones((3, 2)), [5, 6, 1 << 40])
        value, found = server.pull("w"), server.pull("t", [5, 1 << 40])
        for lost in (first, "worker", "mirror"):
            before = server.stats()["shards"][0]
            known = set(three.list_datasets())
            kill(three, before[lost])

            def another(known: set[Any] = known) -> bool:
                if between == "reads":
                    np.testing.assert_array_equal(server.pull("w"), value)
                return bool({name for name in three.list_datasets() if "mirror" in name} - known)

            until(another, "another mirror is being made")
            until(lambda: server.stats()["shards"][0]["mirror"], "it is whole")
            after = server.stats()["shards"][0]
            assert before[lost] not in (after["mirror"], after["worker"])
            np.testing.assert_array_equal(server.pull("w"), value)
            np.testing.assert_array_equal(server.pull("t", [5, 1 << 40]), found)
            three.wait_for_workers(3, timeout=60)
        server.push("w", np.ones(4))
        assert server.versions == {"w": 2, "t": 1}


def test_memory_of_dead_shards_and_mirrors_is_given_back(three: Client) -> None:
    def files() -> list[Path]:
        return list(folder().glob(f"dps-{server._requests.spec.id}-*"))

    with dps.ParameterServer(
        {"w": np.zeros(100_000)}, name="heavy", mirror=True, n_shards=1, client=three
    ) as server:
        whole = len(files())
        assert whole > 0
        for lost in ("worker", "mirror"):
            victim = server.stats()["shards"][0][lost]
            kill(three, victim)
            three.wait_for_workers(3, timeout=60)

            def whole_again(victim: str = victim) -> bool:
                shard = server.stats()["shards"][0]
                return shard["mirror"] is not None and victim not in shard.values()

            until(whole_again, "it has a mirror")
            until(lambda: len(files()) == whole, "what was left is gone")
            server.add("w", 1.0)
        kill(three, server.stats()["shards"][0]["worker"])
        server.add("w", 1.0)
    until(lambda: files() == [], "also of a mirror that was being made")


def test_writes_go_on_while_a_new_mirror_gets_what_is_there(
    three: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is written meanwhile is in the mirror, bit by bit, which then leads."""
    size = 300_000
    options: dict[str, Any] = {"optimizer": "adam", "learning_rate": 0.01, "n_shards": 1}
    tensors = {
        "w": np.zeros((size, 2)),
        "t": dps.EmbeddingTable(dim=3, capacity=20_000, init="normal"),
    }
    rng = np.random.default_rng(0)
    mirrored = dps.ParameterServer(tensors, name="copied", mirror=True, client=three, **options)
    with mirrored, dps.ParameterServer(tensors, **options) as alone:
        for _ in range(3):
            for server in (mirrored, alone):
                server.push("w", np.full((size, 2), 0.5))
                server.push("t", np.full((5000, 3), 0.5), np.arange(5000) * 977)
        kill(three, mirrored.stats()["shards"][0]["mirror"])
        written = 0
        while written < 20 or not mirrored.stats()["shards"][0]["mirror"]:
            keys = rng.integers(0, size, 50)
            ids = rng.integers(0, 1 << 40, 3) if written < 1000 else np.arange(3)
            values, rows = rng.normal(size=(50, 2)), rng.normal(size=(3, 3))
            for server in (mirrored, alone):
                server.push("w", values, keys)
                server.push("t", rows, ids)
                server.add("w", 1.0, int(keys[0]))
            written += 1
        kill(three, mirrored.stats()["shards"][0]["worker"])
        np.testing.assert_equal(state_of(mirrored), state_of(alone))
        assert written >= 20


def test_a_save_goes_on_with_the_mirror_where_the_shard_dies_that_is_being_read(
    three: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dps.parameter_server.whole._PIECE", 100)
    tensors = {"w": np.arange(1000.0), "t": dps.EmbeddingTable(dim=2, capacity=100)}
    with dps.ParameterServer(tensors, n_shards=1, mirror=True, client=three) as server:
        server.push("t", np.ones((50, 2)), np.arange(50))
        expected = server.pull("t", np.arange(50))
        (shard,) = server.stats()["shards"]
        read, call = [], server._requests.call

        def killing(tensor: TensorSpec, part: int, method: str, *args: Any) -> Any:
            if method == "frozen_rows":
                read.append(args)
                if len(read) == 3:
                    kill(three, shard["worker"])
            return call(tensor, part, method, *args)

        monkeypatch.setattr(server._requests, "call", killing)
        server.save(tmp_path / "saved")
        assert [args[1] for args in read[:4]] == [0, 100, 200, 0]  # it begins again
    with dps.ParameterServer.load(tmp_path / "saved") as saved:
        assert saved.pull("w").tolist() == list(range(1000))
        np.testing.assert_array_equal(saved.pull("t", np.arange(50)), expected)


def test_parts_are_read_in_turn_so_that_no_copy_is_idle(
    three: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dps.parameter_server.whole._PIECE", 100)
    tensors = {"w": np.arange(400.0)}
    with dps.ParameterServer(tensors, optimizer="sgd", n_shards=2, client=three) as server:
        read, call = [], server._requests.call

        def noting(tensor: TensorSpec, part: int, method: str, *args: Any) -> Any:
            read.append((part, method))
            return call(tensor, part, method, *args)

        monkeypatch.setattr(server._requests, "call", noting)
        server.save(tmp_path / "saved")
    pieces = [(0, "frozen_rows"), (1, "frozen_rows")] * 2
    assert read == [(0, "freeze"), (1, "freeze"), *pieces, (0, "thaw"), (1, "thaw")]


def test_what_a_caller_has_frozen_and_does_not_read_is_given_up() -> None:
    now = [0.0]
    frozen, part = Frozen(10.0, clock=lambda: now[0]), PartSnapshot(np.ones((1, 4, 2)), None, 3)
    assert frozen.add(0, "first", part) == (4, None, 3)
    now[0] = 6.0
    frozen.add(1, "second", part)
    now[0] = 12.0
    assert frozen.rows(1, "second", 1, 4).shape == (1, 3, 2)
    frozen.look()
    with pytest.raises(LookupError):
        frozen.rows(0, "first", 0, 4)
    now[0] = 17.0
    frozen.look()
    frozen.rows(1, "second", 0, 4)
    frozen.discard(1, "second")
    with pytest.raises(LookupError):
        frozen.rows(1, "second", 0, 4)


def test_a_copy_goes_without_another_call() -> None:
    part = PartSnapshot(np.ones((1, 4, 2)), None, 3)
    frozen, copy = Frozen(0.05), weakref.ref(part.values)
    frozen.add(0, "token", part)
    del part
    until(lambda: copy() is None, "the copy is dropped")


def test_a_write_that_comes_again_is_done_once() -> None:
    """The shard died after its mirror had the write, and before it answered."""
    spec = ServerSpec("f", None, (TensorSpec("w", (1,), "float64", ((0, 0, 1),)),), SGD(), 0.1, 1)
    mirror = TensorShardState(spec, 0, shared=False, leads=False)

    def ask(*messages: bytes) -> list[int]:
        """Endings of the requests."""
        with socket.create_server(("127.0.0.1", 0)) as listening:
            ours = socket.create_connection(listening.getsockname())
            theirs, _ = listening.accept()
        wire = SocketWire(theirs, b"", lambda: None, ConnectionError, 1.0)
        with ours:
            ours.sendall(b"".join(messages))
            ours.shutdown(socket.SHUT_WR)
            entry = mirror.entries.take()
            Service(wire, lambda message: b"", parts=mirror.parts, entry=entry).run(bytes)
            mirror.entries.give_back(entry)
            wire.close()
            answers = ours.makefile("rb").read()
        size = len(answers) // len(messages)
        return [struct.unpack_from("q", answers, at * size)[0] for at in range(len(messages))]

    assert ask(request(Op.ADD, 1)) == [Ending.MOVED]
    passed = [request(Op.ADD, number, passed=1, entry=5) for number in (1, 2)]
    assert ask(*passed) == [Ending.RAN] * 2
    assert mirror.promote() is None  # it may lack something
    mirror.follow("whole")
    assert mirror.promote() is not None
    assert ask(passed[0]) == [Ending.MOVED]
    again = [request(Op.ADD, number, again=1) for number in (2, 3)]
    assert ask(*again) == [Ending.RAN] * 2
    assert mirror.stores[0].params.tolist() == [3.0]
    assert ask(again[1]) == [Ending.RAN]
    assert mirror.stores[0].params.tolist() == [3.0]
    mirror.close()


def test_where_a_write_was_noted_nobody_else_s_is_for_a_while() -> None:
    """Its caller may ask for it again when it has found out that the shard is gone."""
    careful, hasty = CallerSlots(60.0), CallerSlots(-1.0)
    for entries in (careful, hasty):
        assert [entries.take(), entries.take()] == [0, 1]
        entries.give_back(0)
    assert (careful.take(), hasty.take()) == (2, 0)


@pytest.mark.parametrize("mirror", [1, "yes", None])
def test_what_mirror_may_be(mirror: Any) -> None:
    with pytest.raises(ValueError, match="'mirror' parameter of ParameterServer must be a bool"):
        dps.ParameterServer({"w": [1.0]}, mirror=mirror)
