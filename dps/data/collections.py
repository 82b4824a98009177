"""What is Dask's, as partitions, and put together again: arrays, dataframes, series and lists.

Knows nothing of what partitions hold. Dask is imported only when something of Dask's is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps.data.partitions import is_dask_frame, is_list, is_part
from dps.data.results import results_of
from dps.data.sealed import identity, sealed


class Parts:
    """The partitions of what is Dask's; nothing is computed.

    Parameters
    ----------
    values : dask array, series or dataframe, or list of Delayed objects or Futures
        Rows of an array that are cut become whole.

    Examples
    --------
    >>> import dask.array as da
    >>> parts = Parts(da.ones((5, 2), chunks=(3, 1)))
    >>> len(parts), parts.lengths
    (2, [3, 2])
    >>> parts.like(parts.map(np.sqrt)).shape
    (nan, 2)
    """

    def __init__(self, values: Any) -> None:
        self.is_list = is_list(values)
        self.is_frame = not self.is_list and is_dask_frame(values)
        if not (self.is_list or self.is_frame) and values.ndim > 1 and values.numblocks[1] > 1:
            values = values.rechunk({1: -1})
        self.values = values

    def __len__(self) -> int:
        if self.is_list:
            return len(self.values)
        return int(self.values.npartitions if self.is_frame else self.values.numblocks[0])

    @property
    def lengths(self) -> list[int] | None:
        """Rows of each, where that is known."""
        if self.is_list or self.is_frame or np.isnan(self.values.chunks[0]).any():
            return None
        return [int(length) for length in self.values.chunks[0]]

    @cached_property
    def tasks(self) -> list[Any]:
        """Futures where all are in memory, else Delayed objects."""
        if self.is_list:
            return list(self.values)
        from dask.core import flatten

        graph = self.values.__dask_graph__()
        futures = [_future_behind(graph, key) for key in flatten(self.values.__dask_keys__())]
        if all(future is not None for future in futures):
            return futures
        if self.is_frame:
            return list(_optimised(self.values).to_delayed(optimize_graph=False))
        return list(np.asarray(self.values.to_delayed(), dtype=object).ravel())

    def map(self, function: Callable[..., Any], *beside: Iterable[Any]) -> list[Any]:
        """What a function makes of each, and of what is beside it, as Delayed."""
        import dask

        call = dask.delayed(sealed(function))
        return [call(*each) for each in zip(self.tasks, *beside, strict=True)]

    def computed(self, function: Callable[..., Any], client: Any) -> list[Any]:
        """What a function makes of each, computed."""
        return results_of(self.map(function), client)

    def like(self, parts: list[Any], lengths: Sequence[int] | None = None) -> Any:
        """Other partitions as a collection of this kind, of known lengths or unknown ones.

        Parameters
        ----------
        parts : list of Delayed or Future
            As many as there are, or more or fewer.
        lengths : sequence of int, optional
        """
        if self.is_list:
            return parts
        if self.is_frame:
            import dask.dataframe as dd

            return dd.from_delayed(parts, meta=self.values._meta, verify_meta=False)
        values = self.values
        return blocks_of(parts, lengths, values.shape[1:], values.dtype, values._meta)

    def csr(self, function: Callable[[Any, int], Any], n_columns: int, dtype: Any) -> Any:
        """What a function makes of each and its number: a dask array of CSR of unknown lengths."""
        import dask
        import scipy.sparse

        shared = dask.delayed(sealed(identity, function), pure=True)()  # once in the graph
        encode = dask.delayed(sealed(_encode), pure=True)
        parts = [encode(shared, part, number) for number, part in enumerate(self.tasks)]
        meta = scipy.sparse.csr_matrix((0, n_columns), dtype=dtype)
        return blocks_of(parts, None, (n_columns,), dtype, meta)


def blocks_of(
    parts: Sequence[Any], lengths: Sequence[int] | None, shape: Sequence[int], dtype: Any, meta: Any
) -> Any:
    """Delayed blocks as a dask array, whose rows have that shape."""
    import dask.array as da

    known = [np.nan] * len(parts) if lengths is None else lengths
    blocks = [
        da.from_delayed(part, (rows, *shape), dtype, meta=meta)
        for part, rows in zip(parts, known, strict=True)
    ]
    return da.concatenate(blocks, allow_unknown_chunksizes=True)


def rows_of(part: Any) -> int:
    """How many rows a partition has."""
    return int(part.shape[0]) if hasattr(part, "shape") else len(part)


def take(part: Any, rows: NDArray[np.int64]) -> Any:
    """Some rows of a partition."""
    if hasattr(part, "iloc"):
        return part.iloc[rows]
    if hasattr(part, "tocsr"):
        part = part.tocsr()
    return part[rows] if hasattr(part, "shape") else np.asarray(part)[rows]


def _encode(function: Callable[[Any, int], Any], part: Any, number: int) -> Any:
    return function(part, number)


def _optimised(frame: Any) -> Any:
    """A dask dataframe that reads only what it needs, in one task a partition.

    Dask would also read a file's row groups together, the more the fewer columns are wanted: X and
    y, or X and what it says of itself, would be cut at different rows.
    """
    from dask.dataframe.dask_expr import new_collection

    return new_collection(frame.expr.simplify().lower_completely().fuse())


def _future_behind(graph: Any, key: Any) -> Any:
    """The Future that a key of a graph stands for, if it stands for one."""
    from dask._task_spec import Alias

    value = graph.get(key)
    while True:
        if isinstance(value, Alias):
            value = graph.get(value.target)
        elif _is_key(value, graph):  # an alias as Dask once wrote them
            value = graph.get(value)
        else:
            return value if is_part(value) else None


def _is_key(value: Any, graph: Any) -> bool:
    try:
        return isinstance(value, tuple) and value in graph
    except TypeError:  # a task, of something that cannot be a key
        return False
