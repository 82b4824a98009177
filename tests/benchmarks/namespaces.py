"""Several hosts on this machine: network namespaces on a bridge, and a Dask cluster in them.

Each host has an address, processes, a host name and a ``/dev/shm`` of its own. Its first process
holds the namespaces and reads from a pipe of ours: when that is closed, or we die, it ends, and
the kernel ends all others in the host with it. It must not know what is measured or tested.
"""

from __future__ import annotations

import functools
import ipaddress
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask
import psutil
from distributed import Client, LocalCluster
from distributed.core import Status
from distributed.security import Security

#: A host's end of its cable.
INTERFACE = "eth0"
_OWN = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--mount-proc", "sh", "-c"]
_MEMORY = "mount -t tmpfs tmpfs /dev/shm"
_TRIED = f"{_MEMORY} && ip link add dps0 type veth peer name dps1 && ip link add dps2 type bridge"
_serial = itertools.count()


@functools.cache
def why_not() -> str | None:
    """Why there can be no hosts here; None where there can. Tried in namespaces that end at once.

    Examples
    --------
    >>> why_not() is None or "namespaces" in why_not()
    True
    """
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    if missing := [name for name in ("ip", "unshare", "nsenter") if shutil.which(name) is None]:
        return f"network namespaces need the command {missing[0]}"
    tried = subprocess.run([*_OWN, _TRIED], capture_output=True, text=True, timeout=30)
    if tried.returncode == 0:
        return None
    return f"network namespaces may not be made here: {tried.stderr.strip()}"


