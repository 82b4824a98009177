"""Arrays in a file of the worker's local directory, read slice by slice.

The file is unlinked while open, so it disappears with its last reference or with its process,
however that ends. Arrays are only appended, so threads can read while others write; the lock is for
writers.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import uuid
import weakref
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

#: Free space to leave on a disk: this share of it, up to a number of bytes.
_LEFT, _MOST_LEFT = 0.05, 4 << 30

_files: weakref.WeakValueDictionary[str, DiskFile] = weakref.WeakValueDictionary()
#: Files that Dask may refer to after it has pickled an array of theirs.
_written_down: dict[str, DiskFile] = {}
_making = threading.Lock()


class DiskFile:
    """A file of arrays."""

    def __init__(self, fit: str, folder: str) -> None:
        self.fit = fit
        self.token = uuid.uuid4().hex
        self._folder = folder
        self._fd, name = tempfile.mkstemp(prefix="dps-", dir=folder)
        os.unlink(name)
        weakref.finalize(self, os.close, self._fd)
        self._end = 0
        self._lock = threading.Lock()
        _files[self.token] = self

    def has_room(self, nbytes: int) -> bool:
        """True if the disk has enough space left after another `nbytes`."""
        disk = shutil.disk_usage(self._folder)
        return disk.free - nbytes > min(_LEFT * disk.total, _MOST_LEFT)

    def put(self, array: np.ndarray) -> DiskArray:
        """Append an array.

        array: C-contiguous array without objects.
        Raises OSError: the disk is full.
        """
        with self._lock:
            start = self._end
            self._end += array.nbytes
        values, done = _bytes(array), 0
        while done < len(values):
            done += os.pwrite(self._fd, values[done:], start + done)
        return DiskArray(self, start, array.shape, array.dtype)

    def read(self, out: memoryview, start: int) -> None:
        """Fill a buffer from the file at `start`."""
        done = 0
        while done < len(out):
            read = os.preadv(self._fd, [out[done:]], start + done)
            if not read:
                raise OSError(f"a file of rows ends after {start + done} bytes")
            done += read


@dataclass(frozen=True)
class DiskArray:
    """An array in a file."""

    file: DiskFile
    start: int  # its first byte
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return prod(self.shape) * self.dtype.itemsize

    def __getitem__(self, at: slice) -> np.ndarray:
        start, stop, _ = at.indices(len(self))
        rows = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype)
        if rows.size:
            row = prod(self.shape[1:]) * self.dtype.itemsize
            self.file.read(_bytes(rows), self.start + start * row)
        return rows

    def __reduce__(self) -> Any:
        # Dask may pickle an array and unpickle it in the same process.
        _written_down[self.file.token] = self.file
        return _again, (self.file.token, self.start, self.shape, self.dtype)


def file_of(fit: str, folder: str) -> DiskFile:
    """Return the file of a fit in this process."""
    with _making:
        for file in list(_files.values()):
            if file.fit == fit:
                return file
        return DiskFile(fit, folder)


def forget_files(fit: str) -> None:
    """Forget the files of a fit that has ended."""
    for token, file in list(_written_down.items()):
        if file.fit == fit:
            _written_down.pop(token, None)


def _bytes(array: np.ndarray) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]


def _again(token: str, start: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> DiskArray:
    file = _files.get(token)
    if file is None:
        raise OSError("rows that lie on the disk of a worker can be read by that process alone")
    return DiskArray(file, start, shape, dtype)
