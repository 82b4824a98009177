"""User's containers as aligned partitions of X, y and sample weights.

Checks what can be known without computing anything: shapes, partition counts, dtypes
of columns. Dask is imported only when a Dask collection is given.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = [
    "Partition",
    "check_columns",
    "columns_without_numbers",
    "is_dask",
    "is_frame",
    "meta_of",
    "partitions_of",
    "parts_of",
]


@dataclass(frozen=True)
class Partition:
    """Rows that lie together.

    Parameters
    ----------
    X : 2-D array, CSR matrix or dataframe; or a Delayed or Future of one
    y : vector, likewise
    weight : vector, likewise, or None
    """

    X: Any
    y: Any
    weight: Any


def is_dask(value: Any) -> bool:
    """Whether a value is a Dask collection; does not import Dask."""
    if "dask.base" not in sys.modules:
        return False
    from dask.base import is_dask_collection

    return bool(is_dask_collection(value))


def meta_of(X: Any) -> Any:
    """What `X` is made of, without rows: for feature names and counts.

    Raises
    ------
    ValueError, TypeError
        Columns that are no numbers, or a collection that is no table.
    """
    if _is_dask_frame(X):
        check_columns(X._meta)
        return X._meta
    _check_array(X, "X", 2)
    if np.isnan(X.shape[1]):
        raise ValueError(
            "X has an unknown number of columns: give its chunks a known width, "
            "as in X.rechunk({1: -1}) before the lengths are lost"
        )
    return np.empty((1, X.shape[1]), X.dtype)


def partitions_of(X: Any, y: Any, weight: Any) -> list[Partition]:
    """Align Dask collections partition by partition.

    Parameters
    ----------
    X : dask array of shape (n, n_features) or (n,), or dask dataframe or series
        Lengths may be unknown.
    y : dask array or series of shape (n,), or (n, 1); or a local vector where the
        lengths of `X` are known
    weight : likewise, or None

    Returns
    -------
    list of Partition
        Of Futures where the data is in memory, else of Delayed objects.

    Raises
    ------
    ValueError
        Numbers of partitions or known lengths differ; numbers and remedy are named.
    """
    if not _is_dask_frame(X) and X.ndim > 1 and len(X.chunks[1]) > 1:
        warnings.warn(
            f"X is cut in {len(X.chunks[1])} chunks of columns and is rechunked to whole rows; "
            "X.rechunk({1: -1}) before fit avoids this warning",
            UserWarning,
            stacklevel=2,
        )
        X = X.rechunk({1: -1})
    X = _readable(X)
    y = _vector(_local_like(y, X, "y"), "y")
    _check_aligned(X, y, "y")
    parts = [parts_of(X), parts_of(y)]
    if weight is not None:
        weight = _vector(_local_like(weight, X, "sample_weight"), "sample_weight")
        _check_aligned(X, weight, "sample_weight")
        parts.append(parts_of(weight))
    else:
        parts.append([None] * len(parts[0]))
    return [Partition(*part) for part in zip(*parts, strict=True)]


def _is_dask_frame(value: Any) -> bool:
    return hasattr(value, "_meta") and hasattr(value, "npartitions") and hasattr(value, "divisions")


def check_columns(meta: Any) -> None:
    """Raise unless all columns of a pandas dataframe are of numbers.

    Raises
    ------
    ValueError
        Names the columns, their dtypes and what to do.
    """
    if not hasattr(meta, "columns"):
        raise ValueError("X is a Series: X.to_frame() makes a dataframe of one column")
    bad = columns_without_numbers(meta)
    if bad:
        raise ValueError(
            f"columns {bad} of X hold no numbers "
            f"({', '.join(str(meta.dtypes[name]) for name in meta.columns if str(name) in bad)}): "
            "encode them first, for example with get_dummies of pandas or dask.dataframe "
            "(there after X.categorize()), or drop them"
        )


def columns_without_numbers(meta: Any) -> list[str]:
    """Names of a pandas dataframe's columns that are not of numbers."""
    return [
        str(name)
        for name, dtype in meta.dtypes.items()
        if not (getattr(dtype, "kind", "O") in "biuf" and hasattr(dtype, "itemsize"))
    ]


def is_frame(X: Any) -> bool:
    """Whether `X` is a dataframe of pandas or dask; a Series is not."""
    return hasattr(X, "columns") and hasattr(X, "iloc") and X.ndim == 2


