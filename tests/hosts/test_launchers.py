"""Clusters that Dask's own launchers start, as docs/howto/deployment.md describes them."""

from __future__ import annotations

import getpass
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cgroups
import dask.array as da
import numpy as np
import pytest
import yaml
from conditions import until
from distributed import Client, LocalCluster
from endless import EndlessFit, fits_end_when_told

from dps import LinearClassifier, MLPRegressor
from namespaces import why_not

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]

ROOT = Path(__file__).resolve().parents[2]

#: For a shell: launchers do not quote it.
PYTHON = shlex.quote(sys.executable)
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
        remote_python=PYTHON,
    )
    with cluster, Client(cluster) as client:
        client.wait_for_workers(2, timeout=60)
        fit_and_lose_a_worker(client, monkeypatch)


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[str]:
    """A Slurm with this machine as its node; what its commands are to be preceded by."""
    if os.geteuid() != 0:
        pytest.skip("Slurm's daemons need root here")
    munged, controller, node, sinfo, _ = (
        command(name) for name in ("munged", "slurmctld", "slurmd", "sinfo", "sbatch")
    )
    ports, name = free_ports(2), socket.gethostname().partition(".")[0]
    key, sock = tmp_path / "munge.key", tmp_path / "munge.socket"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    for folder in ("state", "spool"):
        (tmp_path / folder).mkdir()
    lines = (
        "ClusterName=tests", f"SlurmctldHost={name}(127.0.0.1)", "SlurmUser=root",
        f"SlurmctldPort={ports[0]}", f"SlurmdPort={ports[1]}", "AuthType=auth/munge",
        f"AuthInfo=socket={sock}", "CryptoType=crypto/munge", "CredType=cred/munge",
        f"StateSaveLocation={tmp_path / 'state'}", f"SlurmdSpoolDir={tmp_path / 'spool'}",
        f"SlurmctldPidFile={tmp_path / 'slurmctld.pid'}",
        f"SlurmdPidFile={tmp_path / 'slurmd.pid'}",
        "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "SwitchType=switch/none",
        "MpiDefault=none", "ReturnToService=2", "SlurmdParameters=config_overrides",
        "SelectType=select/cons_tres", "SelectTypeParameters=CR_CPU",
        "JobAcctGatherType=jobacct_gather/none",
        f"NodeName={name} NodeAddr=127.0.0.1 CPUs=8 RealMemory=8000 State=UNKNOWN",
        f"PartitionName=normal Nodes={name} Default=YES MaxTime=INFINITE State=UP",
    )  # fmt: skip
    configuration = tmp_path / "slurm.conf"
    configuration.write_text("\n".join(lines) + "\n")
    environment = os.environ | {"SLURM_CONF": str(configuration)}

    def idle() -> bool:
        listed = subprocess.run(
            [sinfo, "-h", "-o", "%T"], capture_output=True, text=True, env=environment
        )
        return "idle" in listed.stdout

    munge = (
        munged, "--foreground", f"--key-file={key}", f"--socket={sock}", "--force",
        f"--pid-file={tmp_path / 'munged.pid'}", f"--log-file={tmp_path / 'munged.log'}",
        f"--seed-file={tmp_path / 'munged.seed'}",
    )  # fmt: skip
    with (
        running(*munge, log=tmp_path / "munge", ready=sock.exists),
        running(
            controller, "-D", "-f", configuration,
            log=tmp_path / "slurmctld", ready=lambda: listens(ports[0]),
        ),
        running(
            node, "-D", "-N", name, "-f", configuration, log=tmp_path / "slurmd", ready=idle
        ),
    ):  # fmt: skip
        yield f"env SLURM_CONF={configuration}"


