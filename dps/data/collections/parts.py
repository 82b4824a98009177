"""Dask collections as lists of partitions, and lists of partitions as Dask collections.

It ignores the contents of partitions. Dask is imported only for objects of Dask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps.data.collections.partitions import is_dask, is_dask_frame, is_list, is_part
from dps.data.collections.results import results_of
from dps.data.collections.sealed import identity, sealed


class Parts:
    """The partitions of a Dask collection, not computed yet.

    values: dask array, series or dataframe, or list of Delayed objects or Futures. An array that is
        cut between columns is rechunked to whole rows.
    name: its name in errors.

    Examples
    --------
    >>> import dask.array as da
    >>> parts = Parts(da.ones((5, 2), chunks=(3, 1)))
    >>> len(parts), parts.lengths
    (2, [3, 2])
    >>> parts.like(parts.map(np.sqrt)).shape
    (nan, 2)
    """

    def __init__(self, values: Any, name: str = "X") -> None:
        self.name = name
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
        """Rows of each partition, or None if unknown."""
        if self.is_list or self.is_frame or np.isnan(self.values.chunks[0]).any():
            return None
        return [int(length) for length in self.values.chunks[0]]

    @cached_property
    def tasks(self) -> list[Any]:
        """Futures if all partitions are in memory, else Delayed objects."""
        if self.is_list:
            return list(self.values)
        made = _delayed_behind(self.values) if self.is_frame else None
        futures = _futures_of(self.values, made)
        if futures is not None:
            return futures
        if made is not None:
            return made
        values = _optimised([self.values])[0] if self.is_frame else self.values
        # `one_graph` optimises an array together with others, or else it is not optimised.
        return list(np.asarray(values.to_delayed(optimize_graph=False), dtype=object).ravel())

    def map(self, function: Callable[..., Any], *beside: Iterable[Any]) -> list[Any]:
        """Apply a function to each partition and the values beside it, as Delayed objects."""
        import dask

        call = dask.delayed(sealed(function))
        return [call(*each) for each in zip(self.tasks, *beside, strict=True)]

    def computed(self, function: Callable[..., Any], client: Any) -> list[Any]:
        """Apply a function to each partition, and compute the results."""
        return results_of(self.map(function), client)

    def like(self, parts: list[Any], lengths: Sequence[int] | None = None) -> Any:
        """Return partitions as a collection of this kind, with or without known lengths.

        parts: of any number.
        """
        if self.is_list:
            return parts
        if self.is_frame:
            return frame_of(parts, self.values._meta)
        values = self.values
        return blocks_of(parts, lengths, values.shape[1:], values.dtype, values._meta)

    def csr(self, function: Callable[[Any, int], Any], n_columns: int, dtype: Any) -> Any:
        """Apply a function to each partition and its number; return a dask array of CSR blocks."""
        import dask
        import scipy.sparse

        shared = dask.delayed(sealed(identity, function), pure=True)()  # once in the graph
        encode = dask.delayed(sealed(_encode), pure=True)
        parts = [encode(shared, part, number) for number, part in enumerate(self.tasks)]
        meta = scipy.sparse.csr_matrix((0, n_columns), dtype=dtype)
        return blocks_of(parts, None, (n_columns,), dtype, meta)


def one_graph(*values: Any) -> list[Any]:
    """Optimise the graphs of collections together, so that shared tasks run once.

    :func:`dask.persist` does so for several collections. Local values, lists of Delayed objects and
    data in memory are returned as they are.

    *values: dask array, series or dataframe, list of Delayed or Future, local data or None.

    Examples
    --------
    >>> import dask.array as da
    >>> table = da.ones((5, 3), chunks=(3, 3))
    >>> X, y, weight = one_graph(table[:, :2], table[:, 2], None)
    >>> X.shape, y.shape, weight is None, len({*X.dask} & {*y.dask}) > 0
    ((5, 2), (5,), True, True)
    """
    found = list(values)
    lazy = [at for at, each in enumerate(values) if _is_lazy(each)]
    frames = [at for at in lazy if is_dask_frame(values[at])]
    arrays = [at for at in lazy if at not in frames]
    if len(frames) > 1:
        made = _frames_of_one_graph([found[at] for at in frames])
        for at, frame in zip(frames, made, strict=True):
            found[at] = frame
    if arrays:
        # Tasks of arrays absorb no task that another collection needs.
        lists = [part for each in found if is_list(each) for part in each]
        others: set[Any] = set()
        for each in [*lists, *(found[at] for at in frames)]:
            others.update(each.__dask_graph__() if hasattr(each, "__dask_graph__") else ())
        made = _arrays_of_one_graph([found[at] for at in arrays], others)
        for at, array in zip(arrays, made, strict=True):
            found[at] = array
    return found


def _is_lazy(values: Any) -> bool:
    """True for a Dask collection that is not in memory."""
    if is_list(values) or not (is_dask_frame(values) or hasattr(values, "numblocks")):
        return False
    if is_part(values) or not is_dask(values):
        return False
    made = _delayed_behind(values) if is_dask_frame(values) else None
    return _futures_of(values, made) is None


def _frames_of_one_graph(frames: list[Any]) -> list[Any]:
    from dask.delayed import Delayed
    from dask.highlevelgraph import HighLevelGraph

    made = _optimised(frames)
    graph: dict[Any, Any] = {}
    for frame in made:
        graph.update(frame.__dask_graph__())
    layer = f"dps-{made[0]._name}"
    shared = HighLevelGraph.from_collections(layer, graph, dependencies=())
    return [
        frame_of(
            [Delayed(key, shared, layer=layer) for key in frame.__dask_keys__()],
            frame._meta, frame.divisions,
        )
        for frame in made
    ]  # fmt: skip


def _arrays_of_one_graph(arrays: list[Any], others: set[Any]) -> list[Any]:
    import dask.array as da
    from dask.core import flatten
    from dask.highlevelgraph import HighLevelGraph

    graph = HighLevelGraph.merge(*(array.dask for array in arrays))
    keys = [key for array in arrays for key in flatten(array.__dask_keys__())]
    kept = [key for key in graph if key in others] if others else []
    made = arrays[0].__dask_optimize__(graph, [*keys, *kept])
    return [da.Array(made, array.name, array.chunks, meta=array._meta) for array in arrays]


def blocks_of(
    parts: Sequence[Any], lengths: Sequence[int] | None, shape: Sequence[int], dtype: Any, meta: Any
) -> Any:
    """Return Delayed blocks as a dask array whose rows have that shape."""
    import dask.array as da

    known = [np.nan] * len(parts) if lengths is None else lengths
    blocks = [
        da.from_delayed(part, (rows, *shape), dtype, meta=meta)
        for part, rows in zip(parts, known, strict=True)
    ]
    return da.concatenate(blocks, allow_unknown_chunksizes=True)


def persisted(client: Any, tasks: Sequence[Any]) -> Any:
    """Persist collections or Delayed objects, with a client or with Dask's default scheduler."""
    import dask

    return dask.persist(*tasks) if client is None else client.persist(list(tasks))


