"""Shared fixtures: a cluster, processes beside it, and a check that tests leave nothing behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client
from distributed.utils import get_mp_context
from hypothesis import settings
from local import SharedCluster, local_client
from own_names import OwnNames
from threadpoolctl import threadpool_limits

from dps.server.memory.files import SharedFile

# Scripts, which import each other as such; test_benchmarks runs them.
collect_ignore = ["benchmarks"]

# A shell has it ignored by what it runs in the background, and so by all that is started here.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run; --hypothesis-profile=default draws others, and more.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=25)
settings.load_profile("repeatable")

# As in Dask's own tests, a worker is forked from a process that has imported Dask already, and
# here dps too. Examples and benchmarks, and one of the runs beside the tests, start theirs as
# users do.
# Workers do without Dask's profile of their threads: `sys._current_frames` of CPython 3.11 can stop
# a process for ever, where garbage is collected in it while a thread ends (gh-106883).
dask.config.set(
    {
        "distributed.worker.multiprocessing-method": "forkserver",
        "distributed.worker.profile.enabled": False,
        # An idle cluster of two workers takes a sixth of a core by its defaults.
        "distributed.admin.tick.interval": "500ms",
        "distributed.admin.system-monitor.interval": "10s",
        "distributed.worker.memory.monitor-interval": "1s",
    }
)

get_mp_context().set_forkserver_preload(
    [
        "distributed.nanny", "dask.array", "dask.dataframe", "pyarrow.dataset",
        "sklearn.linear_model", "dps.cluster.dask.fit", "dps.estimators",
        "dps.parameter_server.shard.actor", "dps.training.replica.replica",
    ]
)  # fmt: skip

_MONOTONIC = time.monotonic

# Of two processes none should have a long file left when the other is done: these come first.
LONG = (
    "benchmarks", "docs", "failure", "hosts", "waiting", "streaming", "dashboard", "recovery",
    "model_selection", "dashboard_in_chromium", "torch", "exactness", "order", "mlp", "events",
)  # fmt: skip


class Beside:
    """The file of a test, run as a script beside the other tests."""

    def __init__(self, script: Path, argument: str, said: Path) -> None:
        self.said = said
        harness = str(Path(__file__).parent / "harness")
        path = os.pathsep.join(filter(None, (harness, os.environ.get("PYTHONPATH"))))
        with said.open("w") as file:  # a pipe that no one reads yet would fill up
            self._process = subprocess.Popen(
                [sys.executable, script, argument],
                stderr=file,
                env={**os.environ, "PYTHONPATH": path},
            )
        self.wait = self._process.wait

    def end(self) -> None:
        """End it, if it still runs."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait()


def _argument(item: Any) -> str | None:
    marker = item.get_closest_marker("beside")
    return marker.args[0] if marker else None


def pytest_configure(config: pytest.Config) -> None:
    """Have pytest-xdist hand files out as they come: the most tests are not the longest."""
    config.option.loadscopereorder = False


def _rank(item: pytest.Item) -> int:
    front, _, name = item.path.stem.partition("test_")
    return LONG.index(name) if not front and name in LONG else len(LONG)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files come first; in each, tests that wait for a process of their own come last."""
    items.sort(key=lambda item: (_rank(item), _argument(item) is not None))


def pytest_collection_finish() -> None:
    """Have the garbage collector leave out what stays: it stopped all threads for a second.

    By then all libraries are loaded. Threads of BLAS would spin on cores that others need.
    """
    gc.collect()
    gc.freeze()
    threadpool_limits(1, "blas")


@pytest.fixture
def monkeypatch() -> Iterator[OwnNames]:
    """Pytest's own, for names of dps and of the tests alone."""
    with OwnNames.context() as patch:
        yield patch  # type: ignore[misc]


@pytest.fixture(autouse=True)
def _options_are_put_back() -> Iterator[None]:
    """Those of dps in Dask's configuration, see `configure`."""
    before = dict(dask.config.get("dps", {}))
    yield
    dask.config.set({"dps": before})


@pytest.fixture(scope="session", autouse=True)
def _beside(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Beside]]:
    """The processes that the chosen tests wait for, from the first test on."""
    folder = tmp_path_factory.mktemp("beside")
    started = {
        item.nodeid: Beside(item.path, argument, folder / argument)
        for item in request.session.items
        if (argument := _argument(item)) is not None
    }
    yield started
    for process in started.values():
        process.end()


@pytest.fixture
def beside(request: pytest.FixtureRequest, _beside: dict[str, Beside]) -> Beside:
    """The process that was started for this test."""
    return _beside[request.node.nodeid]


@pytest.fixture(scope="session")
def _shared() -> Iterator[SharedCluster]:
    with closing(SharedCluster()) as shared:
        yield shared


@pytest.fixture
def client(_shared: SharedCluster) -> Iterator[Client]:
    """A client of two worker processes with two threads each, which no test may harm."""
    yield _shared.client()
    _shared.check()


@pytest.fixture(scope="module")
def _mortal() -> Iterator[Client]:
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"}),
        local_client(3) as client,
    ):
        yield client


@pytest.fixture
def mortal(_mortal: Client) -> Client:
    """A client of three worker processes, and of another one for each that dies."""
    _mortal.wait_for_workers(3, timeout=60)
    return _mortal


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made: list[Path] = []
    create = SharedFile.create

    def noting(*args: Any) -> SharedFile:
        file = create(*args)
        made.append(file.path)
        return file

    monkeypatch.setattr(SharedFile, "create", noting)
    yield
    assert time.monotonic is _MONOTONIC, "the clock of Dask's event loop has been replaced"
    assert not [t.name for t in threading.enumerate() if t.name.startswith("dps-")]
    assert not [path for path in made if path.exists()]