def _readable(X: Any) -> Any:
    """`X` with floats that no kernel reads, such as float16, as float64."""
    if _is_dask_frame(X):
        if X.ndim == 1:
            return X
        odd = {
            name: np.float64
            for name, dtype in X._meta.dtypes.items()
            if dtype.kind == "f" and dtype.itemsize not in (4, 8)
        }
        return X.astype(odd) if odd else X
    odd_float = X.dtype.kind == "f" and X.dtype.itemsize not in (4, 8)
    return X.astype(np.float64) if odd_float or not X.dtype.isnative else X


def _check_array(X: Any, name: str, ndim: int) -> None:
    if not hasattr(X, "chunks"):
        raise TypeError(f"{name} must be a dask array or dataframe here, got {type(X).__name__}")
    if X.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} dimensions, got shape {X.shape}")
    if X.dtype.kind not in "biuf":
        raise ValueError(f"{name} has dtype {X.dtype}, which is no number: encode or convert it")


def _local_like(values: Any, X: Any, name: str) -> Any:
    """A local vector cut like `X`."""
    if is_dask(values):
        return values
    lengths = _lengths(X)
    if lengths is None:
        raise TypeError(
            f"{name} is a {type(values).__name__} and X is a Dask collection of unknown lengths: "
            f"give {name} as a Dask collection with the partitions of X"
        )
    import dask.array as da

    values = np.asarray(values)
    if len(values) != sum(lengths):
        raise ValueError(f"{name} has {len(values)} rows, X has {sum(lengths)}: they must be equal")
    return da.from_array(values, chunks=(lengths, *values.shape[1:]))


def _vector(values: Any, name: str) -> Any:
    ndim = values.ndim
    if ndim == 1:
        return values
    columns = values.shape[1]
    if ndim == 2 and columns == 1:
        return values.iloc[:, 0] if _is_dask_frame(values) else values[:, 0]
    raise ValueError(f"{name} must be a vector, got {ndim} dimensions and {columns} columns")


def _lengths(collection: Any) -> Sequence[int] | None:
    """Known rows of each partition, or None."""
    if _is_dask_frame(collection):
        return None
    lengths = collection.chunks[0]
    return None if any(np.isnan(length) for length in lengths) else lengths


def _check_aligned(X: Any, other: Any, name: str) -> None:
    n_X, n_other = (
        X.numblocks[0] if not _is_dask_frame(X) else X.npartitions,
        (other.npartitions if _is_dask_frame(other) else other.numblocks[0]),
    )
    lengths_X, lengths_other = _lengths(X), _lengths(other)
    if lengths_X is not None and lengths_other is not None and sum(lengths_X) != sum(lengths_other):
        raise ValueError(
            f"{name} has {sum(lengths_other)} rows, X has {sum(lengths_X)}: they must be equal"
        )
    remedy = (
        f"repartition {name} like X"
        if _is_dask_frame(X) or _is_dask_frame(other)
        else f"rechunk {name} to X.chunks[0]"
    )
    if n_X != n_other:
        raise ValueError(f"{name} has {n_other} partitions, X has {n_X}: {remedy}")
    if lengths_X is not None and lengths_other is not None:
        for number, (a, b) in enumerate(zip(lengths_X, lengths_other, strict=True)):
            if a != b:
                raise ValueError(
                    f"partition {number} of {name} has {b} rows, that of X has {a}: {remedy}"
                )


def parts_of(collection: Any) -> list[Any]:
    """The partitions of a Dask collection: Futures where all are in memory, else Delayed."""
    from dask.core import flatten

    graph = collection.__dask_graph__()
    futures = [_future_behind(graph, key) for key in flatten(collection.__dask_keys__())]
    if all(future is not None for future in futures):
        return futures
    if _is_dask_frame(collection):
        return list(_optimised(collection).to_delayed(optimize_graph=False))
    return list(np.asarray(collection.to_delayed(), dtype=object).ravel())


def _optimised(frame: Any) -> Any:
    """A dask dataframe that reads only what it needs, in one task a partition.

    Dask would also read a file's row groups together, the more the fewer columns are wanted: X and
    y, or X and what it says of itself, would be cut at different rows.
    """
    from dask.dataframe.dask_expr import new_collection
    from dask.dataframe.dask_expr._expr import optimize_blockwise_fusion

    return new_collection(optimize_blockwise_fusion(frame.expr.simplify().lower_completely()))


def _future_behind(graph: Any, key: Any) -> Any:
    """The Future that a key of a graph stands for, if it stands for one."""
    from dask._task_spec import Alias

    value = graph.get(key)
    while isinstance(value, Alias):
        value = graph.get(value.target)
    return value if hasattr(value, "key") and hasattr(value, "cancelled") else None
