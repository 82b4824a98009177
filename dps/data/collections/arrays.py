"""Arrays whose rows are not vectors, and several arrays with the same rows, as one matrix."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from dps.data.collections.partitions import is_dask


def side_by_side(X: Any) -> Any:
    """Return a matrix for several arrays: of NumPy, or of Dask if one of them is of Dask.

    X: array, dict or tuple of arrays that `Arrays.of` describes.
    Raises ValueError: the arrays have different numbers of rows, or integers that the matrix cannot
        hold.
    """
    if not isinstance(X, Mapping | tuple):
        return _matrix(X, X.dtype, "X")
    names = sorted(X) if isinstance(X, Mapping) else range(len(X))
    parts = {name: X[name] for name in names}
    lengths = {name: part.shape[0] for name, part in parts.items()}
    # Lengths of Dask arrays may be NaN.
    known = {length for length in lengths.values() if length == length}
    if len(known) > 1:
        raise ValueError(f"the arrays in X have different numbers of rows: {lengths}")
    floating = [part.dtype for part in parts.values() if part.dtype.kind == "f"]
    dtype = np.result_type(*floating, np.float32) if floating else np.dtype(np.float64)
    first = next((part for part in parts.values() if is_dask(part)), None)
    if first is None:
        return np.hstack([_matrix(part, dtype, f"X[{name!r}]") for name, part in parts.items()])
    import dask.array as da

    matrices = []
    for name, part in parts.items():
        if not is_dask(part) or (part.chunks[0] != first.chunks[0] and known):
            part = da.asarray(part).rechunk({0: first.chunks[0]})
        matrices.append(_matrix(part, dtype, f"X[{name!r}]"))
    return da.concatenate(matrices, axis=1, allow_unknown_chunksizes=True).rechunk({1: -1})


def _matrix(X: Any, dtype: np.dtype[Any], name: str) -> Any:
    """Return rows as vectors in the common dtype."""
    width = int(np.prod(X.shape[1:], dtype=int))
    if not is_dask(X):
        return _vectors(X, width, dtype, name)
    whole = X.rechunk(dict.fromkeys(range(1, X.ndim), -1))
    axes = {"drop_axis": range(2, X.ndim)} if X.ndim > 1 else {"new_axis": 1}
    return whole.map_blocks(
        partial(_vectors, width=width, dtype=dtype, name=name), **axes,
        chunks=(whole.chunks[0], (width,)), meta=np.empty((0, 0), dtype),
    )  # fmt: skip


def _vectors(X: np.ndarray, width: int, dtype: np.dtype[Any], name: str) -> np.ndarray:
    found: np.ndarray = X.reshape(len(X), width).astype(dtype, copy=False)
    if X.dtype.kind in "iu" and dtype.itemsize < 8 and X.size:
        largest = max(abs(int(X.min())), abs(int(X.max())))
        if largest > 1 << 24:
            raise ValueError(
                f"{name} holds {largest}, and the other inputs are float32, in which integers "
                "above 16,777,216 are not exact: give the others as float64"
            )
    return found
