"""Other users of a cluster while fits fail on it: what they do, and whether they were harmed.

Each neighbour is there for one case of `faults.py`. It begins before the fit, goes on beside it and
ends after it; then it says how it was harmed, if it was. It must not know what goes wrong.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distributed import Client

import dps
from dps.errors import DPSError


class Neighbour:
    """No other user: the cluster is the fit's alone.

    Parameters
    ----------
    client : Client
        Of the fit.
    chance : random.Random
        By which a neighbour draws what it does.
    """

    def __init__(self, client: Client, chance: Any) -> None:
        self.client, self.chance = client, chance
        self.ended = threading.Event()

    def options(self) -> dict[str, Any]:
        """Parameters that the estimator has because of it."""
        return {}

    def begin(self) -> None:
        """Begin; what goes on beside the fit does so in a thread."""

    def explains(self, error: BaseException) -> bool:
        """True if an error before training is its doing."""
        return False

    def harm(self) -> list[str]:
        """The harm done to it. Called once the fit has ended."""
        return []

    def end(self) -> None:
        """Leave nothing."""
        self.ended.set()


def _square(number: int) -> int:
    time.sleep(0.01)
    return number * number


class SecondClient(Neighbour):
    """Computes with tasks of its own, and closes its client."""

    def begin(self) -> None:
        self.wrong: list[str] = []
        self.thread = threading.Thread(target=self.compute, daemon=True)
        self.thread.start()

    def compute(self) -> None:
        while not self.ended.is_set():
            try:
                address = self.client.scheduler.address
                with Client(address, set_as_default=False, name="neighbour") as mine:
                    futures = mine.map(_square, range(60), pure=False)
                    found = mine.gather(futures)
                if found != [number * number for number in range(60)]:
                    self.wrong.append(f"results: {found}")
            except Exception as error:
                self.wrong.append(f"tasks: {error!r}")
            self.ended.wait(0.2)

    def harm(self) -> list[str]:
        self.ended.set()
        self.thread.join(60)
        return [*self.wrong, *(["its tasks hang"] if self.thread.is_alive() else [])]


class _Counter:
    """An Actor, which keeps the thread that all Actors of a worker share."""

    def __init__(self) -> None:
        self.n = 0

    def work(self, seconds: float) -> int:
        time.sleep(seconds)
        self.n += 1
        return self.n


class Actors(Neighbour):
    """Has an Actor on each worker; each works for seconds at a time."""

    def begin(self) -> None:
        self.ids = self._ids()
        with self.client.as_current():
            made = {
                worker: self.client.submit(_Counter, actor=True, workers=[worker], pure=False)
                for worker in self.ids
            }
            self.actors = {}
            for worker, future in made.items():
                with contextlib.suppress(Exception):
                    self.actors[worker] = future.result(timeout=20)
            self.futures = made
            self.calls = {worker: actor.work(4.0) for worker, actor in self.actors.items()}

    def _ids(self) -> dict[str, str]:
        def look(dask_scheduler: Any) -> dict[str, str]:
            return {address: each.server_id for address, each in dask_scheduler.workers.items()}

        return self.client.run_on_scheduler(look)

    def harm(self) -> list[str]:
        found, now = [], self._ids()
        for worker, call in self.calls.items():
            if now.get(worker) != self.ids[worker]:
                continue  # it died, or was retired
            try:
                with self.client.as_current():
                    if (n := call.result(timeout=30)) != 1:
                        found.append(f"an Actor's call was done {n} times")
            except Exception as error:
                if self._ids().get(worker) == self.ids[worker]:
                    found.append(f"an Actor: {error!r}")
        return found

    def end(self) -> None:
        super().end()
        for future in self.futures.values():
            future.release()


class BusyThreads(Neighbour):
    """Has enough tasks to keep each worker's thread busy."""

    def begin(self) -> None:
        self.futures = [
            self.client.submit(time.sleep, 0.3, key=f"busy-{id(self)}-{n}", pure=False)
            for n in range(8 * len(self.client.nthreads()))
        ]

    def harm(self) -> list[str]:
        try:
            self.client.gather(self.futures, errors="raise")
        except Exception as error:
            return [f"busy tasks: {error!r}"]
        return []

    def end(self) -> None:
        super().end()
        for future in self.futures:
            future.release()


def _hold_gil(seconds: float) -> None:
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


class HeldInterpreter(Neighbour):
    """Has a task in native code that keeps a worker's interpreter for ten seconds."""

    def begin(self) -> None:
        worker = self.chance.choice(sorted(self.client.nthreads()))
        self.future = self.client.submit(
            _hold_gil, 10.0, workers=[worker], key=f"held-{id(self)}", pure=False
        )

    def end(self) -> None:
        super().end()
        self.client.cancel([self.future], force=True)
        self.future.release()


