"""Batches as models in Python have them: rows of one matrix, by themselves, and their targets.

Owns how rows that lie anywhere in blocks become arrays. It must not know what a model computes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from dps.models.base import CSRRows, DenseRows, Rows

__all__ = ["FORMS", "Batch", "Dense", "Either", "Sparse"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows with their targets and weights, as a model that a user has written gets them.

    Parameters
    ----------
    X : ndarray or csr_array of shape (rows, n_features), or mapping of str to columns
        As the model's `takes` says; not to be written.
    y : ndarray of shape (rows,) or (rows, n_outputs), or None
        Codes of classes from 0 up, as integers, or the numbers of a regression; None where raw
        outputs alone are asked for.
    weight : ndarray of shape (rows,) or None
        None is a weight of one for each row.
    rows : int

    Examples
    --------
    >>> Batch(np.zeros((2, 3)), np.zeros(2), None, 2).rows
    2
    """

    X: Any
    y: Any
    weight: Any
    rows: int

    def weighted(self, values: Any) -> Any:
        """Return one value or several a row, times the weights of the rows.

        Parameters
        ----------
        values : ndarray of shape (rows,) or (rows, k)

        Returns
        -------
        ndarray of the same shape

        Examples
        --------
        >>> Batch(np.zeros((2, 1)), None, np.array([1.0, 3.0]), 2).weighted(np.ones((2, 1)))
        array([[1.],
               [3.]])
        """
        if self.weight is None:
            return values
        return values * (self.weight if values.ndim == 1 else self.weight[:, None])


class Dense:
    """Rows as arrays."""

    @staticmethod
    def take(X: Rows) -> Any:
        """Return the rows in one array."""
        if isinstance(X, CSRRows):
            return Sparse.take(X).toarray()
        if X.order is not None:
            return X.values.take(X.order, axis=0)
        values = X.values.view()
        values.flags.writeable = False  # it may be what a user has given
        return values

    @staticmethod
    def join(parts: Sequence[Any]) -> Any:
        """Return one array of several."""
        return np.concatenate(parts)


class Sparse:
    """Rows in CSR form."""

    @staticmethod
    def take(X: Rows) -> Any:
        """Return the rows as a csr_array."""
        if isinstance(X, DenseRows):
            return scipy.sparse.csr_array(Dense.take(X))
        if X.order is None:
            first, last = X.indptr[0], X.indptr[-1]
            data, indices, indptr = X.data[first:last], X.indices[first:last], X.indptr - first
        else:
            starts = X.indptr[X.order]
            lengths = X.indptr[X.order + 1] - starts
            indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(X.indptr.dtype)
            at = np.arange(indptr[-1]) + np.repeat(starts - indptr[:-1], lengths)
            data, indices = X.data[at], X.indices[at]
        return scipy.sparse.csr_array((data, indices, indptr), (len(indptr) - 1, X.n_features))

    @staticmethod
    def join(parts: Sequence[Any]) -> Any:
        """Return one csr_array of several."""
        return scipy.sparse.vstack(parts, format="csr")


class Either:
    """Rows as they lie; those of some blocks may be sparse and others not."""

    @staticmethod
    def take(X: Rows) -> Any:
        """Return the rows in one array, or as a csr_array."""
        return Sparse.take(X) if isinstance(X, CSRRows) else Dense.take(X)

    @staticmethod
    def join(parts: Sequence[Any]) -> Any:
        """Return one of several."""
        dense = all(isinstance(part, np.ndarray) for part in parts)
        return Dense.join(parts) if dense else Sparse.join(parts)


#: How rows are taken together, by what a model's `takes` says.
FORMS: dict[str, Any] = {"dense": Dense, "sparse": Sparse, "columns": Either}
