"""The lazy split of Dask data into training and test rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn import model_selection
from sklearn.utils import check_random_state

from dps.data.collections.partitions import as_pandas, is_dask
from dps.data.collections.parts import Parts, one_graph, rows_of, take
from dps.data.collections.sealed import sealed
from dps.data.feed.batches import SPLITS, key_of, order_of

if TYPE_CHECKING:
    from dps._typing import RandomState, VectorLike

#: Number of rows that represents all, if their number is unknown.
_MANY = 1 << 20
_MAX_ROWS = 1 << 31


@dataclass(frozen=True)
class _Draw:
    """The assignment of a partition's rows to both sides."""

    seed: int | None  # None: the first rows are for training, the others for scoring
    total: int  # consecutive rows; `train` and `test` of them go to each side
    train: int
    test: int

    def counts(self, at: Any) -> tuple[Any, Any]:
        """Return the numbers of training and test rows among the first rows."""
        if self.seed is None:
            return np.minimum(at, self.train), np.clip(at - self.train, 0, self.test)
        tested = at * self.test // self.total
        return (at - tested) * self.train // max(1, self.total - self.test), tested

    def sides(self, number: int, first: int, rows: int, labels: Any) -> list[NDArray[np.int64]]:
        """Return a partition's training and test rows, in ascending order.

        first: number of rows in earlier partitions.
        labels: each has its share on both sides.
        """
        order = np.arange(rows)
        if self.seed is not None:
            order = order_of(rows, self.seed, number, SPLITS, labels)
        # As evenly as integers allow: the shares of partitions add up to that of all.
        taken = self.counts(first + np.arange(rows + 1))
        return [np.sort(order[np.diff(of_side) > 0]) for of_side in taken]


def train_test_split(
    *arrays: Any,
    test_size: float | int | None = None,
    train_size: float | int | None = None,
    random_state: RandomState = None,
    shuffle: bool = True,
    stratify: VectorLike | None = None,
) -> list[Any]:
    """Split Dask data lazily into training and test rows.

    Each partition gives a random share of its rows to both sides, in their order. Nothing is
    computed or moved, and both sides have as many partitions. The same rows of each array go to
    each side. Local data is split by scikit-learn.

    Parameters
    ----------
    *arrays : dask arrays, dataframes or series, or lists of Delayed objects or Futures
        Arrays with the same rows in each partition.
    test_size, train_size : float or int, optional
        Shares of all rows, or numbers of rows if lengths are known. By default a quarter are test
        rows.
    random_state : int, RandomState or None, default=None
        Seed of the shuffle.
    shuffle : bool, default=True
        False takes the first rows for training and the last ones for testing, if lengths are known.
    stratify : vector of Dask, optional
        Labels whose shares are kept on both sides, partition by partition.

    Returns
    -------
    list
        Both sides of each array, as in scikit-learn. If lengths are unknown, both sides have
        unknown lengths, and the sides of a dataframe no known divisions.

    Raises
    ------
    ValueError
        Arrays are not cut at the same rows, or sizes are no such numbers.

    Examples
    --------
    >>> import dask.array as da
    >>> from dps.model_selection import train_test_split
    >>> X = da.arange(20, chunks=5).reshape(20, 1)
    >>> X_train, X_test = train_test_split(X, test_size=0.3, random_state=0)
    >>> X_train.shape, X_test.shape
    ((14, 1), (6, 1))
    """
    stratify = as_pandas(stratify)
    if not any(map(is_dask, arrays)):
        return model_selection.train_test_split(
            *arrays, test_size=test_size, train_size=train_size, random_state=random_state,
            shuffle=shuffle, stratify=stratify,
        )  # fmt: skip
    *cut, stratify = one_graph(*arrays, stratify)
    parts = [_parts(values, number) for number, values in enumerate(cut)]
    every = parts if stratify is None else [*parts, _parts(stratify, "stratify")]
    lengths = _lengths_of(every)
    for number, others in enumerate(every):
        if len(others) != len(parts[0]):
            name = "stratify" if number == len(parts) else f"array {number}"
            raise ValueError(
                f"{name} has {len(others)} partitions, array 0 has {len(parts[0])}: they must be "
                "cut at the same rows"
            )
    if lengths is None and not (_is_share(test_size) and _is_share(train_size) and shuffle):
        raise ValueError(
            "numbers of rows, and shuffle=False, need partitions of known lengths: give shares, "
            "or call compute_chunk_sizes() of an array before"
        )
    total = _MANY if lengths is None else sum(lengths)
    train, test = model_selection._split._validate_shuffle_split(
        total, test_size, train_size, default_test_size=0.25
    )
    if not shuffle:
        if stratify is not None:
            raise ValueError("stratify needs shuffle=True")
        return _Sides(_Draw(None, total, train, test), lengths, [None] * len(parts[0])).of(parts)
    if total > _MAX_ROWS:  # products of two such numbers would not fit in 64 bits
        train, test, total = train * _MANY // total, test * _MANY // total, _MANY
    seed = int(check_random_state(random_state).randint(2**31 - 1))
    labels = [None] * len(parts[0]) if stratify is None else every[-1].tasks
    return _Sides(_Draw(seed, total, train, test), lengths, labels).of(parts)


