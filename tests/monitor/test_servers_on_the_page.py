"""Parameter servers on the page: what their shards say, and who leaves it when."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import dask
import numpy as np
import pytest
from conditions import until
from distributed import Client
from local import local_client

import dps
from dps.monitor.events import event
from dps.monitor.page.palette import LIGHT
from dps.monitor.page.panels import ServersPanel
from dps.monitor.page.view import view_of
from dps.monitor.scheduler.checking import is_sound
from dps.monitor.scheduler.plugin import plugin_of
from dps.monitor.scheduler.servers import LINGER
from dps.monitor.scheduler.store import FitStore
from dps.monitor.shard.server_reporter import ServerReporter


def said(id: str, shard: int = 0, **changed: Any) -> dict[str, Any]:
    fields = {
        "name": "ranker", "shard": shard, "shards": 2, "worker": f"tcp://10.0.0.{shard}:1",
        "final": False, "tensors": ["w"], "nbytes": 1024, "callers": ["a:1", f"b:{shard}"],
        "reads_per_second": 10.0 + shard, "pushes_per_second": 2.0, "writes_per_second": 3.0,
    }  # fmt: skip
    return event("server", id, **{**fields, **changed})


def shown(store: FitStore) -> str:
    panel = ServersPanel(LIGHT)
    panel.update(view_of(store, [], 0.0))
    return str(panel.root.text)


def test_a_server_is_a_row_of_all_its_shards() -> None:
    store = FitStore()
    assert "There is no dps.ParameterServer" in shown(store)
    for shard in (1, 0):
        made = said("f00d", shard, tensors=[f"<b>{shard}"], name="<i>ranker")
        assert is_sound(made)
        store.add(made, 1.0)
    (server,) = store.servers.all
    assert not store.fits
    assert (server.n_shards, server.bytes, server.callers) == (2, 2048, 3)
    assert (server.rate("reads"), server.rate("pushes")) == (11.0, 2.0)
    page = shown(store)
    for word in ("&lt;i&gt;ranker", "&lt;b&gt;0, &lt;b&gt;1", "2.00 kiB", "10.0.0.1:1"):
        assert word in page
    assert "lost" not in page


def test_one_that_is_closed_leaves_and_one_whose_worker_dies_is_lost() -> None:
    store = FitStore()
    for id in ("open", "closed"):
        for shard in range(2):
            store.add(said(id, shard, name=id), 1.0)
    store.add(said("closed", 1, final=True), 2.0)
    store.add(said("closed", 0), 3.0)  # on its way since
    store.lose("tcp://10.0.0.1:1", 4.0)
    (server,) = store.servers.all
    assert (server.name, server.lost) == ("open", {1: "tcp://10.0.0.1:1"})
    assert (server.bytes, server.callers) == (1024, 2)
    assert "1 shard lost" in shown(store)
    store.lose("tcp://10.0.0.0:1", 5.0)
    store.add(said("new"), 6.0)
    assert len(store.servers.all) == 2
    assert [server.id for server in store.servers.shown(6.0 + LINGER)] == ["new"]
    store.add(said("newer"), 6.0 + LINGER)
    assert [server.id for server in store.servers.all] == ["new", "newer"]
    for number in range(200):
        store.add(said(f"{number}"), 7.0 + LINGER)
    assert len(store.servers.all) <= 51


def servers_of(dask_scheduler: Any) -> list[tuple[Any, ...]]:
    return [
        (each.name, each.n_shards, len(each.shards), each.tensors, each.callers, sorted(each.lost))
        for each in plugin_of(dask_scheduler).store.servers.all
    ]


def becomes(client: Client, wanted: Any) -> None:
    until(lambda: client.run_on_scheduler(servers_of) == wanted, f"the page shows {wanted}")


def test_the_page_follows_servers_as_they_come_and_go() -> None:
    with local_client(2) as client:
        first = dps.ParameterServer({"w": np.zeros(4)}, name="first", client=client)
        becomes(client, [("first", 1, 1, ["w"], 0, [])])
        first.add("w", 1.0)
        becomes(client, [("first", 1, 1, ["w"], 1, [])])
        first.create({"v": 1.0})
        first.add("v", 1.0)
        becomes(client, [("first", 1, 1, ["v", "w"], 1, [])])
        second = dps.ParameterServer({"u": np.zeros(4)}, n_shards=2, client=client)
        second.add("u", 1.0)
        becomes(client, [("first", 1, 1, ["v", "w"], 1, []), (None, 2, 2, ["u"], 1, [])])
        first.close()
        becomes(client, [(None, 2, 2, ["u"], 1, [])])
        victim = second.stats()["shards"][1]["worker"]
        pid = client.run(os.getpid, workers=[victim])[victim]
        os.kill(pid, signal.SIGKILL)
        becomes(client, [(None, 2, 2, ["u"], 1, [1])])
        del second  # no one holds it any more
        becomes(client, [])


def test_an_idle_server_says_nothing_and_an_unwatched_one_never(client: Client) -> None:
    def events() -> list[Any]:
        found = [each for _, each in client.get_events("dps") if each["kind"] == "server"]
        assert all(map(is_sound, found))
        return [each for each in found if each["name"] in ("idle", "dark")]

    with dps.ParameterServer({"w": np.zeros(4)}, name="idle", client=client):
        waiting = threading.Event()
        while not events():
            waiting.wait(0.05)
        # Some looks later there is nothing more to be said.
        with dps.ParameterServer({"w": np.zeros(4)}, name="later", client=client):
            waiting.wait(1.5)
        assert len(events()) == 1
    with (
        dask.config.set({"dps.monitor": False}),
        dps.ParameterServer({"w": np.zeros(4)}, name="dark", client=client) as server,
    ):
        server.add("w", 1.0)
        while len(events()) < 2:  # that of the one which has been closed
            waiting.wait(0.05)
        assert {each["name"] for each in events()} == {"idle"}


@pytest.mark.parametrize("seconds", [1.0, 100.0, 10_000.0])
def test_a_busy_server_says_something_at_most_twice_a_second(seconds: float) -> None:
    now, logged, reads = [0.0], [], [0]

    class Loop:
        def add_callback(self, *args: Any, **options: Any) -> None: ...

    class Worker:
        loop, address = Loop(), "tcp://here"

        def log_event(self, topic: str, message: Any) -> None:
            logged.append(message)

    def look() -> dict[str, Any]:
        reads[0] += 1
        part = {"reads": reads[0] ** 2, "pushes": 0, "writes": 0, "bytes": 8}
        return {"parts": {"w": part}, "callers": []}

    reporter = ServerReporter(Worker(), "f00d", 0, 1, None, look, clock=lambda: now[0])
    for tick in range(int(seconds * 2)):
        now[0] = (tick + 1) / 2
        reporter.look()
    assert len(logged) == reads[0] <= min(2 * seconds, 100 + seconds / 5)