def held(client: Any, parts: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Persist partitions of several collections together."""
    import dask

    stay = dask.delayed(sealed(identity))
    flat = iter(persisted(client, [stay(part) for some in parts for part in some]))
    return [list(islice(flat, len(some))) for some in parts]


def frame_of(parts: Sequence[Any], meta: Any, divisions: Sequence[Any] | None = None) -> Any:
    """Return Delayed objects or Futures as a dask dataframe or series.

    As Dask's `from_delayed`, which would convert objects, such as lists, to text.
    """
    from dask import delayed
    from dask.dataframe.dask_expr import new_collection
    from dask.dataframe.dask_expr.io._delayed import DelayedsExpr, FromDelayed

    lazy = [part if hasattr(part, "__dask_graph__") else delayed(part) for part in parts]
    known = None if divisions is None else list(divisions)
    return new_collection(FromDelayed(DelayedsExpr(*lazy), meta, known, False, None, "dps"))


def rows_of(part: Any) -> int:
    """Return the number of rows of a partition."""
    return int(part.shape[0]) if hasattr(part, "shape") else len(part)


def take(part: Any, rows: NDArray[np.int64]) -> Any:
    """Return some rows of a partition."""
    if hasattr(part, "iloc"):
        return part.iloc[rows]
    if hasattr(part, "tocsr"):
        part = part.tocsr()
    return part[rows] if hasattr(part, "shape") else np.asarray(part)[rows]


def _encode(function: Callable[[Any, int], Any], part: Any, number: int) -> Any:
    return function(part, number)


def _optimised(frames: Sequence[Any]) -> list[Any]:
    """Optimise dask dataframes together: each reads the columns that all of them need.

    Dask's own optimisation would also merge row groups of a file, more of them if few columns are
    read. Then X and its metadata would be cut at different rows.
    """
    from dask._expr import _ExprSequence
    from dask.dataframe.dask_expr import new_collection
    from dask.dataframe.dask_expr._expr import optimize_blockwise_fusion

    together = _ExprSequence(*(frame.expr for frame in frames)).simplify().lower_completely()
    return [new_collection(expr) for expr in optimize_blockwise_fusion(together).operands]


def _delayed_behind(frame: Any) -> list[Any] | None:
    """Return the Delayed objects that `frame_of` made a frame of; None for other frames."""
    from dask.dataframe.dask_expr.io._delayed import FromDelayed

    expr = getattr(frame, "expr", None)
    if not isinstance(expr, FromDelayed) or expr.operand("verify_meta"):
        return None
    if expr.operand("_partitions") is not None:  # a selection of partitions
        return None
    return list(expr.delayed_container.operands)


def _futures_of(values: Any, made: Sequence[Any] | None = None) -> list[Any] | None:
    """Return the Futures of a collection's partitions; None if some are not in memory.

    `made` are the Delayed objects behind the collection, if known.
    """
    from dask.core import flatten

    if made is not None:
        places = [(part.__dask_graph__(), part.key) for part in made]
    else:
        graph = values.__dask_graph__()
        places = [(graph, key) for key in flatten(values.__dask_keys__())]
    futures = []
    for graph, key in places:
        future = _future_behind(graph, key)
        if future is None:
            return None
        futures.append(future)
    return futures


def _future_behind(graph: Any, key: object) -> Any:
    """Return the Future that a key of a graph stands for, or None."""
    from dask._task_spec import Alias

    value = graph.get(key)
    while True:
        if isinstance(value, Alias):
            value = graph.get(value.target)
        elif _is_key(value, graph):  # an alias in Dask's earlier form
            value = graph.get(value)
        else:
            return value if is_part(value) else None


def _is_key(value: object, graph: Any) -> bool:
    try:
        return isinstance(value, tuple) and value in graph
    except TypeError:  # a task with an unhashable value, which is no key
        return False
