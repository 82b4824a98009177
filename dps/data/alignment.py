"""X, y and sample weights of any containers, aligned partition by partition.

Partition i of one belongs to partition i of the others, and its rows in order: an index
is not looked at. Numbers of partitions and known lengths are compared here, lengths that
nobody knows when the partitions have been computed.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from dps.data.partitions import Partition, is_dask, is_dask_frame, is_list
from dps.data.results import results_of

__all__ = ["in_memory", "partitions_of", "parts_of"]


def partitions_of(X: Any, y: Any, weight: Any, *, multi_output: bool = False) -> list[Partition]:
    """Align what is Dask's partition by partition.

    Parameters
    ----------
    X : dask array or dataframe of shape (n, n_features) or (n,), or list of partitions
        Lengths may be unknown. A list holds Delayed objects or Futures.
    y : dask array, series or dataframe of shape (n,) or (n, 1), or list of partitions; or a
        local one where the lengths of `X` are known
    weight : likewise, or None
    multi_output : bool, default=False
        Whether `y` may have several columns.

    Returns
    -------
    list of Partition
        Of Futures where the data is in memory, else of Delayed objects.

    Raises
    ------
    ValueError
        Numbers of partitions or known lengths differ; numbers and remedy are named.
    """
    if hasattr(X, "rechunk") and X.ndim > 1 and len(X.chunks[1]) > 1:
        warnings.warn(
            f"X is cut in {len(X.chunks[1])} chunks of columns and is rechunked to whole rows; "
            "X.rechunk({1: -1}) before fit avoids this warning",
            UserWarning,
            stacklevel=2,
        )
        X = X.rechunk({1: -1})
    parts = [parts_of(X)]
    for values, name in ((y, "y"), (weight, "sample_weight")):
        if values is None:
            parts.append([None] * len(parts[0]))
            continue
        values = _whole_rows(_like(values, X, name), name, multi_output and name == "y")
        _check_aligned(X, values, name)
        parts.append(parts_of(values))
    return [Partition(*part) for part in zip(*parts, strict=True)]


def in_memory(values: Any, name: str, client: Any) -> Any:
    """The values of a dask vector beside a local X; anything else as it is.

    Raises
    ------
    TypeError
        A list of partitions, of which it is not known what they hold.
    """
    if not is_dask(values):
        return values
    if is_list(values) or not hasattr(values, "compute"):
        raise TypeError(f"{name} comes in partitions and X does not: give both in the same form")
    return results_of([values], client)[0]


def _like(values: Any, X: Any, name: str) -> Any:
    """A local vector cut like `X`; anything of Dask's as it is."""
    if is_dask(values):
        return values
    if not np.ndim(values):
        raise TypeError(f"{name} is a {type(values).__name__}: give a vector, a value for each row")
    lengths = _lengths(X)
    if lengths is None:
        raise TypeError(
            f"{name} is a {type(values).__name__} and X is a Dask collection of unknown lengths: "
            f"give {name} as a Dask collection with the partitions of X"
        )
    import dask.array as da

    values = values.toarray() if hasattr(values, "toarray") else np.asarray(values)
    if len(values) != sum(lengths):
        raise ValueError(f"{name} has {len(values)} rows, X has {sum(lengths)}: they must be equal")
    return da.from_array(values, chunks=(lengths, *values.shape[1:]))


def _whole_rows(values: Any, name: str, several: bool) -> Any:
    """A vector, or where it may have several columns the whole of each row."""
    if is_list(values):
        return values
    if not hasattr(values, "ndim"):
        raise TypeError(f"{name} must be an array or a series, got {type(values).__name__}")
    if values.ndim == 2 and values.shape[1] != 1 and several:
        return values if is_dask_frame(values) else values.rechunk({1: -1})
    if values.ndim != 1 and (values.ndim != 2 or values.shape[1] != 1):
        raise ValueError(
            f"{name} must be a vector, got {values.ndim} dimensions"
            + (f" and {values.shape[1]} columns" if values.ndim > 1 else "")
        )
    return values


def _lengths(collection: Any) -> Sequence[int] | None:
    """Known rows of each partition, or None."""
    if is_dask_frame(collection) or is_list(collection):
        return None
    lengths = collection.chunks[0]
    return None if any(np.isnan(length) for length in lengths) else lengths


def _check_aligned(X: Any, other: Any, name: str) -> None:
    lengths_X, lengths_other = _lengths(X), _lengths(other)
    if lengths_X is not None and lengths_other is not None and sum(lengths_X) != sum(lengths_other):
        raise ValueError(
            f"{name} has {sum(lengths_other)} rows, X has {sum(lengths_X)}: they must be equal"
        )
    arrays = not any(is_dask_frame(values) or is_list(values) for values in (X, other))
    remedy = f"rechunk {name} to X.chunks[0]" if arrays else f"repartition {name} like X"
    n_X, n_other = _n_partitions(X), _n_partitions(other)
    if n_X != n_other:
        raise ValueError(f"{name} has {n_other} partitions, X has {n_X}: {remedy}")
    if lengths_X is not None and lengths_other is not None:
        for number, (a, b) in enumerate(zip(lengths_X, lengths_other, strict=True)):
            if a != b:
                raise ValueError(
                    f"partition {number} of {name} has {b} rows, that of X has {a}: {remedy}"
                )


def _n_partitions(values: Any) -> int:
    if is_list(values):
        return len(values)
    return int(values.npartitions if is_dask_frame(values) else values.numblocks[0])


def parts_of(values: Any) -> list[Any]:
    """The partitions of what is Dask's: Futures where all are in memory, else Delayed objects."""
    if is_list(values):
        return list(values)
    from dask.core import flatten

    graph = values.__dask_graph__()
    futures = [_future_behind(graph, key) for key in flatten(values.__dask_keys__())]
    if all(future is not None for future in futures):
        return futures
    if is_dask_frame(values):
        return list(_optimised(values).to_delayed(optimize_graph=False))
    return list(np.asarray(values.to_delayed(), dtype=object).ravel())


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
            return value if hasattr(value, "key") and hasattr(value, "cancelled") else None


def _is_key(value: Any, graph: Any) -> bool:
    try:
        return isinstance(value, tuple) and value in graph
    except TypeError:  # a task, of something that cannot be a key
        return False
