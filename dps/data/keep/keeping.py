"""How a partition of Dask data is stored: in memory, on disk, or not at all.

The task that computes a partition decides: in memory while the process has room, then in a file of
the worker's local directory. If that is full, the partition is computed again each time it is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from dps.data.collections.partitions import unmasked
from dps.data.collections.parts import rows_of, take
from dps.data.keep.disk import file_of
from dps.data.keep.recipes import Recipe
from dps.data.keep.streams import Stream, Values, kept_of
from dps.data.survey.defects import defect_of_lengths, defect_of_structure

#: Share of a worker's memory that partitions may fill; Dask begins to spill at 0.6.
_FILLED = 0.5
#: Rows of a partition that are compared when it is computed again.
_DIGESTED = 256


@dataclass(frozen=True)
class Keeping:
    """Where the partitions of a fit may be stored."""

    fit: str
    # {"auto", "memory", "disk"} "auto" tries memory, then disk, then nothing; None stores nothing.
    cache: str | None

    def in_memory(self, more: int) -> bool:
        """True if another `more` bytes may be stored in memory."""
        if self.cache == "memory":
            return True
        return self.cache == "auto" and _has_memory(more)


@dataclass(frozen=True)
class Recomputed:
    """A partition that is computed again for each pass."""

    shape: tuple[int, ...]  # shape of X when it was computed
    nbytes: int  # its size, for errors if it cannot be computed again
    digest: bytes  # digest of some of its rows
    recipe: Recipe | None = None  # how to compute it again, once known
    whole: ClassVar[bool] = True
    resident: ClassVar[int] = 0

    @property
    def n_rows(self) -> int:
        """Rows of the partition."""
        return self.shape[0]

    @property
    def known(self) -> bool:
        """True if rows can be read."""
        return self.recipe is not None

    def read(self, start: int, stop: int) -> Values:
        """Compute X, y and weight again; `start` and `stop` always span all rows.

        Raises ValueError: the partition has another shape than before, or a defect.
        """
        assert self.recipe is not None
        X, y, weight = map(unmasked, self.recipe())
        defect = defect_of_structure(X)
        if defect is None and np.shape(X) != self.shape:
            defect = f"X{{place}} has the shape {np.shape(X)}, it was {self.shape} at first"
        if defect is None:
            defect = defect_of_lengths(
                self.n_rows, np.asarray(y), None if weight is None else np.asarray(weight)
            )
        if defect is not None:
            raise ValueError(defect.replace("{place}", ""))
        return X, y, weight

    def repeats(self, values: Values) -> bool:
        """True if all rows are equal when they are computed again."""
        return _digest(values) == self.digest


def keep_partition(
    keeping: Keeping,
    prepare: Callable[[Any, int], Any] | None,
    number: int,
    X: Any,
    y: Any,
    weight: Any,
) -> Values | Stream:
    """Store a partition; runs in the task that computes it, after ``prepare(X, number)``."""
    from dask.sizeof import sizeof

    X, y, weight = unmasked(X), unmasked(y), unmasked(weight)
    shape, given = np.shape(X), X
    if prepare is not None:
        X = prepare(X, number)
    if keeping.in_memory(0):  # the values are in memory already
        return X, y, weight
    give_back_unused()
    kept = kept_of(X, y, weight)
    if kept is None:  # objects, or a defect, which is reported soon
        return X, y, weight
    if keeping.cache is not None:
        with contextlib.suppress(OSError):  # the folder is missing, or others have filled the disk
            file = file_of(keeping.fit, _folder())
            if file.has_room(kept.nbytes):
                return Stream(number, kept.put(file.put))
    nbytes = sum(map(sizeof, (X, y, weight)))
    absent = Recomputed(shape, nbytes, _digest((given, y, weight)))
    return Stream(number, absent, () if prepare is None else (prepare,))


def _digest(values: Values) -> bytes:
    """Return a digest of some rows, evenly spread over the partition."""
    found = hashlib.blake2b(digest_size=16)
    for part in values:
        if part is None or not np.ndim(part) or defect_of_structure(part) is not None:
            continue
        rows = rows_of(part)
        some = take(part, np.linspace(0, max(0, rows - 1), min(rows, _DIGESTED)).astype(np.int64))
        if hasattr(some, "indptr"):
            arrays = [some.data, some.indices, some.indptr]
        elif hasattr(some, "columns"):
            arrays = [some.iloc[:, at].to_numpy() for at in range(some.shape[1])]
        else:
            arrays = [np.asarray(some)]
        for array in arrays:
            numbers = array.dtype.kind in "biufcmMSU"
            found.update(
                array.tobytes() if numbers else repr(array.tolist()).encode("utf8", "replace")
            )
    return found.digest()


def recomputed_bytes(X: Any, *_: Any) -> int | None:
    """Return the bytes of a partition that was not stored; None for others."""
    return X.origin.nbytes if isinstance(X, Stream) and not X.origin.known else None


def stands_for(X: Any, *_: Any) -> tuple[bool, int | None]:
    """Return whether a stream replaces X, and `recomputed_bytes`."""
    return isinstance(X, Stream), recomputed_bytes(X)


def attach_recipe(stream: Stream, recipe: Recipe) -> Stream:
    """Add to a stream the recipe for computing its partition again."""
    assert isinstance(stream.origin, Recomputed)
    return replace(stream, origin=replace(stream.origin, recipe=recipe))


def remake_partition(
    keeping: Keeping, number: int, function: Callable[[Any, int], Any], values: Any
) -> Any:
    """Replace X of a partition by ``function(X, number)``.

    If the result would not fit in memory, it is made again each time rows are read.

    function: may have a method ``nbytes(X)``, the size of its result.
    """
    if isinstance(values, Stream):
        return values.then(function)
    if not isinstance(values, tuple):
        return function(values, number)
    X, y, weight = values
    if hasattr(function, "nbytes") and not keeping.in_memory(function.nbytes(X)):
        kept = kept_of(X, y, weight)
        if kept is not None:
            return Stream(number, kept).then(function)
    return function(X, number), y, weight


def _has_memory(more: int) -> bool:
    """True if this process may store another `more` bytes."""
    from distributed import get_worker
    from distributed.system import MEMORY_LIMIT

    try:
        limit = get_worker().memory_manager.memory_limit
    except ValueError:  # not a worker
        limit = MEMORY_LIMIT
    if not limit or _resident() + more <= _FILLED * limit:
        return True
    give_back_unused()
    return bool(_resident() + more <= _FILLED * limit)


def _resident() -> int:
    import psutil

    return int(psutil.Process().memory_info().rss)


def give_back_unused() -> None:
    """Return memory that Arrow keeps after reading files to the system."""
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].default_memory_pool().release_unused()


def _folder() -> str:
    """Return a folder for files of this process."""
    from distributed import get_worker

    try:
        return str(get_worker().local_directory)
    except ValueError:
        return tempfile.gettempdir()