def _ip(*arguments: str) -> Any:
    """Run ``ip``, and read what it prints as JSON."""
    done = subprocess.run(["ip", "-j", *arguments], capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return json.loads(done.stdout or "[]")


def _network() -> ipaddress.IPv4Network:
    """Addresses that no one here uses."""
    routes = [route["dst"] for route in _ip("route", "show", "table", "all", "type", "unicast")]
    used = [ipaddress.ip_network(dst) for dst in routes if re.fullmatch(r"[\d.]+(/\d+)?", dst)]
    while True:
        chosen = ipaddress.IPv4Network(f"10.{random.randrange(256)}.{random.randrange(256)}.0/24")
        if not any(chosen.overlaps(network) for network in used):
            return chosen


def _remove(link: str) -> None:
    with suppress(OSError):  # it went with its namespace
        _ip("link", "delete", link)


def _sweep() -> None:
    """Remove the bridges of processes that were killed; their hosts have ended with them."""
    for link in _ip("link", "show", "type", "bridge"):
        name = link.get("ifname", "")
        if (owner := re.fullmatch(r"dps(\d+)n\d+b", name)) and not psutil.pid_exists(int(owner[1])):
            _remove(name)


def only_child(process: subprocess.Popen[Any], seconds: float = 10.0) -> int:
    """The process that ``unshare`` or ``nsenter`` has started, by its number out here."""
    deadline = time.monotonic() + seconds
    while not (children := psutil.Process(process.pid).children()):
        if process.poll() is not None or time.monotonic() > deadline:
            raise OSError(f"{process.args} has started nothing")
        time.sleep(0.005)
    return children[0].pid


@dataclass
class Host:
    """A host: what runs there, what its cable has carried, and its shared memory."""

    name: str
    address: str
    _cable: str
    _pid: int
    _started: list[subprocess.Popen[Any]] = field(default_factory=list, repr=False)

    def start(self, arguments: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process there, with the options of Popen. What is returned is ``nsenter``."""
        there = ["nsenter", "--target", str(self._pid), "--net", "--mount", "--uts", "--pid", "--"]
        self._started.append(subprocess.Popen([*there, *arguments], **options))
        return self._started[-1]

    def run(self, arguments: Sequence[str], timeout: float = 60.0) -> str:
        """Run a command there; what it prints.

        Raises
        ------
        OSError
            It failed.
        """
        pipe = subprocess.PIPE
        with self.start(arguments, stdout=pipe, stderr=pipe, text=True) as process:
            said, error = process.communicate(timeout=timeout)
        if process.returncode:
            raise OSError(f"{' '.join(arguments)} on {self.name}: {error.strip()}")
        return said

    def slow(self, rate: str) -> None:
        """Limit what its cable carries away from it, for instance to "1gbit".

        Raises
        ------
        OSError
            There is no ``tc`` here, or the kernel has no such queue.
        """
        queue = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "5ms"]
        self.run(["tc", "qdisc", "add", "dev", INTERFACE, *queue])

    def cut(self) -> None:
        """Pull its cable out: from now on packets are lost without an error."""
        _ip("link", "set", self._cable, "down")

    def mend(self) -> None:
        """Put the cable in again."""
        _ip("link", "set", self._cable, "up")

    def _count(self, what: str) -> int:
        return int(Path(f"/sys/class/net/{self._cable}/statistics/{what}_bytes").read_text())

    @property
    def sent(self) -> int:
        """Bytes that have left the host."""
        return self._count("rx")  # the other end of the cable has received them

    @property
    def received(self) -> int:
        """Bytes that have come to the host."""
        return self._count("tx")

    @property
    def shared_memory(self) -> Path:
        """Its ``/dev/shm``, seen from here."""
        return Path(f"/proc/{self._pid}/root/dev/shm")

    def files(self, pattern: str = "dps-*") -> list[str]:
        """Names of files in its shared memory."""
        return sorted(path.name for path in self.shared_memory.glob(pattern))


@contextmanager
def _host(bridge: str, number: int, address: str, prefix: int) -> Iterator[Host]:
    name, cable = f"host{number}", f"{bridge[:-1]}h{number}"
    hold = f"{_MEMORY} && echo {name} > /proc/sys/kernel/hostname && echo made && exec cat"
    pipe = subprocess.PIPE
    with ExitStack() as stack:
        holder = stack.enter_context(subprocess.Popen([*_OWN, hold], stdin=pipe, stdout=pipe))
        stack.callback(_remove, cable)
        if not holder.stdout.readline():
            raise OSError(f"{name}: namespaces could not be made")
        pid = only_child(holder)
        host = Host(name, address, cable, pid)
        _ip("link", "add", cable, "type", "veth", "peer", "name", INTERFACE, "netns", str(pid))
        _ip("link", "set", cable, "master", bridge, "up")
        for arguments in (
            f"address add {address}/{prefix} dev {INTERFACE}",
            f"link set {INTERFACE} up",
            "link set lo up",
        ):
            host.run(["ip", *arguments.split()])
        try:
            yield host
        finally:
            holder.stdin.close()
            holder.wait(30)
            for process in host._started:
                with process:  # it has been ended; its pipes are closed
                    process.wait(30)


@dataclass(frozen=True)
class Network:
    """Hosts on a bridge, and the address that this process has on it."""

    address: str
    hosts: list[Host]


@contextmanager
def network(n_hosts: int) -> Iterator[Network]:
    """So many hosts, without anything in them.

    Raises
    ------
    OSError
        That is not possible here.
    """
    if reason := why_not():
        raise OSError(reason)
    _sweep()
    bridge, addresses = f"dps{os.getpid()}n{next(_serial)}b", _network()
    here, *others = itertools.islice(addresses.hosts(), n_hosts + 1)
    with ExitStack() as stack:
        _ip("link", "add", bridge, "type", "bridge")
        stack.callback(_remove, bridge)
        _ip("address", "add", f"{here}/{addresses.prefixlen}", "dev", bridge)
        _ip("link", "set", bridge, "up")
        made = [
            stack.enter_context(_host(bridge, number, str(address), addresses.prefixlen))
            for number, address in enumerate(others)
        ]
        yield Network(str(here), made)


@dataclass(frozen=True)
class Worker:
    """A Dask worker in a host, and the number of its process out here."""

    address: str
    host: Host
    pid: int


class ClusterOfHosts:
    """Dask workers of one thread each in hosts, and a scheduler and a client in this process.

    Attributes
    ----------
    hosts : list of Host
    client : Client
    scheduler : str
        Its address as workers reach it.
    workers : dict of str to Worker
        By address.
    """

    def __init__(self, made: Network, client: Client, folder: Path) -> None:
        self.hosts, self.client = made.hosts, client
        self.scheduler = client.scheduler.address
        self.workers: dict[str, Worker] = {}
        self._folder = folder

    def add_workers(self, hosts: Sequence[Host], timeout: float = 60.0) -> list[Worker]:
        """Start a worker in each of these hosts, and wait for them all."""
        started = {f"{host.name}-{next(_serial)}": host for host in hosts}
        processes = {name: self._start(name, host) for name, host in started.items()}
        deadline = time.monotonic() + timeout
        while not started.keys() <= (found := self._addresses()).keys():
            ended = [name for name, process in processes.items() if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                logs = "\n".join((self._folder / f"{name}.log").read_text() for name in started)
                raise OSError(f"workers did not come: {ended or sorted(started)}\n{logs}")
            time.sleep(0.02)
        made = [
            Worker(found[name], host, only_child(processes[name])) for name, host in started.items()
        ]
        self.workers |= {worker.address: worker for worker in made}
        return made

    def of(self, host: Host) -> list[str]:
        """The addresses of the workers in a host."""
        return [worker.address for worker in self.workers.values() if worker.host is host]

    def _addresses(self) -> dict[str, str]:
        def by_name(dask_scheduler: Any) -> dict[str, str]:
            return {str(w.name): w.address for w in dask_scheduler.workers.values()}

        return self.client.run_on_scheduler(by_name)

    def _start(self, name: str, host: Host) -> subprocess.Popen[Any]:
        scratch = self._folder / name
        scratch.mkdir()
        command = [
            sys.executable, "-m", "distributed.cli.dask_worker", self.scheduler,
            "--name", name, "--nthreads", "1", "--no-nanny",
            "--no-dashboard", "--local-directory", str(scratch), "--death-timeout", "60",
        ]  # fmt: skip
        protocol, _, _ = self.scheduler.partition(":")
        if protocol == "ws":
            port = 40_000 + next(_serial)
            command += ["--contact-address", f"ws://{host.address}:{port}"]
            command += ["--listen-address", f"ws://0.0.0.0:{port}"]
        else:
            command += ["--host", host.address]
        for option in ("ca-file", "cert", "key"):
            if (file := self._folder / f"{option}.pem").exists():
                command += [f"--tls-{option}", str(file)]
        # As a nanny starts it.
        nanny = dask.config.get("distributed.nanny")
        more = {**nanny["environ"], **nanny["pre-spawn-environ"]}
        environ = os.environ | {key: str(value) for key, value in more.items()}
        environ["DASK_INTERNAL_INHERIT_CONFIG"] = dask.config.serialize(dask.config.config)
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        with open(self._folder / f"{name}.log", "w") as log:
            return host.start(command, env=environ, stdout=log, stderr=subprocess.STDOUT)


def _close(cluster: LocalCluster) -> None:
    """Close a cluster, also where a web socket of Dask's is closed between two frames."""
    try:
        cluster.close()
    except TypeError:  # "object of type 'NoneType' has no len()"
        cluster.status = Status.closed
        cluster._loop_runner.stop()


@contextmanager
def cluster_of_hosts(
    n_hosts: int, workers: int = 1, security: Security | None = None, protocol: str | None = None
) -> Iterator[ClusterOfHosts]:
    """Yield a cluster of `n_hosts` hosts with `workers` workers each.

    security: certificates for TLS; None: TCP without.
    protocol: None for TCP, or "ws".

    Raises
    ------
    OSError
        Hosts are not possible here, or a worker did not start.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dps-hosts-")))
        if security is not None:
            given = security.get_tls_config_for_role("worker")
            for option, content in zip(
                ("ca-file", "cert", "key"),
                (given["ca_file"], given["cert"], given["key"]),
                strict=True,
            ):
                (folder / f"{option}.pem").write_text(content)
        made = stack.enter_context(network(n_hosts))
        scheduler = LocalCluster(
            n_workers=0, host=made.address, security=security, dashboard_address=":0",
            protocol=protocol,
        )  # fmt: skip
        stack.callback(_close, scheduler)
        client = stack.enter_context(Client(scheduler, security=security, set_as_default=False))
        cluster = ClusterOfHosts(made, client, folder)
        if protocol is not None:  # which listens everywhere, and says so of the machine's address
            port = client.scheduler.address.rpartition(":")[2]
            cluster.scheduler = f"{protocol}://{made.address}:{port}"
        cluster.add_workers([host for host in made.hosts for _ in range(workers)])
        yield cluster
