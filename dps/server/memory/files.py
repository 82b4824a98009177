"""Files of shared memory: created, mapped, released, and removed after a crash.

This module sees bytes and owners only.

Protocol. A file's name contains the fit and a random token. Its owner creates it, takes ``flock``
on it and allocates its bytes before it tells anyone, except bytes that a writer must
:meth:`~LockedFile.commit`. The owner holds the lock as long as it lives, so a file with a free lock
has no owner. Such a file may hold state that the fit continues from, so it stays for a while:
:func:`sweep` marks it, which sets the time of its last change, and unlinks files that were marked
long ago. The client of a fit unlinks all of the fit's files at its end. A sweeper may lock a file
in the instant between its creation and its owner's lock; the owner then finds at most a mark, and
removes it.

A forked child inherits the lock, which would outlive the owner, so the child gives up its copy at
once. After a crash of the owner at any point there is a file with a free lock; a crash of a process
that mapped the file leaves nothing. Mappings outlive the file's name, so unlinking never breaks a
reader.
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
#: Seconds for which files of a dead owner are kept.
_GRACE = 60.0
#: Permissions of a file with an owner, and of a file whose owner was found dead.
_OWNED, _MARKED = 0o600, 0o700


def folder() -> Path:
    """The folder for files of shared memory on this host."""
    memory = Path("/dev/shm")
    if not PORTABLE and os.access(memory, os.W_OK | os.X_OK):
        return memory
    return Path(tempfile.gettempdir())


def _allocate(fd: int, nbytes: int, start: int = 0) -> None:
    # ftruncate beyond the size of a small tmpfs succeeds, and the first write then kills the
    # process with SIGBUS; allocation raises ENOSPC instead.
    if hasattr(os, "posix_fallocate") and not PORTABLE:
        os.posix_fallocate(fd, start, nbytes)
        return
    while nbytes:
        n = min(nbytes, 1 << 20)
        written = os.pwrite(fd, os.pread(fd, n, start).ljust(n, b"\0"), start)
        nbytes, start = nbytes - written, start + written


def _made(fit: str, nbytes: int, at_first: int) -> tuple[Path, int]:
    """Create a file of zeros; return its path and a descriptor that holds its lock."""
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
    """A file whose lock tells whether its owner lives, for the owner or for others."""

    def __init__(self, path: Path, fd: int, *, owner: bool) -> None:
        self.path = path
        self._fd = fd
        self._owner = owner
        self._release = weakref.finalize(self, _release, fd, path if owner else None)
        _files.add(self)

    @classmethod
    def create(cls, fit: str, nbytes: int = 0, at_first: int | None = None) -> Self:
        """Create a file of `nbytes` zeros.

        at_first: bytes that are allocated now; by default all. Others must be committed before they
            are written.
        Raises OSError: there is no room, or the file system does not support it.
        """
        path, fd = _made(fit, nbytes, nbytes if at_first is None else at_first)
        try:
            return cls(path, fd, owner=True)
        except BaseException:
            _release(fd, path)
            raise

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a file of another owner.

        Raises OSError: the file is missing or cannot be read: another host, container or user.
        """
        fd = os.open(path, os.O_RDWR)
        try:
            return cls(path, fd, owner=False)
        except BaseException:
            os.close(fd)
            raise

    def owner_is_gone(self) -> bool:
        """True if the owner has died: its lock is free."""
        if self._owner:  # its own lock would be granted again, and then released
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

        Raises OSError: there is no room, or the file has been released.
        """
        # The number of a closed descriptor may belong to another file by now.
        fd = os.open(self.path, os.O_RDWR)
        try:
            _allocate(fd, nbytes, start)
        finally:
            os.close(fd)

    def disown(self) -> None:
        """Leave the file to its owner; memory stays mapped."""
        if self._release.detach() is not None:
            os.close(self._fd)

    def close(self) -> None:
        """Release the file; an owner unlinks it. Memory lives as long as it is used."""
        self._release()


class SharedFile(LockedFile):
    """A locked file that is mapped."""

    def __init__(self, path: Path, fd: int, *, owner: bool) -> None:
        # A mapping keeps the descriptor that it was made of open, and with it a lock: not the
        # owner's.
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
    """In a forked child: forget the files, whose owner and locks stay with the parent."""
    for file in list(_files):
        file.disown()


_files: weakref.WeakSet[LockedFile] = weakref.WeakSet()
os.register_at_fork(after_in_child=_forget_files)


def sweep(grace: float = _GRACE, fit: str | None = None) -> list[Path]:
    """Unlink files, of one fit or all, whose owners were found dead some seconds ago."""
    removed = []
    for path in folder().glob(f"{_PREFIX}*" if fit is None else f"{_PREFIX}{fit}-*"):
        with contextlib.suppress(OSError):  # it has disappeared, or belongs to another user
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
