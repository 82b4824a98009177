"""Clusters that Dask's own launchers start, as docs/howto/deployment.md describes them."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from conditions import until
from distributed import Client
from endless import EndlessFit, fits_end_when_told

from dps import LinearClassifier

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]

#: Where Debian has daemons.
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def command(name: str) -> str:
    """The path of a command; without it the test is skipped."""
    found = shutil.which(name, path=PATH)
    if found is None:
        pytest.skip(f"the command {name} is missing")
    return found


def free_ports(n: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@contextmanager
def running(*arguments: str | Path, log: Path, ready: Any) -> Iterator[None]:
    """A daemon in the foreground, once it is ready."""
    with log.open("w") as out:
        process = subprocess.Popen(arguments, stdout=out, stderr=subprocess.STDOUT)
    try:
        until(
            lambda: process.poll() is not None or ready(), f"{arguments[0]}: {log.read_text()}", 30
        )
        assert process.poll() is None, log.read_text()
        yield
    finally:
        process.terminate()
        process.wait(30)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def ssh(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """How to connect to an SSH server on this machine."""
    daemon, keygen = command("sshd"), command("ssh-keygen")
    if os.geteuid() == 0:  # as the service of a distribution does
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    for name in ("host", "user"):
        subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    shutil.copy(tmp_path / "user.pub", tmp_path / "authorized")
    (port,) = free_ports(1)
    lines = (
        f"Port {port}", "ListenAddress 127.0.0.1", f"HostKey {tmp_path / 'host'}", "PidFile none",
        f"AuthorizedKeysFile {tmp_path / 'authorized'}", "StrictModes no",
        "PasswordAuthentication no", "PermitRootLogin prohibit-password", "MaxStartups 100",
    )  # fmt: skip
    (tmp_path / "config").write_text("\n".join(lines) + "\n")
    start = daemon, "-D", "-e", "-f", tmp_path / "config"
    with running(*start, log=tmp_path / "log", ready=lambda: listens(port)):
        yield {
            "port": port, "username": getpass.getuser(), "known_hosts": None,
            "client_keys": [str(tmp_path / "user")],
        }  # fmt: skip


def fit_and_lose_a_worker(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit as in this process, and one that goes on when a worker dies."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 10))
    y = (X @ rng.normal(size=10) + rng.logistic(size=4000) > 0).astype(int)
    lazy = da.from_array(X, chunks=(500, 10)), da.from_array(y, chunks=500)
    model = LinearClassifier(client=client).fit(*lazy)
    assert len(model.plan_.workers) == 2
    np.testing.assert_allclose(model.coef_, LinearClassifier().fit(X, y).coef_, atol=1e-4)

    fits_end_when_told(monkeypatch)
    fit = EndlessFit(LinearClassifier(client=client, optimizer="sgd", n_replicas=2), *lazy)
    fit.start()
    until(lambda: fit.workers, "it trains")
    victim = fit.workers[1]
    os.kill(client.run(os.getpid, workers=[victim])[victim], signal.SIGKILL)
    until(lambda: fit.recoveries, "it has lost a worker")
    fit.end(losses=1)


def test_a_cluster_over_ssh(ssh: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("asyncssh")
    from distributed import SSHCluster

    monkeypatch.chdir("/")  # a host on which nothing of this folder is seen
    cluster = SSHCluster(
        ["127.0.0.1"] * 3,
        connect_options=ssh,
        worker_options={"nthreads": 1},
        scheduler_options={"port": 0, "dashboard_address": ":0"},
        remote_python=sys.executable,
    )
    with cluster, Client(cluster) as client:
        client.wait_for_workers(2, timeout=60)
        fit_and_lose_a_worker(client, monkeypatch)
