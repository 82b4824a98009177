"""Sparse rows without the columns that no row has.

A coefficient that starts at zero stays there if its column has no stored value: its gradient is
zero, and so are its steps and its penalty. Hashed text uses only a part of its columns. Without the
others, vectors are shorter and the result is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from dps._kernels.columns import renumber
from dps.data.survey.rows import WIDE

#: With more rows per column on average, a matrix is likely to use all columns.
_OFTEN = 32
#: Number of columns from which workers leave out unused ones.
LONG = 1 << 20
#: Largest number of stored values whose column indices may be copied.
_MAX_VALUES = 1 << 24


@dataclass(frozen=True)
class OccurringColumns:
    """A selection of the columns of a matrix.

    Examples
    --------
    Parameters of two outputs, with two intercepts behind the coefficients:

    >>> OccurringColumns(np.array([1]), 3).spread(np.array([1.0, 2.0, 8.0, 9.0]), 2, np.zeros(8))
    array([0., 0., 1., 2., 0., 0., 8., 9.])
    """

    numbers: NDArray[np.int64]  # (n,) numbers of the columns in the matrix, ascending
    total: int  # number of columns of the matrix

    def of(self, X: Any) -> Any:
        """Select the columns of an array or a CSR matrix."""
        return X[:, self.numbers]

    def __call__(self, X: Any, number: int) -> Any:
        """Select the columns of a partition; the survey reports partitions with other columns."""
        if not scipy.sparse.issparse(X) or X.shape[1] != self.total:
            return X
        if X.format == "csr" and not _are_inside(X):
            return type(X)((X.data, X.indices, X.indptr), shape=(X.shape[0], len(self.numbers)))
        return self.of(X)

    def spread(self, flat: Any, n_outputs: int, out: Any) -> Any:
        """Write coefficients of the selected columns to their places in full vectors.

        flat: (..., n * n_outputs + rest) array.
        out: (..., total * n_outputs + rest) array.
        """
        used, all_of_them = len(self.numbers) * n_outputs, self.total * n_outputs
        places = (self.numbers[:, None] * n_outputs + np.arange(n_outputs)).ravel()
        out[..., places] = flat[..., :used]
        out[..., all_of_them:] = flat[..., used:]
        return out


def occurring_among(looks: Sequence[tuple[int, Any]], total: int) -> OccurringColumns | None:
    """Return the columns that occur in partitions, or None if a selection does not pay.

    looks: results of `look_at_columns` for each partition.
    """
    stored = sum(n for n, _ in looks)
    if stored > _OFTEN * total or any(mask is None for _, mask in looks):
        return None
    occurs = np.bitwise_or.reduce([mask for _, mask in looks])
    numbers = np.flatnonzero(np.unpackbits(occurs, count=total))
    if not 0 < len(numbers) <= total // 2:
        return None
    return OccurringColumns(numbers, total)


def look_at_columns(
    X: Any, y: Any = None, weight: Any = None, *, total: int
) -> tuple[int, NDArray[np.uint8] | None]:
    """Return the number of stored values of a partition, and a bit per column that occurs.

    None stands for all columns.
    """
    if not X.shape[0]:  # an empty partition may have any columns
        return 0, np.packbits(np.zeros(total, bool))
    if not scipy.sparse.issparse(X) or X.format != "csr" or X.shape[1] != total:
        return 0, None
    if not _are_inside(X):
        return 0, None
    occurs = np.zeros(total, bool)
    occurs[X.indices] = True
    return X.nnz, np.packbits(occurs)


def _are_inside(X: Any) -> bool:
    """True if the indices of a CSR matrix are within its columns."""
    indices = X.indices
    return not len(indices) or bool(indices.min() >= 0 and indices.max() < X.shape[1])


def occurring(X: Any) -> tuple[Any, OccurringColumns | None]:
    """Return a sparse matrix without unused columns, and the columns that it has, if that pays.

    X: array, CSR matrix or dataframe.
    Returns `X` itself and None otherwise.
    """
    if not scipy.sparse.issparse(X) or X.format != "csr":
        return X, None
    total = X.shape[1]
    if total < WIDE or X.nnz > min(_MAX_VALUES, _OFTEN * total):
        return X, None
    numbers, indices = renumber(np.require(X.indices, requirements=["C", "A"]), total)
    if not len(numbers):
        return X, None
    shape = (X.shape[0], len(numbers))
    return type(X)((X.data, indices, X.indptr), shape=shape), OccurringColumns(numbers, total)
