"""Tensors that are made on a server that is there, and notes beside them."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import pairs, slow
from conditions import until
from distributed import Client, LocalCluster

import dps
from dps.errors import ServerLostError
from dps.parameter_server.arguments import specs_of
from dps.parameter_server.client import access
from dps.parameter_server.shard.state import TensorShardState
from dps.transport import wires


@pytest.fixture(params=["this process", "mapped", "stream", "calls"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Options of a server that is reached in that way."""
    if request.param == "this process":
        return {}
    if request.param != "mapped":
        monkeypatch.setattr(access, "map_parts", lambda *args: None)
    if request.param == "calls":
        monkeypatch.setattr(wires, "can_be_taken_over", lambda comm: False)
    return {"client": request.getfixturevalue("client")}


def test_what_one_creates_all_others_find(way: dict[str, Any]) -> None:
    with dps.ParameterServer(name="grows", optimizer="adam", n_shards=2, **way) as server:
        early = dps.ParameterServer.connect("grows", **way)
        assert server.versions == {}
        w = np.arange(12.0).reshape(6, 2)
        server.create({"w": w, "t": dps.EmbeddingTable(dim=2)})
        np.testing.assert_array_equal(early.pull("w"), w)
        early.push("w", np.ones((6, 2)))
        before = early.pull("w")
        early.create({"v": np.ones(3, np.float32)}, placement="round_robin")
        for each in (server, early, late := dps.ParameterServer.connect("grows", **way)):
            assert each.pull("v").tolist() == [1, 1, 1]
            np.testing.assert_array_equal(each.pull("w"), before)
            each.add("v", 1.0)
            each.add("t", np.ones((1, 2)), [5])
            each.add("v", -1.0)
        assert late.versions == server.versions == {"w": 1, "t": 3, "v": 6}
        assert server.stats()["tensors"]["t"]["rows"] == 1
        assert server.dtypes == {"w": "float64", "t": "table of float32", "v": "float32"}
        with pytest.raises(ValueError, match="there is a tensor 'v' on server 'grows' already"):
            late.create({"u": 1.0, "v": 2.0})
        with pytest.raises(KeyError, match=r"no tensor 'u' .* there are \['t', 'v', 'w'\]"):
            server.pull("u")
        for each in (early, late):
            each.disconnect()


