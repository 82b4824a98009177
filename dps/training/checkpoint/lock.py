"""The lock that keeps a second fit from writing to a checkpoint path.

Protocol. The lock is a file. The fit writes it before it reads or writes anything else at the path,
renews it every few seconds, and removes it at the end. It names the process of its owner and the
runs whose checkpoints the owner may remove. If another program removes the file, the next renewal
writes it again. A fit that finds a lock is refused while the owner lives. If the owner is dead, the
fit takes over the lock and its runs. On the same host the system says whether the process lives. An
owner on another host counts as dead once the lock is older than `_STALE_SECONDS`.

Crashes. Before the file is written, nothing is left behind; afterwards, a lock without an owner.
Two fits that take over the lock of a dead owner at the same moment may both succeed, and so may a
fit whose owner was only suspended for too long. No file is lost in either case, because a fit
removes checkpoints of its own runs only.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import logging
import os
import platform
import secrets
import threading
import time
from collections.abc import Iterable
from typing import Any

import psutil

from dps.cluster.base import grace
from dps.files.directories import file_system, os_errors, write_file
from dps.server.memory.host import host_id

_log = logging.getLogger("dps")

NAME = ".dps-lock"
_RENEW_SECONDS = 5.0
_STALE_SECONDS = 20.0
#: The largest difference between two readings of a process's start, in ticks or seconds.
_SAME_START = 2.0

#: The tokens of the locks that this process holds.
_held: set[str] = set()
#: Taken by threads of this process while they take a lock.
_taking = threading.Lock()


class PathLock:
    """The lock on a checkpoint path, held until `close`.

    runs: runs whose checkpoints this fit may remove; first those that a dead owner named.
    Raises FileExistsError: another fit holds the lock.
    Raises OSError: the path cannot be written to.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._owner: dict[str, Any] = {
            "token": secrets.token_hex(8),
            "host": _host(),
            "process": os.getpid(),
            "started": _start_of(os.getpid()),
            "who": f"process {os.getpid()} of {_user()} on {platform.node()}",
        }
        self._renewals = 0
        self._ended = threading.Event()
        self.runs: frozenset[str] = frozenset()
        _held.add(self._owner["token"])
        try:
            while not self._take(self._dead_owner()):
                pass
        except BaseException:
            _held.discard(self._owner["token"])
            raise
        self._thread = threading.Thread(target=self._renew, name="dps-checkpoint-lock", daemon=True)
        self._thread.start()

    def add(self, runs: Iterable[str]) -> None:
        """Add runs whose checkpoints may be removed.

        Raises OSError: the path cannot be written to.
        """
        self.runs |= frozenset(runs)
        self._write_first()

    def is_taken(self) -> bool:
        """True if another fit has taken over the lock; False if the file is missing or empty."""
        return _parsed(self._read()).get("token") not in (None, self._owner["token"])

    def close(self) -> None:
        """Release the lock; a file system that hangs delays this for a moment only."""
        self._ended.set()
        self._thread.join(grace())

    def _dead_owner(self) -> bytes | None:
        """Return the lock of a dead owner, or None."""
        if (raw := self._read()) is None:
            return None
        lives = _lives(_parsed(raw))
        if lives is None:
            _log.info("waiting up to %g s for the owner of %s", _STALE_SECONDS, self._file)
            lives = self._is_renewed(raw)
        if lives:
            raise self._refused(raw)
        return raw

    def _take(self, dead: bytes | None) -> bool:
        """Replace the lock of a dead owner; False if it has changed since it was read."""
        with _taking:
            if self._read() != dead:
                return False
            runs = _parsed(dead).get("runs")
            self.runs = frozenset(map(str, runs)) if isinstance(runs, list) else frozenset()
            self._write_first()
            raw = self._read()
        if _parsed(raw).get("token") != self._owner["token"]:
            raise self._refused(raw)
        return True

    def _is_renewed(self, raw: bytes) -> bool:
        deadline = time.monotonic() + _STALE_SECONDS
        while time.monotonic() < deadline:
            if (now := self._read()) is None:
                return False
            if now != raw:
                return True
            self._ended.wait(_RENEW_SECONDS / 10)
        return False

    @property
    def _file(self) -> str:
        return f"{self.path}/{NAME}"

    def _refused(self, raw: bytes | None) -> FileExistsError:
        who = _parsed(raw).get("who", "unknown")
        return FileExistsError(
            f"another fit ({who}) writes its checkpoints to {self.path}: "
            "give each fit a path of its own, or wait until that fit has ended"
        )

    def _read(self) -> bytes | None:
        with os_errors(self._file):
            _, fs, root = file_system(self.path)
            try:
                return bytes(fs.cat_file(f"{root}/{NAME}"))
            except (FileNotFoundError, NotADirectoryError):
                return None

    def _write_first(self) -> None:
        """Write the lock before training begins."""
        try:
            self._write()
        except Exception as error:  # file systems raise exceptions of their own
            raise OSError(
                f"checkpoints cannot be written to {self.path}: {type(error).__name__}: {error}"
            ) from error

    def _write(self) -> None:
        _, fs, root = file_system(self.path)
        fs.makedirs(root, exist_ok=True)
        said = {**self._owner, "renewals": self._renewals, "runs": sorted(self.runs)}
        write_file(fs, root, NAME, [json.dumps(said).encode()])

    def _renew(self) -> None:
        while not self._ended.wait(_RENEW_SECONDS):
            with contextlib.suppress(Exception):  # the next renewal tries again
                if self.is_taken():
                    break
                self._renewals += 1
                self._write()  # writes the file and the path again if they were removed
        _held.discard(self._owner["token"])
        with contextlib.suppress(Exception):
            if not self.is_taken():
                _, fs, root = file_system(self.path)
                fs.rm_file(f"{root}/{NAME}")


def _lives(owner: dict[str, Any]) -> bool | None:
    """True if the owner's process lives; None if this host cannot tell."""
    pid, started = owner.get("process"), owner.get("started")
    if owner.get("host") != _host() or type(pid) is not int or type(started) is not float:
        return None
    if pid == os.getpid():
        return owner.get("token") in _held
    try:
        return abs(_start_of(pid) - started) < _SAME_START
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return None


def _start_of(pid: int) -> float:
    """Return a process's start in ticks since boot, or as a time if ticks are unknown.

    The time of the start moves when the clock is set.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return float(stat.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return psutil.Process(pid).create_time()


def _parsed(raw: bytes | None) -> dict[str, Any]:
    try:
        owner = json.loads(raw or b"{}")
    except (ValueError, RecursionError):
        return {}
    return owner if isinstance(owner, dict) else {}


def _host() -> str:
    """Return a string that is equal in two processes only if they see the same processes."""
    try:
        return f"{host_id()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return host_id()


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "an unknown user"
