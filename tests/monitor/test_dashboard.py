"""The page of fits on Dask's dashboard: where it appears, and what happens where it cannot."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from bokeh.core.validation import check_integrity
from bokeh.document import Document
from cases import slow
from conditions import until
from configure import configure
from distributed import Client, LocalCluster
from distributed.security import Security

import dps
from dps.errors import VersionError
from dps.monitor.dashboard import show_fits
from dps.monitor.page.document import PLOTS, applications
from dps.monitor.scheduler.plugin import NAME, FitsPlugin, store_of
from dps.monitor.scheduler.store import FITS
from dps.preprocessing import FrameEncoder

X = da.from_array(np.random.default_rng(0).normal(size=(400, 5)), chunks=(100, -1))
Y = (X[:, 0] > 0).astype(int)


def fit(client: Client, **parameters: Any) -> dps.LinearClassifier:
    settings = {"optimizer": "adagrad", "tol": None, "max_iter": 3, "random_state": 0}
    return dps.LinearClassifier(client=client, **{**settings, **parameters}).fit(X, Y)


def address(client: Client, path: str = "") -> str:
    port = client.scheduler_info()["services"]["dashboard"]
    return f"http://127.0.0.1:{port}/{path}"


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


#: Has a module missing in a process.
MISSING = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "{0}":
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""


@contextlib.contextmanager
def processes(
    folder: Path, *options: str, stub: str = "", theirs: str = "", tls: Any = None
) -> Iterator[Client]:
    """A cluster whose scheduler is a process of its own.

    In it, the module `stub` cannot be imported, or another version of dps is installed.
    """
    file = str(folder / "scheduler.json")
    environment = dict(os.environ)
    if theirs:
        (folder / f"dps-{theirs}.dist-info").mkdir()
        (folder / f"dps-{theirs}.dist-info" / "METADATA").write_text(
            f"Name: dps\nVersion: {theirs}\n"
        )
    if stub:
        (folder / "sitecustomize.py").write_text(MISSING.format(stub))
    if stub or theirs:
        paths = [str(folder), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    command = [sys.executable, "-m", "distributed.cli.dask_"]
    shared = ["--scheduler-file", file]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    scheduler = [
        *command[:2], command[2] + "scheduler", "--host", "127.0.0.1", "--port", "0",
        "--dashboard-address", "127.0.0.1:0", *shared, *options,
    ]  # fmt: skip
    worker = [*command[:2], command[2] + "worker", *shared, "--nthreads", "1", "--no-dashboard"]
    started = [subprocess.Popen(scheduler, env=environment, cwd=folder, **quiet)]
    try:
        started.append(subprocess.Popen(worker, **quiet))
        with Client(scheduler_file=file, set_as_default=False, timeout=60) as client:
            client.wait_for_workers(1, timeout=60)
            yield client
    finally:
        for process in started:
            process.terminate()
            process.wait()


def assert_page_is_there(client: Client, prefix: str = "") -> None:
    assert 'class="loss"' in read(address(client, f"{prefix}dps"))
    for path in PLOTS:
        assert "Bokeh" in read(address(client, prefix + path.strip("/")))
    navigation = read(address(client, f"{prefix}status"))
    assert '<a href="dps">' in navigation
    assert navigation.count('<a href="individual-dps-loss">') == 1


@pytest.mark.parametrize("path", ["/dps", *PLOTS])
def test_bokeh_finds_the_documents_sound(path: str) -> None:
    document = Document()
    plugin = FitsPlugin()
    scheduler = SimpleNamespace(plugins={NAME: plugin})
    applications(store_of)[path](scheduler, {}, document)
    issues = check_integrity(document.models)
    assert (issues.error, issues.warning) == ([], [])


def test_a_fit_puts_the_page_on_a_dashboard_that_runs_already(client: Client) -> None:
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster, set_as_default=False) as fresh,
    ):
        with pytest.raises(urllib.error.HTTPError, match="404") as missing:
            read(address(fresh, "dps"))
        missing.value.close()
        fit(fresh)
        fit(fresh)
        assert_page_is_there(fresh)


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["", "behind/proxy/"])
def test_the_page_appears_where_the_scheduler_is_a_process_of_its_own(
    prefix: str, tmp_path: Path
) -> None:
    options = ["--dashboard-prefix", prefix.rstrip("/")] if prefix else []
    with processes(tmp_path, *options) as client:
        fit(client)
        assert_page_is_there(client, prefix)


@pytest.mark.slow
def test_the_preload_has_the_page_before_any_fit_and_in_the_list_of_jupyterlab(
    tmp_path: Path,
) -> None:
    with processes(tmp_path, "--preload", "dps.monitor.preload") as client:
        assert_page_is_there(client)
        listed = json.loads(read(address(client, "individual-plots.json")))
        assert set(PLOTS) <= set(listed.values())
        fit(client)
        assert_page_is_there(client)


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["bokeh", "dps.monitor.scheduler.plugin"])
def test_a_scheduler_without_bokeh_or_this_dps_is_one_warning_and_a_model(
    missing: str, tmp_path: Path
) -> None:
    with processes(tmp_path, stub=missing) as client:
        match = f"no page of dps: .*{missing}.*Training goes on"
        with pytest.warns(UserWarning, match=match) as said:
            first = fit(client)
        assert len(said) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert fit(client).coef_ == pytest.approx(first.coef_)


#: A cluster that has shown a page, and is closed.
CLOSED = """
import dps
from distributed import Client, LocalCluster
if __name__ == "__main__":
    address = {"dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=1, processes=False, **address) as cluster, Client(cluster) as c:
        dps.LinearClassifier(client=c).fit([[0.0], [1.0]] * 9, [0, 1] * 9)
        print("dps-fits" in cluster.scheduler.plugins)
"""


def test_a_cluster_closes_without_a_word() -> None:
    done = subprocess.run([sys.executable, "-c", CLOSED], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_fits_at_once_warn_once() -> None:
    class Silent:
        _run_on_scheduler = None

        def sync(self, *args: Any, **options: Any) -> None:
            show_fits(self, 1.0)  # of another fit, meanwhile
            raise TimeoutError

    client = Silent()
    with pytest.warns(UserWarning, match="the scheduler does not answer") as said:
        show_fits(client, 1.0)
    assert len(said) == 1


def test_another_dps_on_the_scheduler(tmp_path: Path) -> None:
    with processes(tmp_path, theirs="0.0.1") as client:
        for _ in range(2):
            with pytest.raises(VersionError, match=r"the scheduler has dps 0\.0\.1, this process"):
                fit(client)
        with dask.config.set({"dps.monitor": False}):
            fit(client)


@pytest.fixture(scope="module")
def scheduler_without_dps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A cluster whose scheduler cannot import dps, after the one warning of that."""
    with processes(tmp_path_factory.mktemp("scheduler"), stub="dps") as client:
        with pytest.warns(UserWarning, match="is dps installed there?") as said:
            fit(client)
        assert len(said) == 1
        yield client


@pytest.mark.parametrize(
    ("mode", "optimizer"),
    [("sync", "auto"), *slow(("async", "adagrad"), ("allreduce", "adagrad"))],
)
def test_training_does_without_dps_on_the_scheduler(
    scheduler_without_dps: Client, client: Client, mode: str, optimizer: str
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen = {"mode": mode, "optimizer": optimizer, "n_replicas": 1}
        found = fit(scheduler_without_dps, **chosen)
        assert found.coef_ == pytest.approx(fit(client, **chosen).coef_)
        right = (found.predict(X) == Y).mean()
        assert found.score(X, Y) == scheduler_without_dps.compute(right, sync=True) > 0.75


@pytest.mark.parametrize("cache", ["disk", None])
def test_dataframes_are_encoded_without_dps_on_the_scheduler(
    scheduler_without_dps: Client, cache: str | None
) -> None:
    frame = dd.from_pandas(
        pd.DataFrame({"letter": list("abcd") * 100, "number": np.arange(400.0)}), npartitions=4
    )
    y = frame["number"].map_partitions(lambda values: values % 4 == 0, meta=("y", bool))
    with scheduler_without_dps.as_current(), warnings.catch_warnings():
        warnings.simplefilter("error")
        configure(cache=cache)
        model = dps.LinearClassifier().fit(frame, y)
        assert model.score(frame, y) == 1.0
        probabilities = model.predict_proba(frame).compute()
        assert (probabilities[True] > 0.5).sum() == 100
        blocks = FrameEncoder().fit(frame).transform(frame)
        assert blocks.compute().shape == (400, 5)


@pytest.mark.slow
def test_slow_partitions_are_waited_for_without_dps_on_the_scheduler(
    scheduler_without_dps: Client,
) -> None:
    def slow(block: Any) -> Any:
        time.sleep(4.0)  # longer than a look at the scheduler's tasks is away
        return block

    rows = X.map_blocks(slow, meta=X._meta)
    configure(timeout=3.0)
    model = dps.LinearClassifier(client=scheduler_without_dps)
    assert model.fit(rows, Y).score(X, Y) > 0.75


def test_rows_are_dealt_out_without_dps_on_the_scheduler(scheduler_without_dps: Client) -> None:
    rows = da.from_array(np.linspace(-1.0, 1.0, 400)[:, None], chunks=(50, -1))
    labels = rows[:, 0] > 0
    model = dps.LinearClassifier(shuffle="global", client=scheduler_without_dps)
    assert model.fit(rows, labels).score(rows, labels) > 0.9


def test_without_a_dashboard_nobody_is_warned(tmp_path: Path) -> None:
    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=False,
            dashboard_address=":0",
            scheduler_kwargs={"dashboard": False},
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        assert not cluster.scheduler.http_application.applications
        fit(client)


def test_the_page_appears_with_tls() -> None:
    pytest.importorskip("cryptography", reason="certificates are made with it")
    security = Security.temporary()
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, security=security,
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster, security=security, set_as_default=False) as client,
    ):  # fmt: skip
        assert client.scheduler.address.startswith("tls://")
        fit(client)
        assert_page_is_there(client)


