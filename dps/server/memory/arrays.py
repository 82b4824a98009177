"""Named arrays in one piece of memory: private, or in a file that other processes map.

Owns where each array lies, and how a process knows that what it has mapped is what it expects: by a
random token, and a digest of what both sides lay out.
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
    """The specification of arrays; both sides compute the same layout from it."""

    def shapes(self) -> Shapes:
        """The arrays."""

    @property
    def growing(self) -> str | None:
        """The first of the arrays at the end whose memory is taken as it is needed; None: none."""


@dataclass(frozen=True)
class MemoryCard:
    """A card for a piece of memory: in this process its token, else the path of its file."""

    token: bytes
    path: str | None


class Regions:
    """Arrays in one piece of memory, each an attribute.

    file: whose memory it is.
    unshared: why there is no shared file, although one was wanted.
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
        """Have arrays that lie in some memory as attributes."""
        for name, (offset, shape, dtype) in regions.items():
            array = np.frombuffer(memory, dtype, math.prod(shape), offset)
            setattr(self, name, array.reshape(shape))

    @classmethod
    def make(cls, spec: Spec, name: str, *, shared: bool) -> Self:
        """Arrays of zeros, in a shared file where that is wanted and possible.

        name: what the file's name begins with.
        """
        regions, nbytes = laid_out(spec.shapes())
        file = unshared = None
        at_first = nbytes if spec.growing is None else regions[spec.growing][0]
        if shared:
            try:
                file = SharedFile.create(name, nbytes, at_first)
            except OSError as error:  # no room or no such file system
                unshared = str(error)
        made = cls(spec, file.memory if file else _private(nbytes), file)
        made.unshared = unshared
        made._identity[:16] = np.frombuffer(secrets.token_bytes(16), np.uint8)
        made._identity[16:48] = np.frombuffer(_digest(spec), np.uint8)
        _own[made.token] = made
        return made

    @classmethod
    def find(cls, spec: Spec, card: MemoryCard) -> Self | None:
        """The arrays in this process's memory; None where that cannot be, which trying shows."""
        own = _own.get(card.token)
        if isinstance(own, cls):
            return own
        if card.path is None:
            return None
        try:
            file = SharedFile.open(Path(card.path))
            found = cls(spec, file.memory, file)
        except (OSError, ValueError):  # not there, not ours, or something else by that name
            return None
        same = found.token == card.token and found._identity[16:48].tobytes() == _digest(spec)
        return found if same else None

    @property
    def token(self) -> bytes:
        """16 random bytes that tell this memory from all other."""
        return self._identity[:16].tobytes()

    @property
    def card(self) -> MemoryCard:
        """A card by which other processes find it."""
        return MemoryCard(self.token, str(self.file.path) if self.file else None)

    def release(self, array: NDArray[Any]) -> None:
        """Give the pages of an array back that no other process maps; it holds zeros then."""
        private = self.file is None and isinstance(self._memory, mmap.mmap)
        if private and array.size and hasattr(mmap, "MADV_DONTNEED"):
            start = array.ctypes.data - self._identity.ctypes.data
            self._memory.madvise(mmap.MADV_DONTNEED, start, array.nbytes)

    def close(self) -> None:
        """Give the file back; the memory lives until unused."""
        if self.file is not None:
            self.file.close()


def _private(nbytes: int) -> mmap.mmap:
    """Memory of zeros that pages are taken of as they are touched, and can be given back of."""
    return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON)


# What this process has made: threads, Dask's in-process clusters, and replicas beside their shard
# reach it without a file.
_own: weakref.WeakValueDictionary[bytes, Regions] = weakref.WeakValueDictionary()


def laid_out(shapes: Shapes) -> tuple[LaidOut, int]:
    """Offset in bytes, shape and dtype of each array; and the bytes of all."""
    regions = {}
    offset = mmap.PAGESIZE  # behind the identity
    for name, (shape, dtype) in shapes.items():
        regions[name] = (offset, shape, dtype)
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        offset += -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    return regions, offset


def _digest(spec: Spec) -> bytes:
    """32 bytes that differ where the layouts of two pieces of memory would."""
    return hashlib.sha256(repr((spec, laid_out(spec.shapes()))).encode()).digest()
