"""Columns by name, from encoded rows: numbers, codes of categories, counts."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import scipy.sparse

from dps._checks import count


@dataclass(frozen=True, eq=False, slots=True)
class Padded:
    """Lists of different lengths as rows of an array."""

    values: Any  # array of shape (rows, longest), zeros after the end of a list
    lengths: Any  # array of shape (rows,)
    mask: Any  # bool array of shape (rows, longest), where there are values


@dataclass(frozen=True)
class Column:
    """The position of a column in a matrix.

    Examples
    --------
    >>> Column("city", "code", 3, 20).size
    21
    """

    name: str
    # {"number", "code", "counts", "sequence"} one column of numbers; a column per category with a
    # single 1; columns of counts; or stored values in order, from the first column on
    holds: Literal["number", "code", "counts", "sequence"]
    start: int
    width: int
    n_tokens: int = 0  # for sequences of strings the number of tokens, from 1 on; else 0

    def __post_init__(self) -> None:
        for name, least in (("start", 0), ("width", 1), ("n_tokens", 0)):
            count(getattr(self, name), name, least)

    @property
    def size(self) -> int:
        """Number of codes, including that of unknown categories or of no token; else 0."""
        if self.holds == "sequence":
            return self.n_tokens + 1 if self.n_tokens else 0
        return self.width + 1 if self.holds == "code" else 0


@dataclass(frozen=True)
class Columns:
    """The columns of a table.

    Examples
    --------
    >>> X = scipy.sparse.csr_array([[1.5, 0.0, 1.0], [0.0, 0.0, 0.0]])
    >>> columns = Columns((Column("size", "number", 0, 1), Column("kind", "code", 1, 2)))
    >>> columns(X)
    {'size': array([1.5, 0. ]), 'kind': array([1, 2])}
    >>> columns.sizes
    {'size': 0, 'kind': 3}
    """

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        starts = accumulate((column.width for column in self.columns), initial=0)
        for column, start in zip(self.columns, starts, strict=False):
            if column.start != start:
                raise ValueError(f"{column!r} is no column that begins at {start}")

    @property
    def width(self) -> int:
        """Columns of the matrix."""
        return sum(column.width for column in self.columns)

    @property
    def sizes(self) -> dict[str, int]:
        """Number of codes of each column; 0 for numbers."""
        return {column.name: column.size for column in self.columns}

    def __call__(self, X: Any) -> Mapping[str, Any]:
        """Return the columns by name.

        X: ndarray or csr_array of shape (rows, n).
        Returns dict of str to array, numbers (rows,), in the dtype of `X`; codes (rows,) as intp,
        those of unknown or missing categories one above all others; counts as csr_array (rows,
        width); sequences as `Padded`, of integers where tokens were strings.
        """
        if isinstance(X, np.ndarray):
            if all(column.holds == "number" for column in self.columns):
                return {column.name: X[:, column.start] for column in self.columns}
            X = scipy.sparse.csr_array(X)
        by_column, found = X.tocsc(), {}
        for column in self.columns:
            start, stop = column.start, column.start + column.width
            if column.holds == "counts":
                found[column.name] = X[:, start:stop]
                continue
            if column.holds == "sequence":
                found[column.name] = _padded(X, start, stop, column.n_tokens > 0)
                continue
            at = by_column.indptr[start : stop + 1]
            rows = by_column.indices[at[0] : at[-1]]
            if column.holds == "number":
                values = np.zeros(X.shape[0], X.dtype)
                values[rows] = by_column.data[at[0] : at[-1]]
            else:
                values = np.full(X.shape[0], column.width, np.intp)
                values[rows] = np.repeat(np.arange(column.width), np.diff(at))
            found[column.name] = values
        return found


def _padded(X: Any, start: int, stop: int, tokens: bool) -> Padded:
    inside = (X.indices >= start) & (X.indices < stop)
    rows = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))[inside]
    lengths = np.bincount(rows, minlength=X.shape[0])
    values = np.zeros((X.shape[0], max(1, lengths.max(initial=0))), np.intp if tokens else X.dtype)
    values[rows, X.indices[inside] - start] = X.data[inside]
    return Padded(values, lengths, np.arange(values.shape[1]) < lengths[:, None])
