"""The columns that occur in sparse rows, numbered anew.

A coefficient that starts at zero, of a column without a stored value, stays there: its gradient is
zero, and so are its steps and its penalty. Hashed text fills a part of its columns only; without
the others vectors are shorter, and the result is the same.
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

#: Rows that say more than this of a column, on average, are likely to have all columns.
_OFTEN = 32
#: Columns from which it pays to leave out some on the workers.
LONG = 1 << 20
#: Stored values up to which a second copy of their columns is little memory.
_MAX_VALUES = 1 << 24


@dataclass(frozen=True)
class OccurringColumns:
    """Some columns of a wider matrix.

    Examples
    --------
    Parameters of two outputs, with two intercepts behind the coefficients:

    >>> OccurringColumns(np.array([1]), 3).spread(np.array([1.0, 2.0, 8.0, 9.0]), 2, np.zeros(8))
    array([0., 0., 1., 2., 0., 0., 8., 9.])
    """

    numbers: NDArray[np.int64]  # (n,) in the wider matrix, ascending
    total: int  # how many that one has

    def of(self, X: Any) -> Any:
        """These columns of an array or a CSR matrix."""
        return X[:, self.numbers]

    def __call__(self, X: Any, number: int) -> Any:
        """These columns of a partition; the survey reports a partition that has others."""
        if not scipy.sparse.issparse(X) or X.shape[1] != self.total:
            return X
        if X.format == "csr" and not _are_inside(X):
            return type(X)((X.data, X.indices, X.indptr), shape=(X.shape[0], len(self.numbers)))
        return self.of(X)

    def spread(self, flat: Any, n_outputs: int, out: Any) -> Any:
        """Write what belongs to the columns to its places in vectors of the wider model.

        flat: (..., n * n_outputs + rest) array.
        out: (..., total * n_outputs + rest) array.
        """
        used, all_of_them = len(self.numbers) * n_outputs, self.total * n_outputs
        places = (self.numbers[:, None] * n_outputs + np.arange(n_outputs)).ravel()
        out[..., places] = flat[..., :used]
        out[..., all_of_them:] = flat[..., used:]
        return out


def occurring_among(looks: Sequence[tuple[int, Any]], total: int) -> OccurringColumns | None:
    """The columns that occur in partitions; None if it does not pay to leave out the others.

    looks: what `look_at_columns` found in each.
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
    """The number of stored values of a partition, and the bits of columns that occur in it.

    None stands for all columns.
    """
    if not X.shape[0]:  # of any columns and dtypes
        return 0, np.packbits(np.zeros(total, bool))
    if not scipy.sparse.issparse(X) or X.format != "csr" or X.shape[1] != total:
        return 0, None
    if not _are_inside(X):
        return 0, None
    occurs = np.zeros(total, bool)
    occurs[X.indices] = True
    return X.nnz, np.packbits(occurs)


def _are_inside(X: Any) -> bool:
    """True if the indices of a CSR matrix are columns of it."""
    indices = X.indices
    return not len(indices) or bool(indices.min() >= 0 and indices.max() < X.shape[1])


def occurring(X: Any) -> tuple[Any, OccurringColumns | None]:
    """A sparse matrix without the columns that have no stored value, where that is worth it.

    X: array, CSR matrix or dataframe.
    Returns None if `X` is as it was.
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
