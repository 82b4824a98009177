"""Named arrays in one piece of memory: private, or in a file that other processes map.

This module decides where each array is. A process recognises memory that it has mapped by a random
token and a digest of the layout.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import secrets
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from dps.server.memory.files import SharedFile

#: Shape and dtype of each array, in order.
Shapes = Mapping[str, tuple[tuple[int, ...], str]]
#: Offset in bytes, shape and dtype of each.
LaidOut = Mapping[str, tuple[int, tuple[int, ...], str]]

_IDENTITY = 64  # bytes: token (16), digest (32)


class Spec(Protocol):
    """What a set of arrays is for; both sides compute the same layout from it."""

    def shapes(self) -> Shapes:
        """The arrays."""

    @property
    def growing(self) -> str | None:
        """The first of the trailing arrays whose memory is allocated on demand, or None."""


@dataclass(frozen=True)
class MemoryCard:
    """Identifies a piece of memory: by a token in this process, else by the path of its file."""

    token: bytes
    path: str | None


class Regions:
    """Arrays in one piece of memory, which are attributes.

    file: the file of the memory.
    unshared: why there is no shared file although one was wanted.
    """

    unshared: str | None = None

    def __init__(self, spec: Any, memory: Any, file: SharedFile | None = None) -> None:
        regions, self.nbytes = laid_out(spec.shapes())
        if memoryview(memory).nbytes < self.nbytes:
            raise ValueError(
                f"{type(self).__name__} of this kind takes {self.nbytes} bytes, got "
                f"{memoryview(memory).nbytes}"
            )
        self.spec = spec
        self.file = file
        self._memory = memory
        self._identity = np.frombuffer(memory, np.uint8, _IDENTITY)
        self.bind(regions, memory)

    def bind(self, regions: LaidOut, memory: Any) -> None:
        """Make arrays in some memory attributes of this object."""
        for name, (offset, shape, dtype) in regions.items():
            array = np.frombuffer(memory, dtype, math.prod(shape), offset)
            setattr(self, name, array.reshape(shape))

    @classmethod
    def make(cls, spec: Spec, name: str, *, shared: bool) -> Self:
        """Create arrays of zeros, in a shared file if that is wanted and possible.

        name: prefix of the file's name.
        """
        regions, nbytes = laid_out(spec.shapes())
        file = unshared = None
        at_first = nbytes if spec.growing is None else regions[spec.growing][0]
        if shared:
            try:
                file = SharedFile.create(name, nbytes, at_first)
            except OSError as error:  # no room, or no such file system
                unshared = str(error)
        made = cls(spec, file.memory if file else _private(nbytes), file)
        made.unshared = unshared
        made._identity[:16] = np.frombuffer(secrets.token_bytes(16), np.uint8)
        made._identity[16:48] = np.frombuffer(_digest(spec), np.uint8)
        _own[made.token] = made
        return made

    @classmethod
    def find(cls, spec: Spec, card: MemoryCard) -> Self | None:
        """Map the arrays of a card; None if that fails."""
        own = _own.get(card.token)
        if isinstance(own, cls):
            return own
        if card.path is None:
            return None
        try:
            file = SharedFile.open(Path(card.path))
            found = cls(spec, file.memory, file)
        # The file is missing, belongs to others, or is something else.
        except (OSError, ValueError):
            return None
        same = found.token == card.token and found._identity[16:48].tobytes() == _digest(spec)
        return found if same else None

    @property
    def token(self) -> bytes:
        """16 random bytes that identify the memory."""
        return self._identity[:16].tobytes()

    @property
    def card(self) -> MemoryCard:
        """The card by which other processes map it."""
        return MemoryCard(self.token, str(self.file.path) if self.file else None)

    def release(self, array: NDArray[Any]) -> None:
        """Free the pages of an array that no other process maps; it then holds zeros."""
        private = self.file is None and isinstance(self._memory, mmap.mmap)
        if private and array.size and hasattr(mmap, "MADV_DONTNEED"):
            start = array.ctypes.data - self._identity.ctypes.data
            self._memory.madvise(mmap.MADV_DONTNEED, start, array.nbytes)

    def close(self) -> None:
        """Release the file; the memory lives as long as it is used."""
        if self.file is not None:
            self.file.close()


def _private(nbytes: int) -> mmap.mmap:
    """Return zeroed memory whose pages are allocated on first use and can be freed."""
    return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON)


# Memory that this process has created. Threads, Dask's in-process clusters, and replicas in the
# process of their shard use it without a file.
_own: weakref.WeakValueDictionary[bytes, Regions] = weakref.WeakValueDictionary()


def laid_out(shapes: Shapes) -> tuple[LaidOut, int]:
    """Return offset in bytes, shape and dtype of each array, and the total bytes."""
    regions = {}
    offset = mmap.PAGESIZE  # after the identity
    for name, (shape, dtype) in shapes.items():
        regions[name] = (offset, shape, dtype)
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        offset += -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    return regions, offset


def _digest(spec: Spec) -> bytes:
    """Return 32 bytes that differ if two layouts differ."""
    return hashlib.sha256(repr((spec, laid_out(spec.shapes()))).encode()).digest()