def test_a_cluster_of_slurm_jobs(
    slurm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobqueue = pytest.importorskip("dask_jobqueue")

    class Job(jobqueue.slurm.SLURMJob):  # type: ignore[name-defined,misc]
        submit_command = f"{slurm} {jobqueue.slurm.SLURMJob.submit_command}"
        cancel_command = f"{slurm} {jobqueue.slurm.SLURMJob.cancel_command}"

    class Cluster(jobqueue.SLURMCluster):  # type: ignore[name-defined,misc]
        job_cls = Job

    cluster = Cluster(
        queue="normal",
        cores=1,
        processes=1,
        memory="1GB",
        walltime="00:30:00",
        local_directory=str(tmp_path),
        log_directory=str(tmp_path),
        python=PYTHON,
        interface="lo",
        scheduler_options={"dashboard_address": ":0"},
    )
    with cluster, Client(cluster) as client:
        cluster.adapt(minimum_jobs=2, maximum_jobs=2)
        client.wait_for_workers(2, timeout=60)
        fit_and_lose_a_worker(client, monkeypatch)


def test_the_job_of_the_examples(slurm: str, tmp_path: Path) -> None:
    pytest.importorskip("dask_jobqueue")
    script = ROOT / "examples" / "clusters" / "slurm_job.py"
    job = shlex.join([sys.executable, str(script), str(tmp_path / "fits")])
    submit = [*shlex.split(slurm), "sbatch", "--wait", "--output", "log", "--wrap", job]
    done = subprocess.run(submit, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    log = tmp_path / "log"
    assert done.returncode == 0, done.stderr + (log.read_text() if log.exists() else "")
    assert "20 epochs" in log.read_text()
    assert (tmp_path / "fits" / "model" / "manifest.json").exists()
    assert list(tmp_path.glob("slurm-*.out")), "its workers are jobs"


#: A process in a container: its own /dev/shm of 64 MB, as pods have, and its own cgroup.
CONTAINED = """
echo $$ > {group}/cgroup.procs
mount -t tmpfs -o size=64m tmpfs /dev/shm
exec {python} -m dask worker {scheduler} --nthreads 1 --no-dashboard --no-nanny
"""


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_workers_in_containers_with_little_shared_memory_and_a_quota(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(512, 20)).astype(np.float32)
    with (
        cgroups.one_core() as group,
        LocalCluster(n_workers=0, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        if group is None:
            pytest.skip("no cgroup can be made here")
        script = CONTAINED.format(group=group, python=PYTHON, scheduler=cluster.scheduler_address)
        start = "unshare", "--mount", "sh", "-ec", script

        def n_workers() -> int:
            return len(client.scheduler_info(n_workers=-1)["workers"])

        with (
            running(*start, log=tmp_path / "first", ready=lambda: n_workers() == 1),
            running(*start, log=tmp_path / "second", ready=lambda: n_workers() == 2),
        ):
            # Parameters, the state of Adam, and snapshots of them: more than 64 MB.
            model = MLPRegressor(
                (1400, 1400), max_iter=2, tol=None, early_stopping=False, client=client
            ).fit(X, X[:, 0])
            assert len(model.plan_.workers) == 2
            assert {record["rows"] for record in model.history_} == {len(X)}
            assert "No space left on device" in str(model.fit_report_)


def check_fields(value: Any, kind: str, where: str) -> None:
    """Compare a part of a manifest with the models of Kubernetes' own client."""
    from kubernetes import client

    if kind.startswith("List["):
        assert isinstance(value, list), where
        for number, each in enumerate(value):
            check_fields(each, kind[5:-1], f"{where}[{number}]")
    elif kind.startswith("Dict[str, "):
        for name, each in value.items():
            check_fields(each, kind[10:-1], f"{where}.{name}")
    elif kind in ("str", "int", "bool"):
        assert type(value).__name__ == kind, where
    elif hasattr(client, kind):
        model = getattr(client, kind)
        names = {name: attribute for attribute, name in model.attribute_map.items()}
        assert set(value) <= set(names), where
        for name, each in value.items():
            check_fields(each, model.openapi_types[names[name]], f"{where}.{name}")
        model(**{names[name]: each for name, each in value.items()})  # it refuses missing fields
    else:
        assert kind == "object", f"{where}: {kind}"


def test_the_manifest_for_kubernetes_has_fields_that_there_are() -> None:
    pytest.importorskip("kubernetes")
    make_cluster_spec = pytest.importorskip("dask_kubernetes.operator").make_cluster_spec
    manifest = yaml.safe_load((ROOT / "docs" / "howto" / "daskcluster.yaml").read_text())
    made = make_cluster_spec(name="training", image="registry.example.com/dps:1", n_workers=4)
    assert set(manifest) == set(made)
    worker, scheduler = manifest["spec"].pop("worker"), manifest["spec"].pop("scheduler")
    assert manifest["spec"] == {}
    assert set(worker) == set(made["spec"]["worker"])
    assert set(scheduler) == set(made["spec"]["scheduler"])
    assert scheduler["service"]["selector"] == made["spec"]["scheduler"]["service"]["selector"]
    check_fields(worker["spec"], "V1PodSpec", "worker")
    check_fields(scheduler["spec"], "V1PodSpec", "scheduler")
    check_fields(scheduler["service"], "V1ServiceSpec", "service")
    worker["spec"]["volumes"][0]["emptyDir"]["size"] = "4Gi"
    with pytest.raises(AssertionError, match=r"worker\.volumes\[0\]\.emptyDir"):
        check_fields(worker["spec"], "V1PodSpec", "worker")
