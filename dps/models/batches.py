"""Batches for models in Python: rows of one matrix with their targets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from dps.models.base import CSRRows, Rows


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows with their targets and weights, as a user's model receives them.

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
        """Multiply one value or several per row by the weights of the rows.

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
        return X.matrix().toarray() if isinstance(X, CSRRows) else X.matrix()

    @staticmethod
    def join(parts: Sequence[Any]) -> Any:
        """Join several arrays."""
        return np.concatenate(parts)


class Sparse:
    """Rows in CSR form."""

    @staticmethod
    def take(X: Rows) -> Any:
        """Return the rows as a csr_array."""
        return X.matrix() if isinstance(X, CSRRows) else scipy.sparse.csr_array(X.matrix())

    @staticmethod
    def join(parts: Sequence[Any]) -> Any:
        """Join several csr_arrays."""
        return scipy.sparse.vstack(parts, format="csr")


class Either:
    """Rows as they are: sparse in some blocks, dense in others."""

    @staticmethod
    def take(X: Rows) -> Any:
        """Return the rows as an array or as a csr_array."""
        return X.matrix()

    @staticmethod
    def join(parts: Sequence[Any]) -> Any:
        """Join several of these."""
        dense = all(isinstance(part, np.ndarray) for part in parts)
        return Dense.join(parts) if dense else Sparse.join(parts)


#: How rows are combined, by a model's `takes`.
FORMS: dict[str, Any] = {"dense": Dense, "sparse": Sparse, "columns": Either}
