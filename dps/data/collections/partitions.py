"""Partitions, pieces of partitions, and the containers that they come in.

It checks what a container shows without computation: shapes, dtypes and names of columns. Dask is
imported only for objects of Dask.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Called with the numbers of loaded partitions and of all.
Counted = Callable[[int, int], None]


@dataclass(frozen=True)
class Partition:
    """X, y and weights of some rows."""

    X: Any
    y: Any
    weight: Any


@dataclass(frozen=True)
class Piece:
    """Rows `start` to `stop` of a partition.

    Examples
    --------
    >>> Piece(3, 10, 15).rows
    5
    """

    partition: int  # number of the partition
    start: int
    stop: int
    # True if these rows are copied to the worker that reads them; else it holds the partition.
    moved: bool = False

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start


def is_dask(value: object) -> bool:
    """True for a Dask collection or a list of partitions; does not import Dask."""
    if "dask.base" not in sys.modules:
        return False
    from dask.base import is_dask_collection

    return bool(is_dask_collection(value)) or is_list(value) or is_part(value)


def is_frame(value: Any) -> bool:
    """True for a dataframe of pandas or Dask, not for a series."""
    named = not is_part(value) and hasattr(value, "columns") and hasattr(value, "iloc")
    return named and value.ndim == 2


def unmasked(values: Any) -> Any:
    """Convert an array to a dtype that scikit-learn, files and kernels read.

    Masked values become NaN or None. NumPy's variable-width strings become objects. Objects that
    are all integers or booleans become an array of these.

    Examples
    --------
    >>> unmasked(np.ma.masked_equal([1, 2, -9], -9)), unmasked(np.array([1, 2], object))
    (array([ 1.,  2., nan]), array([1, 2]))
    """
    if not isinstance(values, np.ndarray):
        return values
    if isinstance(values, np.ma.MaskedArray):
        mask, values = np.ma.getmaskarray(values), np.ma.getdata(values)
        if mask.any():
            numbers = values.dtype.kind in "biuf"
            dtype = np.result_type(values.dtype, np.float32) if numbers else object
            values = values.astype(dtype)
            values[mask] = np.nan if numbers else None
    if values.dtype.kind == "T":
        return values.astype(object)
    if values.dtype == object and values.size and isinstance(values.flat[0], int | np.integer):
        made = np.array(values.tolist())
        return made if made.dtype.kind in "biu" and made.shape == values.shape else values
    return values


def as_pandas(value: object) -> Any:
    """Convert data of pyarrow or polars to pandas, and tensors to unmasked NumPy arrays."""
    value = unmasked(value)
    library = type(value).__module__.partition(".")[0]
    if library == "torch" and hasattr(value, "detach"):
        return value.detach().cpu().numpy()
    if library != "numpy" and hasattr(value, "__array_namespace__") and not is_dask(value):
        return np.asarray(value)
    if library == "polars" and hasattr(value, "collect"):
        raise TypeError("a LazyFrame of polars has no rows yet: give its .collect()")
    if library in ("pyarrow", "polars") and hasattr(value, "to_pandas"):
        return _from_arrow(value)
    return value


def _from_arrow(value: Any) -> Any:
    """Convert a table or column to pandas; integers and booleans with gaps keep their types."""
    import pandas as pd

    made = value.to_pandas()
    if not isinstance(made, pd.DataFrame):
        return made if (kept := _with_gaps(value)) is None else pd.Series(kept, made.index)
    for name in made.columns:
        if (kept := _with_gaps(value[name])) is not None:
            made[name] = kept
    return made


def _with_gaps(column: Any) -> Any:
    """Return a nullable array if integers or booleans are missing, else None."""
    import pandas as pd
    import pyarrow as pa

    column = column.to_arrow() if hasattr(column, "to_arrow") else column
    whole = pa.types.is_integer(column.type)
    if not column.null_count or not (whole or pa.types.is_boolean(column.type)):
        return None
    kind = str(column.type).replace("int", "Int").replace("u", "U") if whole else "boolean"
    dtype = pd.array([], dtype=kind).dtype
    return column.to_pandas(types_mapper=lambda _: dtype).array


def is_dask_frame(value: object) -> bool:
    """True for a dask dataframe or series."""
    return hasattr(value, "_meta") and hasattr(value, "npartitions") and hasattr(value, "divisions")


def is_list(value: object) -> bool:
    """True for a list of Delayed objects or Futures."""
    return isinstance(value, list | tuple) and len(value) > 0 and is_part(value[0])


def is_part(value: object) -> bool:
    """True for a Future or a Delayed, which has every attribute without an underscore."""
    return hasattr(value, "key") and hasattr(value, "cancelled")


def meta_of(X: Any) -> Any:
    """Return an empty container with the columns of `X`, for names and counts of features.

    Returns dataframe, array, or None for a list of partitions, whose columns are unknown.
    Raises ValueError, TypeError: columns are not numeric, or a collection is not a table.
    """
    if is_dask_frame(X):
        check_columns(X._meta)
        return X._meta
    if is_list(X):
        for number, part in enumerate(X):
            if not is_part(part):
                raise TypeError(
                    f"partition {number} of X is a {type(part).__name__}: a list of partitions "
                    "holds Delayed objects or Futures only"
                )
        return None
    if is_part(X):
        raise TypeError("X is one Delayed or Future: give a list of partitions, as X=[X], y=[y]")
    _check_array(X)
    if np.isnan(X.shape[1]):
        raise ValueError(
            "X has an unknown number of columns: give its chunks a known width, "
            "as in X.rechunk({1: -1}) before the lengths are lost"
        )
    return np.empty((1, X.shape[1]), np.float64 if X.dtype.kind == "O" else X.dtype)


def _check_array(X: Any) -> None:
    import dask.array as da

    if not isinstance(X, da.Array):
        remedy = ": give its .data" if hasattr(X, "chunks") and hasattr(X, "data") else ""
        raise TypeError(
            "X must be a dask array or dataframe here, or a list of Delayed objects or Futures, "
            f"got {type(X).__name__}{remedy}"
        )
    if X.ndim != 2:
        raise ValueError(f"X must have 2 dimensions, got shape {X.shape}")
    if X.dtype.kind not in "biufO":  # objects may hold numbers
        raise ValueError(f"X has dtype {X.dtype}, which is no number: encode or convert it")


def check_names(meta: Any) -> None:
    """Raise if two columns of a pandas dataframe have the same name."""
    twice = [str(name) for name, count in Counter(meta.columns).items() if count > 1]
    if twice:
        raise ValueError(f"X has several columns named {twice}: give each a name of its own")


_CONVERT = (
    ", and the model was trained on numbers alone: convert or drop them, or fit a clone, which "
    "encodes a dataframe's other columns"
)


def check_columns(meta: Any, remedy: str = _CONVERT) -> None:
    """Raise unless all columns of a pandas dataframe are numeric and have distinct names.

    remedy: advice for other columns; by default for a model that was trained on numbers.
    Raises ValueError: the message has the columns, their dtypes and the remedy.
    """
    if not hasattr(meta, "columns"):
        raise ValueError("X is a Series: X.to_frame() makes a dataframe of one column")
    check_names(meta)
    bad = columns_without_numbers(meta)
    if bad and any(hasattr(dtype, "fill_value") for dtype in meta.dtypes):
        raise ValueError(
            f"columns {bad} of X are pandas' sparse columns: X.sparse.to_dense() makes them dense, "
            "and X.sparse.to_coo() a sparse matrix"
        )
    if bad:
        raise ValueError(
            f"columns {bad} of X hold no numbers "
            f"({', '.join(str(meta.dtypes[name]) for name in meta.columns if str(name) in bad)})"
            + remedy
        )


def columns_without_numbers(meta: Any) -> list[str]:
    """Return the names of a pandas dataframe's columns that are not numeric."""
    return [
        str(name)
        for name, dtype in meta.dtypes.items()
        if not (getattr(dtype, "kind", "O") in "biuf" and hasattr(dtype, "itemsize"))
    ]