def _is_share(size: Any) -> bool:
    return size is None or isinstance(size, float)


def _parts(values: Any, name: int | str) -> Parts:
    if not is_dask(values):
        name = name if isinstance(name, str) else f"array {name}"
        raise TypeError(
            f"{name} is of the type {type(values).__name__} beside data of Dask: give all of Dask"
        )
    return Parts(values)


def _lengths_of(arrays: Sequence[Parts]) -> list[int] | None:
    """Return the known lengths of partitions; None if no array has any.

    Raises ValueError: those of two arrays differ.
    """
    found: list[int] | None = None
    for number, parts in enumerate(arrays):
        if found is not None and parts.lengths not in (None, found):
            raise ValueError(
                f"array {number} has partitions of {parts.lengths} rows, one before it of {found}: "
                "rechunk them alike"
            )
        found = found or parts.lengths
    return found


class _Sides:
    """Makes both sides of arrays.

    labels: partitions of labels, or None for each.
    """

    def __init__(self, draw: _Draw, lengths: list[int] | None, labels: list[Any]) -> None:
        self._draw, self._lengths, self._labels = draw, lengths, labels
        n = len(labels)
        if lengths is None:  # small partitions must not all be rounded alike
            assert draw.seed is not None
            self._firsts = [key_of(draw.seed, 1, number, SPLITS) % _MANY for number in range(n)]
        else:
            self._firsts = [0, *np.cumsum(lengths).tolist()][:n]

    def of(self, arrays: Sequence[Parts]) -> list[Any]:
        """Return train and test of each array."""
        import dask

        pick = dask.delayed(sealed(_pick), pure=False)
        draw = dask.delayed(self._draw)
        return [
            parts.like(
                [pick(draw, side, number, first, part, labels) for number, (part, first, labels)
                 in enumerate(zip(parts.tasks, self._firsts, self._labels, strict=True))],
                self._lengths_of(side),
            )
            for parts in arrays
            for side in (0, 1)
        ]  # fmt: skip

    def _lengths_of(self, side: int) -> list[int] | None:
        if self._lengths is None:
            return None
        edges = zip(self._firsts, self._lengths, strict=True)
        count = self._draw.counts
        return [int(count(first + rows)[side] - count(first)[side]) for first, rows in edges]


def _pick(draw: _Draw, side: int, number: int, first: int, part: Any, labels: Any) -> Any:
    """Return one side of a partition; runs in a task."""
    return take(part, draw.sides(number, first, rows_of(part), labels)[side])