class StrangersDirectory(Neighbour):
    """Has directories at the checkpoint path that are called as checkpoints are."""

    size: str | None = None

    def begin(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="neighbour-"))
        if self.size is not None:
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={self.size}", "tmpfs", str(self.path)],
                check=True,
            )
        for name in ("1234567-8f3c2a1b", "20261126-15301200"):
            (self.path / name).mkdir()
            (self.path / name / "results.csv").write_text("mine")
        (self.path / "9999999-aaaaaaaa").symlink_to(self.path / "1234567-8f3c2a1b")

    def options(self) -> dict[str, Any]:
        return {"checkpoint": dps.Checkpoint(self.path, every=0.1)}

    def explains(self, error: BaseException) -> bool:
        return self.size is not None and "checkpoints cannot be written" in str(error)

    def harm(self) -> list[str]:
        found = []
        for name in ("1234567-8f3c2a1b", "20261126-15301200", "9999999-aaaaaaaa"):
            file = self.path / name / "results.csv"
            if not file.exists() or file.read_text() != "mine":
                found.append(f"{name} was changed")
        if (self.path / ".dps-lock").exists():
            found.append("the lock is left")
        return found

    def end(self) -> None:
        super().end()
        if self.size is not None:
            subprocess.run(["umount", "-l", str(self.path)], check=False)
        shutil.rmtree(self.path, ignore_errors=True)


class FullDisk(StrangersDirectory):
    """Fills the disk of the checkpoint path up, a moment after the fit has begun."""

    size = "1m"

    def begin(self) -> None:
        super().begin()
        threading.Thread(target=self.fill, daemon=True).start()

    def fill(self) -> None:
        self.ended.wait(self.chance.uniform(0.5, 2.0))
        with contextlib.suppress(OSError), (self.path / "theirs").open("wb") as file:
            while True:
                file.write(bytes(4096))
                file.flush()


class ReadOnlyDisk(StrangersDirectory):
    """Makes the disk of the checkpoint path read-only, a moment after the fit has begun."""

    size = "4m"

    def begin(self) -> None:
        super().begin()
        threading.Thread(target=self.remount, daemon=True).start()

    def remount(self) -> None:
        self.ended.wait(self.chance.uniform(0.5, 2.0))
        command = ["mount", "-o", "remount,ro", str(self.path)]
        subprocess.run(command, check=False, capture_output=True)  # the case may have ended

    def harm(self) -> list[str]:
        return [each for each in super().harm() if "lock" not in each]  # no one could remove it


class FrozenServer(Neighbour):
    """Has a server that the fit publishes into, whose worker stands still for some seconds."""

    def begin(self) -> None:
        worker = self.chance.choice(sorted(self.client.nthreads()))
        self.pid = self.client.run(os.getpid, workers=[worker])[worker]
        self.server = dps.ParameterServer(
            name=f"neighbour-{id(self)}", workers=[worker], mirror=False, timeout=3.0,
            client=self.client,
        )  # fmt: skip
        threading.Thread(target=self.freeze, daemon=True).start()

    def options(self) -> dict[str, Any]:
        return {"server": self.server}

    def explains(self, error: BaseException) -> bool:
        return isinstance(error, DPSError) and repr(self.server.name) in str(error)

    def freeze(self) -> None:
        self.ended.wait(self.chance.uniform(0.5, 2.0))
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGSTOP)
            self.ended.wait(5.0)
            os.kill(self.pid, signal.SIGCONT)

    def end(self) -> None:
        super().end()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)
        with warnings.catch_warnings(), contextlib.suppress(DPSError):
            warnings.simplefilter("ignore")
            self.server.close()


def alone() -> None:
    """Have mounts of this process be its own and its children's; called before it has threads."""
    mounts_of_its_own = 0x20000  # CLONE_NEWNS
    if ctypes.CDLL(None, use_errno=True).unshare(mounts_of_its_own):
        raise OSError(ctypes.get_errno(), "neighbours mount file systems, which takes root")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


@contextlib.contextmanager
def little_shared_memory() -> Iterator[None]:
    """Leave a cluster 1 MB of shared memory, as containers do; `alone` comes first."""
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/dev/shm"]
    subprocess.run(command, check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", "/dev/shm"], check=False)


NEIGHBOURS: tuple[type[Neighbour], ...] = (
    SecondClient, Actors, BusyThreads, HeldInterpreter, StrangersDirectory, FullDisk, ReadOnlyDisk,
    FrozenServer,
)  # fmt: skip
