"""Tensors that are made on a server that is there, and notes beside them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dps
from dps.errors import ServerLostError
from dps.transport import callers, wires


@pytest.fixture(params=["this process", "mapped", "stream", "calls"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Options of a server that is reached in that way."""
    if request.param == "this process":
        return {}
    if request.param != "mapped":
        monkeypatch.setattr(callers, "map_parts", lambda *args: None)
    if request.param == "calls":
        monkeypatch.setattr(wires, "can_be_taken_over", lambda comm: False)
    return {"client": request.getfixturevalue("client")}


def test_what_one_creates_all_others_find(way: dict[str, Any]) -> None:
    with dps.ParameterServer(name="grows", optimizer="adam", n_shards=2, **way) as server:
        early = dps.ParameterServer.connect("grows", **way)
        assert server.versions == {}
        w = np.arange(12.0).reshape(6, 2)
        server.create({"w": w, "t": dps.Table(dim=2)})
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
