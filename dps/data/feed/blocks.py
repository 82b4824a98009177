"""A partition as a replica reads it: rows on demand, in the model's dtype.

Kernels read C-contiguous rows and CSR of the model's dtype in place. Everything else is converted
batch by batch into a scratch block.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from dps._kernels.gather import ColumnTable
from dps._kernels.rows import BlockRows
from dps.data.collections.partitions import unmasked
from dps.models.base import CSRRows, DenseRows, Rows


class Features(Protocol):
    """The X of a block."""

    def rows(self, start: int, stop: int, order: NDArray[np.int64] | None) -> Rows:
        """Return rows ``order[start:stop]``, or ``start:stop``; valid until the next call."""

    def block(self, y: NDArray[np.floating], weight: NDArray[np.floating] | None) -> BlockRows:
        """Return all rows with targets and weights for kernels."""

    def copied(self, rows: NDArray[np.int64]) -> Features:
        """Copy some rows."""


@dataclass(frozen=True)
class _DenseFeatures:
    """C-contiguous rows of the model's dtype."""

    values: NDArray[np.floating]

    def rows(self, start: int, stop: int, order: NDArray[np.int64] | None) -> Rows:
        if order is None:
            return DenseRows(self.values[start:stop])
        return DenseRows(self.values, order[start:stop])

    def block(self, y: NDArray[np.floating], weight: NDArray[np.floating] | None) -> BlockRows:
        return BlockRows.dense(self.values, y, weight)

    def copied(self, rows: NDArray[np.int64]) -> _DenseFeatures:
        return _DenseFeatures(self.values[rows])


@dataclass(frozen=True)
class SparseFeatures:
    """CSR rows of the model's dtype."""

    data: NDArray[np.floating]
    indices: np.ndarray
    indptr: np.ndarray
    n_features: int

    def rows(self, start: int, stop: int, order: NDArray[np.int64] | None) -> Rows:
        """See `Features`."""
        if order is None:
            return CSRRows(self.data, self.indices, self.indptr[start : stop + 1], self.n_features)
        return CSRRows(self.data, self.indices, self.indptr, self.n_features, order[start:stop])

    def block(self, y: NDArray[np.floating], weight: NDArray[np.floating] | None) -> BlockRows:
        """See `Features`."""
        return BlockRows.csr(self.data, self.indices, self.indptr, self.n_features, y, weight)

    def copied(self, rows: NDArray[np.int64]) -> SparseFeatures:
        """See `Features`."""
        shape = len(self.indptr) - 1, self.n_features
        some = scipy.sparse.csr_array((self.data, self.indices, self.indptr), shape)[rows]
        return SparseFeatures(some.data, some.indices, some.indptr, self.n_features)


class _UnalignedFeatures:
    """C-contiguous rows of the model's dtype at unaligned addresses, as they arrive over TCP.

    Rows are copied whole into a scratch block that stays in the cache.
    """

    def __init__(self, values: NDArray[np.floating]) -> None:
        self._values = values
        self._bytes = values.view(np.uint8)
        self._scratch = np.empty((0, values.shape[1]), values.dtype)

    def rows(self, start: int, stop: int, order: NDArray[np.int64] | None) -> Rows:
        if len(self._scratch) < stop - start:
            self._scratch = np.empty((stop - start, self._scratch.shape[1]), self._scratch.dtype)
        out = self._scratch[: stop - start]
        if order is None:
            out.view(np.uint8)[:] = self._bytes[start:stop]
        else:
            np.take(self._bytes, order[start:stop], axis=0, out=out.view(np.uint8), mode="clip")
        return DenseRows(out)

    def block(self, y: NDArray[np.floating], weight: NDArray[np.floating] | None) -> BlockRows:
        return BlockRows.dense(self._values, y, weight)

    def copied(self, rows: NDArray[np.int64]) -> _DenseFeatures:
        return _copied(self, rows)


class _ConvertedFeatures:
    """Columns of any numeric type, converted batch by batch."""

    def __init__(self, columns: list[np.ndarray], dtype: np.dtype[Any]) -> None:
        self._table = ColumnTable(columns)
        self._scratch = np.empty((0, len(columns)), dtype)

    def rows(self, start: int, stop: int, order: NDArray[np.int64] | None) -> Rows:
        if len(self._scratch) < stop - start:
            self._scratch = np.empty((stop - start, self._scratch.shape[1]), self._scratch.dtype)
        out = self._scratch[: stop - start]
        self._table.rows(order, start, stop, out)
        return DenseRows(out)

    def block(self, y: NDArray[np.floating], weight: NDArray[np.floating] | None) -> BlockRows:
        return BlockRows.columns(self._table, y, weight)

    def copied(self, rows: NDArray[np.int64]) -> _DenseFeatures:
        return _copied(self, rows)


def _copied(features: Features, rows: NDArray[np.int64]) -> _DenseFeatures:
    some = features.rows(0, len(rows), rows)
    assert isinstance(some, DenseRows)
    return _DenseFeatures(some.values.copy())


