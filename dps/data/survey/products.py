"""Products of the columns of X and y, summed over rows, for least squares.

Columns are scaled so that no sum exceeds one, and sums are integers in units of 2**-55. Integers
add up to the same value in any order, so the result depends neither on the workers that hold the
partitions nor on the threads that read them.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps._cores import one_thread_each
from dps.data.feed.blocks import features_of
from dps.data.feed.targets import as_targets
from dps.errors import ClusterError

#: One as an integer; and the bound of a sum, which exceeds one by rounding only.
_ONE, _MOST = 2.0**55, 2.0
#: Values that a thread multiplies at a time; parts of a partition, and the least rows of a part.
_TOGETHER, _PARTS, _FEWEST = 1 << 17, 8, 256
#: Products of two values for which a thread pays.
_WORTH = 1 << 21


@dataclass(frozen=True)
class Columns:
    """The columns of X, followed by the columns of y, as products use them.

    centre: (m,) array that is subtracted from the columns.
    unit: (m,) array, root mean squares of the centred columns; infinite for a column to leave out.
    width: columns of X.
    weight: sum of the weights of all rows.
    """

    centre: NDArray[np.float64]
    unit: NDArray[np.float64]
    width: int
    weight: float


def products_of(
    X: Any, y: Any, weight: Any, *, columns: Columns, threads: int = 1
) -> NDArray[np.int64]:
    """Sum products over the rows of a partition.

    X: array or dataframe of numbers, see `as_rows`.
    threads: largest number of threads.
    Returns (m + 1, m + 1) array; its last column has the sums of the other columns, and the weight.

    Examples
    --------
    >>> columns = Columns(np.array([2.0, 5.0]), np.array([1.0, 4.0]), width=1, weight=2.0)
    >>> products, sums = mean_products(
    ...     products_of(np.array([[1.0], [3.0]]), [1.0, 9.0], None, columns=columns)
    ... )
    >>> products, sums
    (array([[1., 1.],
           [1., 1.]]), array([0., 0.]))
    """
    (rows, _), width, size = X.shape, columns.width, len(columns.centre) + 1
    if not rows:  # an empty partition may have any columns
        return np.zeros((size, size), np.int64)
    targets = as_targets(y).reshape(rows, size - 1 - width)
    roots, unit = None, np.append(columns.unit, 1.0)
    if weight is None:
        unit *= columns.weight**0.5
    else:
        roots = np.sqrt(as_targets(weight).astype(np.float64) / columns.weight)
    together = max(_FEWEST, min(_TOGETHER // size, -(-rows // _PARTS)))
    threads = max(1, min(threads, rows // together, rows * size**2 // _WORTH))

    def summed(first: int) -> NDArray[np.int64]:
        features, room = features_of(X, np.float64), np.ones((min(rows, together), size))
        total, in_units = np.zeros((size, size), np.int64), _ONE / np.outer(unit, unit)
        for start in range(first * together, rows, threads * together):
            stop = min(rows, start + together)
            some, values = room[: stop - start], features.rows(start, stop, None).values  # type: ignore[union-attr]
            np.subtract(values, columns.centre[:width], out=some[:, :width])
            np.subtract(targets[start:stop], columns.centre[width:], out=some[:, width:-1])
            if roots is not None:
                some[:, -1] = 1.0
                some *= roots[start:stop, None]
            found = some.T @ some
            found *= in_units
            if not np.abs(found).max() < _MOST * _ONE:
                raise ClusterError(
                    "a partition has other rows than it had before: is it computed each time, from "
                    "a source that changes? Persist it"
                )
            total += np.rint(found, out=found).astype(np.int64)
        return total

    with one_thread_each():
        if threads == 1:
            return summed(0)
        with ThreadPoolExecutor(threads) as pool:
            return sum(pool.map(summed, range(threads)), np.zeros((size, size), np.int64))


def mean_products(
    sums: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean products of the columns, (m, m), and their means, (m,), from sums."""
    found = sums / float(sums[-1, -1])
    return found[:-1, :-1], found[:-1, -1]


def share_of(sums: NDArray[np.int64]) -> float:
    """Return the share of all weights that belongs to the rows of a sum."""
    return float(sums[-1, -1]) / _ONE