def test_of_those_who_create_at_once_each_tensor_is_of_one(client: Client) -> None:
    made, refused = [], []

    def create(number: int) -> None:
        mine = dps.ParameterServer.connect("race", client=client)
        for name in "abc":
            try:
                mine.create({name: np.full((4, 2), number), f"{name}{number}": np.full(3, number)})
                made.append((name, number))
            except ValueError:
                refused.append((name, number))
        mine.disconnect()

    with dps.ParameterServer(name="race", n_shards=3, client=client) as server:
        threads = [threading.Thread(target=create, args=(n,)) for n in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(name for name, _ in made) == ["a", "b", "c"]
        assert len(refused) == 9
        for name, number in made:
            assert (server.pull(name) == number).all()
            assert (server.pull(f"{name}{number}") == number).all()
        assert len(server.versions) == 6


def test_a_closed_server_creates_nothing(client: Client) -> None:
    for where in ({}, {"client": client}):
        server = dps.ParameterServer(name="over", **where)
        other = dps.ParameterServer.connect("over", **where)
        server.close()
        for each in (server, other):
            with pytest.raises(ServerLostError):
                each.create({"w": 1.0})
            each.disconnect()


def test_notes_are_kept_beside_tensors_and_in_files(way: dict[str, Any], tmp_path: Path) -> None:
    with dps.ParameterServer(name="noted", **way) as server:
        assert server.note("what") is None
        server.put_note("what", b"a")
        server.put_note("what", b"\x00 ranker")
        server.put_note("empty", b"")
        other = dps.ParameterServer.connect("noted", **way)
        assert (other.note("what"), other.note("empty")) == (b"\x00 ranker", b"")
        other.disconnect()
        server.create({"w": np.ones(3)})
        server.save(tmp_path / "saved")
    with dps.ParameterServer.load(tmp_path / "saved", n_shards=2) as again:
        assert (again.note("what"), again.note("empty")) == (b"\x00 ranker", b"")
        assert again.pull("w").tolist() == [1, 1, 1]


def test_a_name_is_created_once_whoever_else_has_heard_of_it(way: dict[str, Any]) -> None:
    with dps.ParameterServer(name="twice", n_shards=2, **way) as server:
        other = dps.ParameterServer.connect("twice", **way)
        server.create({"w": np.zeros(4), "t": dps.EmbeddingTable(dim=2)})
        server.add("w", 1.0)
        for name, value in {"w": np.zeros(4), "t": dps.EmbeddingTable(dim=2)}.items():
            with pytest.raises(ValueError, match=f"there is a tensor '{name}' on server 'twice'"):
                other.create({name: value, "more": np.zeros(2)})
        assert other.pull("w").tolist() == [1, 1, 1, 1]
        assert other.names() == ["w", "t"]
        other.create({"more": np.zeros(2)})  # nothing is left of what was refused
        assert server.pull("more").tolist() == [0, 0]
        other.disconnect()


def test_of_those_who_create_the_same_at_once_one_has_it(way: dict[str, Any]) -> None:
    refused: list[ValueError] = []

    def create() -> None:
        mine = dps.ParameterServer.connect("same", **way)
        try:
            mine.create({"w": np.zeros(3)})
        except ValueError as error:
            refused.append(error)
        mine.add("w", 1.0)
        mine.disconnect()

    with dps.ParameterServer(name="same", n_shards=2, **way) as server:
        threads = [threading.Thread(target=create) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(refused) == 3
        assert server.pull("w").tolist() == [4, 4, 4]


def test_writes_that_return_while_a_tensor_is_created_are_there(
    way: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others use each part as soon as they find it."""
    monkeypatch.setattr("dps.parameter_server.shard.mirroring._PIECE", 100)
    size, returned, seen = 5000, [0], set()
    with dps.ParameterServer(name="early", n_shards=2, **way) as server:
        other = dps.ParameterServer.connect("early", **way)
        ended = threading.Event()

        def add() -> None:
            while not ended.is_set():
                if "w" in other:
                    other.add("w", 1.0, slice(size - 4, size))
                    returned[0] += 1
                    seen.update(other.pull("w", slice(0, 10)).tolist())

        thread = threading.Thread(target=add)
        thread.start()
        server.create({"w": np.full(size, 7.0)})
        while returned[0] < 20:
            ended.wait(0.001)
        ended.set()
        thread.join()
        assert server.pull("w", slice(size - 4, size)).tolist() == [7.0 + returned[0]] * 4
        assert seen == {7.0}  # no one has seen a part before it was filled
        other.disconnect()


def method(monkeypatch: pytest.MonkeyPatch, name: str, instead: Any) -> None:
    """Put something in the place of a call of a shard's, for handles of this process."""
    for kind in (TensorShardState, access.RemoteAccess):
        whole = kind.call

        def call(self: Any, called: str, *args: Any, whole: Any = whole) -> Any:
            if called == name:
                return instead(lambda: whole(self, called, *args))
            return whole(self, called, *args)

        monkeypatch.setattr(kind, "call", call)
    if name == "extend":  # of a server in this process
        extend = TensorShardState.extend
        monkeypatch.setattr(
            TensorShardState, "extend", lambda self, spec: instead(lambda: extend(self, spec))
        )


class Killed(BaseException):
    """The creator's process has died: it does nothing more."""


@pairs(
    point=["prepare", "fill", "extend"],
    nth=[1, 2],
    way=["this process", "mapped", "stream", "calls"],
    indirect=["way"],
)
def test_a_creator_that_dies_at_any_point_leaves_all_or_nothing(
    point: str, nth: int, way: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with dps.ParameterServer(name="left", n_shards=2, timeout=5.0, **way) as server:
        other = dps.ParameterServer.connect("left", **way)
        calls: list[int] = []

        def dies(call: Any) -> Any:
            calls.append(1)
            if len(calls) >= nth:
                raise Killed
            return call()

        with monkeypatch.context() as patch:
            method(patch, point, dies)
            method(patch, "discard", dies)
            calls.clear()
            with pytest.raises(Killed):
                server.create({"w": np.arange(4.0), "t": dps.EmbeddingTable(dim=2)})
        if point == "extend" and nth == 2:  # the first shard has it
            assert other.pull("w").tolist() == [0, 1, 2, 3]
            with pytest.raises(ValueError, match="there is a tensor 'w'"):
                other.create({"w": np.zeros(4)})
        else:
            assert other.names() == []
            other.create({"w": np.ones(4), "t": dps.EmbeddingTable(dim=2)})
            assert other.pull("w").tolist() == [1] * 4
        other.add("t", np.ones((1, 2)), [3])
        other.create({"later": np.ones(2)})
        assert server.pull("later").tolist() == [1, 1]
        other.disconnect()


def test_what_a_dead_creator_has_left_is_given_up(way: dict[str, Any]) -> None:
    with dps.ParameterServer(name="given up", n_shards=2, timeout=1.0, **way) as server:
        tensors = specs_of({"w": np.zeros(1000)}, 2, "contiguous")
        token = tensors[0].creation
        for shard in (0, 1):
            server._requests.reach(shard).call("prepare", token, tensors, ())
        reach = server._requests.reach
        until(lambda: reach(0).call("abandoned") == (token,), "it is idle")
        server.create({"w": np.ones(4)})
        for shard in (0, 1):
            assert not reach(shard).call("discard", token)
        assert server.pull("w").tolist() == [1] * 4


@pytest.mark.parametrize(("point", "nth"), [("fill", 3), *slow(("extend", 1))])
def test_a_mirror_that_takes_over_goes_on_with_a_creation(
    point: str, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker of a shard dies while a tensor is filled, or as it is committed."""
    monkeypatch.setattr("dps.parameter_server.shard.mirroring._PIECE", 100)
    with (
        LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
        dps.ParameterServer(name="creating", n_shards=1, mirror=True, client=client) as server,
    ):
        worker = server.stats()["shards"][0]["worker"]
        calls: list[int] = []

        def strike(call: Any) -> Any:
            calls.append(1)
            if len(calls) == nth:
                os.kill(client.run(os.getpid, workers=[worker])[worker], signal.SIGKILL)
                until(lambda: worker not in client.nthreads(), "Dask knows")
            return call()

        with monkeypatch.context() as patch:
            method(patch, point, strike)
            server.create({"w": np.arange(1000.0)})
        assert len(calls) >= nth
        assert server.pull("w").tolist() == list(range(1000))
        assert server.stats()["shards"][0]["worker"] != worker
