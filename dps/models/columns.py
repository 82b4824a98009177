"""Columns by name, out of the rows that stand for them: numbers, codes of categories, counts.

It must not know dataframes or encoders: who does says where each column lies.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.sparse

__all__ = ["Column", "Columns"]


@dataclass(frozen=True)
class Column:
    """Where a column lies among those of a matrix.

    Parameters
    ----------
    name : str
    holds : {"number", "code", "counts"}
        One column of numbers; a column a category, of which one is 1; or columns of counts.
    start, width : int

    Examples
    --------
    >>> Column("city", "code", 3, 20).size
    21
    """

    name: str
    holds: Literal["number", "code", "counts"]
    start: int
    width: int

    @property
    def size(self) -> int:
        """How many codes there are, the one of unknown categories included; 0 for numbers."""
        return self.width + 1 if self.holds == "code" else 0


@dataclass(frozen=True)
class Columns:
    """The columns of a table.

    Parameters
    ----------
    columns : tuple of Column

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

    @property
    def sizes(self) -> dict[str, int]:
        """How many codes each column may have; 0 for numbers."""
        return {column.name: column.size for column in self.columns}

    def __call__(self, X: Any) -> Mapping[str, Any]:
        """Return the columns by name.

        Parameters
        ----------
        X : ndarray or csr_array of shape (rows, n)

        Returns
        -------
        dict of str to array
            Numbers (rows,), in the dtype of `X`; codes (rows,) as intp, those of unknown or missing
            categories one above all others; counts as csr_array (rows, width).
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