@pytest.mark.slow
def test_the_page_keeps_no_more_than_its_bound_of_twenty_and_more_fits(client: Client) -> None:
    def state(dask_scheduler: Any) -> dict[str, tuple[str, int]]:
        store = dask_scheduler.plugins[NAME].store
        return {f.id: (f.outcome, len(f.losses)) for f in store.fits}

    fit(client)
    before = client.run_on_scheduler(state)

    def several() -> None:
        for _ in range(FITS // 2 + 1):
            fit(client, n_replicas=1)

    both = [threading.Thread(target=several) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()

    def now() -> dict[str, tuple[str, int]]:
        return client.run_on_scheduler(state)

    # Events and questions come to the scheduler by different ways. A fit of another test, of
    # whose end no one has heard, stays.
    until(
        lambda: set(before) >= {id for id, (outcome, _) in now().items() if outcome == "running"},
        "all of its fits have ended",
    )
    fits = now()
    assert len(fits) == FITS
    ours = [told for id, told in fits.items() if id not in before]
    assert set(ours) == {("max_iter", 3)}
    assert len(ours) >= FITS - sum(outcome == "running" for outcome, _ in before.values())
    page = read(address(client, "dps"))
    assert len(re.findall("LinearClassifier \\d+", page)) <= 4 * FITS
