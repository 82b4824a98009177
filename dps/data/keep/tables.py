"""The values of a partition as plain arrays, which can be read by rows.

An array, CSR rows, a dataframe's columns or the columns that an encoder has read are split into
fields, and rebuilt from the rows of each field. The arrays of a field may be in memory or in a
file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import scipy.sparse

from dps.data.collections.partitions import is_frame
from dps.data.feed.blocks import as_rows
from dps.data.feed.targets import as_targets
from dps.data.survey.defects import defect_of_structure


class _Sliced(Protocol):
    """An array, or a proxy that fetches slices of one."""

    @property
    def nbytes(self) -> int: ...

    def __len__(self) -> int: ...

    def __getitem__(self, at: slice, /) -> np.ndarray: ...


#: Stores an array, and returns a proxy that fetches slices of it.
Put = Callable[[np.ndarray], _Sliced]


@dataclass(frozen=True)
class Flat:
    """One value, or one vector, per row."""

    values: _Sliced

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.values.nbytes

    @property
    def resident(self) -> int:
        """Bytes of all rows in memory."""
        return _resident(self.values)

    def rows(self, start: int, stop: int) -> Flat:
        """Return some rows in memory."""
        return Flat(self.values[start:stop])

    def put(self, store: Put) -> Flat:
        """Return the same, stored elsewhere."""
        return Flat(store(np.ascontiguousarray(self.values)))


@dataclass(frozen=True)
class Ragged:
    """A list of values per row."""

    starts: _Sliced  # (n + 1,) first value of each row
    values: tuple[_Sliced, ...]  # arrays of equal length

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.starts.nbytes + sum(values.nbytes for values in self.values)

    @property
    def resident(self) -> int:
        """Bytes of all rows in memory."""
        return _resident(self.starts) + sum(map(_resident, self.values))

    def rows(self, start: int, stop: int) -> Ragged:
        """Return some rows in memory."""
        starts = self.starts[start : stop + 1]
        at = slice(int(starts[0]), int(starts[-1]))
        return Ragged(starts - starts[0], tuple(values[at] for values in self.values))

    def put(self, store: Put) -> Ragged:
        """Return the same, stored elsewhere."""
        starts, *values = (np.ascontiguousarray(array) for array in (self.starts, *self.values))
        return Ragged(store(starts), tuple(store(array) for array in values))


Field = Flat | Ragged


@dataclass(frozen=True)
class FieldTable:
    """An object with rows, as fields."""

    n_rows: int
    fields: tuple[Field, ...]
    # Makes the object from a number of rows and the fields of these rows.
    make: Callable[[int, Sequence[Any]], Any]

    @property
    def nbytes(self) -> int:
        """Bytes of all fields."""
        return sum(field.nbytes for field in self.fields)

    @property
    def resident(self) -> int:
        """Bytes of all fields in memory."""
        return sum(field.resident for field in self.fields)

    def rows(self, start: int, stop: int) -> Any:
        """Return an object of some rows."""
        return self.make(stop - start, [field.rows(start, stop) for field in self.fields])

    def put(self, store: Put) -> FieldTable:
        """Return the same, stored elsewhere."""
        return FieldTable(self.n_rows, tuple(field.put(store) for field in self.fields), self.make)


def table_of(X: Any) -> FieldTable | None:
    """Return the X of a partition as a table.

    X: 2-D array, sparse matrix, dataframe of numbers, or an object with a method ``table``.
    """
    if not is_frame(X) and hasattr(X, "table"):
        return X.table()
    if not hasattr(X, "shape"):
        return None
    if defect_of_structure(X) is not None:
        return None
    X = as_rows(X)
    if scipy.sparse.issparse(X):
        csr = Ragged(X.indptr, (X.data, X.indices))
        return FieldTable(X.shape[0], (csr,), partial(_csr, type(X), X.shape[1]))
    if is_frame(X):
        columns = [X.iloc[:, j].to_numpy() for j in range(X.shape[1])]
        if any(values.dtype.hasobject for values in columns):
            return None
        return FieldTable(len(X), tuple(map(Flat, columns)), partial(_frame, X.columns))
    return None if X.dtype.hasobject or not X.ndim else FieldTable(len(X), (Flat(X),), _only)


def table_of_targets(y: Any) -> FieldTable:
    """Return a partition's y or weights as a table; objects become codes of distinct values."""
    targets = as_targets(y)
    if not targets.dtype.hasobject or targets.ndim != 1:
        return FieldTable(len(targets), (Flat(targets),), _only)
    import pandas as pd

    codes, values = pd.factorize(targets, use_na_sentinel=False)
    return FieldTable(len(targets), (Flat(codes.astype(np.int32)),), partial(_picked, values))


def _resident(values: _Sliced) -> int:
    return values.nbytes if isinstance(values, np.ndarray) else 0


def _only(n_rows: int, fields: Sequence[Flat]) -> Any:
    return fields[0].values


def _picked(values: np.ndarray, n_rows: int, fields: Sequence[Any]) -> Any:
    return values[fields[0].values]


def _frame(names: Any, n_rows: int, fields: Sequence[Flat]) -> Any:
    import pandas as pd

    frame = pd.DataFrame(dict(enumerate(field.values for field in fields)), copy=False)
    frame.columns = names
    return frame


def _csr(kind: type, n_columns: int, n_rows: int, fields: Sequence[Any]) -> Any:
    data, indices = fields[0].values
    matrix = kind((n_rows, n_columns), dtype=data.dtype)
    # Set as attributes: SciPy's constructor would check all indices.
    matrix.data, matrix.indices, matrix.indptr = data, indices, fields[0].starts
    matrix.has_canonical_format = True
    return matrix
