"""Files of shared memory: made, mapped, given back, and swept after a crash.

Knows bytes and owners only, nothing of what a window holds.

Protocol. A file's name carries the fit and a random token. Its owner creates it,
takes ``flock`` on it and allocates its bytes before anyone hears of it, but for those that
its writer must :meth:`~LockedFile.commit`; it
holds the lock for as long as it lives. A file whose lock is free therefore has no
owner. It may hold what the fit goes on from, so it stays for a while: who sweeps
(:func:`sweep`) marks it, which sets the time of its last change, and unlinks what was
marked long ago. The client of a fit unlinks all of its files at its end. A sweeper could
lock a file in the instant between its creation and its owner's lock, so an owner
finds it marked at the most, and takes the mark off again.

A forked child inherits the lock, which would outlive the owner, so it gives its copy up at once.
What a crash leaves: of the owner at any point, a file with a free lock; of a process
who mapped it, nothing. Mappings outlive the name, so unlinking never breaks a reader.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import secrets
import stat
import tempfile
import time
import weakref
from pathlib import Path
from typing import Self

from dps._runtime.shared.words import PORTABLE

_PREFIX = "dps-"
#: Seconds for which what a dead owner has left stays.
_GRACE = 60.0
#: The permissions of a file that has an owner, and of one whose owner was found dead.
_OWNED, _MARKED = 0o600, 0o700


def folder() -> Path:
    """The folder for files of shared memory on this host."""
    memory = Path("/dev/shm")
    if not PORTABLE and os.access(memory, os.W_OK | os.X_OK):
        return memory
    return Path(tempfile.gettempdir())


def _allocate(fd: int, nbytes: int, start: int = 0) -> None:
    # ftruncate beyond a small tmpfs succeeds, and the first write then kills the
    # process with SIGBUS; allocation says ENOSPC instead.
    if hasattr(os, "posix_fallocate") and not PORTABLE:
        os.posix_fallocate(fd, start, nbytes)
        return
    while nbytes:
        n = min(nbytes, 1 << 20)
        written = os.pwrite(fd, os.pread(fd, n, start).ljust(n, b"\0"), start)
        nbytes, start = nbytes - written, start + written


def _made(fit: str, nbytes: int, at_first: int) -> tuple[Path, int]:
    """Make a file of zeros; return its path and a descriptor that holds its lock."""
    path = folder() / f"{_PREFIX}{fit}-{secrets.randbits(63):016x}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, _OWNED)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        os.fchmod(fd, _OWNED)
        if at_first:
            _allocate(fd, at_first)
        if at_first < nbytes:
            os.ftruncate(fd, nbytes)
    except BaseException:
        _release(fd, path)
        raise
    return path, fd


class LockedFile:
    """A file whose lock says whether its owner lives, as its owner or as one who found it."""

    def __init__(self, path: Path, fd: int, *, owner: bool) -> None:
        self.path = path
        self._fd = fd
        self._owner = owner
        self._release = weakref.finalize(self, _release, fd, path if owner else None)
        _files.add(self)

    @classmethod
    def create(cls, fit: str, nbytes: int = 0, at_first: int | None = None) -> Self:
        """Make a file of `nbytes` zeros.

        at_first: the bytes that it takes now, all by default. Before others are written, `commit`
            them.
        Raises OSError: there is no room, or no file system that takes it.
        """
        path, fd = _made(fit, nbytes, nbytes if at_first is None else at_first)
        try:
            return cls(path, fd, owner=True)
        except BaseException:
            _release(fd, path)
            raise

    @classmethod
    def open(cls, path: Path) -> Self:
        """Find a file of another owner.

        Raises OSError: it is not there, or may not be read: another host, container or user.
        """
        fd = os.open(path, os.O_RDWR)
        try:
            return cls(path, fd, owner=False)
        except BaseException:
            os.close(fd)
            raise

    def owner_is_gone(self) -> bool:
        """True if the owner has died: its lock is free."""
        if self._owner:  # its own lock would be granted again, and then given up
            return False
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return True

    def commit(self, start: int, nbytes: int) -> None:
        """Allocate bytes of the file without changing them.

        Raises OSError: there is no room, or the file has been given back.
        """
        fd = os.open(self.path, os.O_RDWR)  # by now the other one's number may be another file's
        try:
            _allocate(fd, nbytes, start)
        finally:
            os.close(fd)

    def disown(self) -> None:
        """Leave the file to its owner; memory stays mapped."""
        if self._release.detach() is not None:
            os.close(self._fd)

    def close(self) -> None:
        """Give the file back; an owner unlinks it. Memory lives until unused."""
        self._release()


class SharedFile(LockedFile):
    """The same, mapped."""

    def __init__(self, path: Path, fd: int, *, owner: bool) -> None:
        # A mapping keeps the file open that it was made of, and that file's lock: not the owner's.
        mapped = os.open(path, os.O_RDWR)
        try:
            self.memory = mmap.mmap(mapped, 0)
        finally:
            os.close(mapped)
        super().__init__(path, fd, owner=owner)


def _release(fd: int, path: Path | None) -> None:
    if path is not None:
        path.unlink(missing_ok=True)
    os.close(fd)


def _forget_files() -> None:
    """In a forked child: its parent owns the files, and alone holds their locks."""
    for file in list(_files):
        file.disown()


_files: weakref.WeakSet[LockedFile] = weakref.WeakSet()
os.register_at_fork(after_in_child=_forget_files)


def sweep(grace: float = _GRACE, fit: str | None = None) -> list[Path]:
    """Unlink files, of a fit or of all, whose owners were found dead some seconds ago."""
    removed = []
    for path in folder().glob(f"{_PREFIX}*" if fit is None else f"{_PREFIX}{fit}-*"):
        with contextlib.suppress(OSError):  # gone meanwhile, or another user's
            fd = os.open(path, os.O_RDWR)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found = os.fstat(fd)
                if stat.S_IMODE(found.st_mode) != _MARKED:
                    os.fchmod(fd, _MARKED)
                elif time.time() - found.st_ctime >= grace:
                    path.unlink(missing_ok=True)
                    removed.append(path)
            finally:
                os.close(fd)
    return removed


def remove_files_of(fit: str) -> None:
    """Unlink the files of an ended fit on this host, of any owner."""
    for path in folder().glob(f"{_PREFIX}{fit}-*"):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