def as_rows(X: Any) -> Any:
    """Return a partition's X as an array, CSR rows or a dataframe that kernels can read.

    X: array, sparse matrix or array of SciPy or of pydata/sparse, or dataframe.

    Examples
    --------
    >>> as_rows(scipy.sparse.eye_array(3, format="csc")).format
    'csr'
    """
    if hasattr(X, "columns") and hasattr(X, "dtypes"):
        odd = [name for name, dtype in X.dtypes.items() if _is_odd(dtype)]
        return X.astype(dict.fromkeys(odd, np.float64)) if odd else X
    if hasattr(X, "to_scipy_sparse"):  # pydata/sparse
        X = X.to_scipy_sparse()
    if scipy.sparse.issparse(X):
        rows = _pruned(X).tocsr()
        if not rows.has_canonical_format:  # equal matrices must give equal results
            rows = rows.copy()
            rows.sum_duplicates()
        return rows
    values = np.asarray(unmasked(X))
    if values.dtype.kind == "O":
        with suppress(TypeError, ValueError):  # values that are not numbers are reported later
            values = values.astype(np.float64)
    return values.astype(np.float64) if _is_odd(values.dtype) else values


def _pruned(X: Any) -> Any:
    """Return a sparse matrix without surplus stored values, with indices that SciPy reads."""
    if X.format not in ("csr", "csc", "bsr"):
        return X
    stored = int(X.indptr[-1]) if len(X.indptr) else 0
    odd = "u" in (X.indices.dtype.kind, X.indptr.dtype.kind)
    if len(X.data) == len(X.indices) == stored and not odd:
        return X
    index = np.int64 if max(stored, *X.shape) > np.iinfo(np.int32).max else np.int32
    indices, indptr = X.indices[:stored], X.indptr
    if odd:
        indices, indptr = indices.astype(index), indptr.astype(index)
    return type(X)((X.data[:stored], indices, indptr), shape=X.shape)


def _is_odd(dtype: Any) -> bool:
    """True if no kernel reads a dtype directly."""
    if getattr(dtype, "kind", "O") not in "iuf":
        return False
    return not getattr(dtype, "isnative", True) or (
        dtype.kind == "f" and dtype.itemsize not in (4, 8)
    )


def features_of(X: Any, dtype: Any) -> Features:
    """Wrap a partition's X.

    X: 2-D array, sparse matrix or array, or dataframe of numbers.
    dtype: float32 or float64, the model's.
    """
    dtype, X = np.dtype(dtype), as_rows(X)
    if scipy.sparse.issparse(X):
        return SparseFeatures(
            np.require(X.data, dtype, ["C", "A"]),
            np.require(X.indices, requirements=["C", "A"]),
            np.require(X.indptr, X.indices.dtype, ["C", "A"]),
            X.shape[1],
        )
    if hasattr(X, "columns") and hasattr(X, "dtypes"):
        return _ConvertedFeatures([X.iloc[:, j].to_numpy() for j in range(X.shape[1])], dtype)
    if X.dtype == dtype and X.flags.c_contiguous and X.shape[1]:
        return _DenseFeatures(X) if X.flags.aligned else _UnalignedFeatures(X)
    return _ConvertedFeatures([X[:, j] for j in range(X.shape[1])], dtype)


@dataclass(frozen=True)
class Block:
    """The rows of a partition that a rank trains on."""

    partition: int  # number of the partition, the key of the order of its rows
    features: Features  # X of the whole partition
    y: NDArray[np.floating]  # (n,) targets of the whole partition in the model's dtype
    weight: NDArray[np.floating] | None  # (n,)
    start: int  # the rank's rows of the partition
    stop: int
    # (n,) rows of the partition that are held out.
    held_out: NDArray[np.bool_] | None = None
    first: int = 0  # number of row 0 here in the partition, for a piece that was moved

    @property
    def place(self) -> int:
        """Position of the rank's first row in the partition, wherever the rows are now."""
        return self.first + self.start

    @cached_property
    def for_kernels(self) -> BlockRows:
        """All rows of the partition for kernels."""
        return self.features.block(self.y, self.weight)

    @property
    def rows(self) -> int:
        """Number of training rows."""
        if self.held_out is None:
            return self.stop - self.start
        return int(np.count_nonzero(~self.held_out[self.start : self.stop]))

    def training_rows(self) -> NDArray[np.int64] | None:
        """Row numbers to train on, or None for all from `start` to `stop`."""
        if self.held_out is None:
            return None
        return self.start + np.flatnonzero(~self.held_out[self.start : self.stop])

    def validation_rows(self) -> NDArray[np.int64]:
        """Row numbers of held-out rows."""
        if self.held_out is None:
            return np.empty(0, np.int64)
        return self.start + np.flatnonzero(self.held_out[self.start : self.stop])

    def copied(self, rows: NDArray[np.int64]) -> Block:
        """Copy some rows, as a block without held-out rows."""
        weight = None if self.weight is None else self.weight[rows]
        features = self.features.copied(rows)
        return Block(self.partition, features, self.y[rows], weight, 0, len(rows))

    def segment(self, start: int, stop: int, order: NDArray[np.int64] | None) -> Segment:
        """Return rows ``order[start:stop]`` of the partition, or ``start:stop``."""
        at: Any = slice(start, stop) if order is None else order[start:stop]
        return Segment(
            self.features.rows(start, stop, order),
            self.y[at],
            None if self.weight is None else self.weight[at],
        )


@dataclass(frozen=True, slots=True)
class Segment:
    """The rows of a batch in one block, as values."""

    X: Rows
    y: NDArray[np.floating]
    weight: NDArray[np.floating] | None
