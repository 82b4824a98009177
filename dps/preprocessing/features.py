"""What a column becomes: each class turns what was read of it into stored values of rows.

Owns the names and the number of the encoded columns. Knows no other column than its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dps._kernels.encode import RowEncoder
from dps.preprocessing.columns import (
    Bags,
    Codes,
    ColumnError,
    Nothing,
    Numbers,
    Read,
    kind_of_values,
)
from dps.preprocessing.hashing import buckets_of, hashes_of

__all__ = ["Bag", "Cross", "Feature", "Hashed", "Number", "OneHot"]


class Feature(Protocol):
    """One or more encoded columns."""

    @property
    def width(self) -> int:
        """How many."""
        ...

    def names(self) -> list[str]:
        """Their names."""
        ...

    def add(self, rows: RowEncoder, columns: dict[Any, Read], first: int) -> None:
        """Add the values of rows, in columns from `first` on."""
        ...


@dataclass(frozen=True)
class Number:
    """A number as it is.

    Parameters
    ----------
    name : object
    place : int
        Among the numbers of the frame.
    fill : float
        In place of a missing one.
    indicator : bool
        Whether a column behind it says that it was missing.
    """

    name: Any
    place: int
    fill: float
    indicator: bool

    @property
    def width(self) -> int:
        """How many columns."""
        return 1 + self.indicator

    def names(self) -> list[str]:
        """Names of the columns."""
        return [str(self.name), *_indicator(self.name, self.indicator)]

    def values(self, columns: dict[Any, Read], rows: int) -> NDArray[Any]:
        """The column's values."""
        column = columns[self.name]
        if isinstance(column, Nothing):
            return np.full(rows, np.nan)
        if not isinstance(column, Numbers):
            raise _changed(self.name, "numbers", _WORDS[type(column)])
        return column.values

    def add(self, rows: RowEncoder, columns: dict[Any, Read], first: int) -> None:
        """Add the values of rows."""
        rows.add_number(self.place, first, self.fill, self.indicator)


@dataclass(frozen=True)
class OneHot:
    """A column a category.

    Parameters
    ----------
    name : object
    categories : pandas.Index
    indicator : bool
        Whether a missing value is one more category.
    """

    name: Any
    categories: Any
    indicator: bool

    @property
    def width(self) -> int:
        """How many columns."""
        return len(self.categories) + self.indicator

    def names(self) -> list[str]:
        """Names of the columns."""
        known = [f"{self.name}_{category}" for category in self.categories]
        return known + [f"{self.name}_nan"] * self.indicator

    def add(self, rows: RowEncoder, columns: dict[Any, Read], first: int) -> None:
        """Add the values of rows."""
        column = _codes(columns[self.name], self.name, rows.n_rows)
        missing = first + len(self.categories) if self.indicator else -1

        def table(values: Any) -> NDArray[np.int32]:
            return _table(self._places(values), first, missing)

        rows.add_codes(column.codes, column.of_values((OneHot, first), table))

    def _places(self, values: Any) -> NDArray[Any]:
        """The category that each value is."""
        if values is self.categories or values.equals(self.categories):
            return np.arange(len(self.categories))
        before, now = kind_of_values(self.categories), kind_of_values(values)
        if before != now and len(values):
            raise _changed(self.name, before, now)
        places: NDArray[Any] = self.categories.get_indexer(values)
        return places


@dataclass(frozen=True)
class _InBuckets:
    """A column whose values fall in buckets."""

    name: Any
    n_buckets: int
    indicator: bool

    @property
    def width(self) -> int:
        """How many columns."""
        return self.n_buckets + self.indicator

    def names(self) -> list[str]:
        """Names of the columns."""
        return _buckets(str(self.name), self.n_buckets) + _indicator(self.name, self.indicator)

    def _table(self, first: int) -> Callable[[Any], NDArray[np.int32]]:
        """From values to the column of each."""
        missing = first + self.n_buckets if self.indicator else -1
        return lambda values: _table(buckets_of(values, self.n_buckets), first, missing)


@dataclass(frozen=True)
class Hashed(_InBuckets):
    """Categories in buckets."""

    def add(self, rows: RowEncoder, columns: dict[Any, Read], first: int) -> None:
        """Add the values of rows."""
        column = _codes(columns[self.name], self.name, rows.n_rows)
        rows.add_codes(column.codes, column.of_values((Hashed, first), self._table(first)))


@dataclass(frozen=True)
class Bag(_InBuckets):
    """The tokens of a list, counted in buckets."""

    def add(self, rows: RowEncoder, columns: dict[Any, Read], first: int) -> None:
        """Add the values of rows."""
        column = columns[self.name]
        if isinstance(column, Nothing):
            missing = first + self.n_buckets if self.indicator else -1
            rows.add_codes(np.full(rows.n_rows, -1, np.int8), np.array([missing], np.int32))
            return
        if not isinstance(column, Bags):
            raise _changed(self.name, "lists", _WORDS[type(column)])
        table = column.of_values((Bag, first), self._table(first))
        rows.add_bags(column.starts, column.codes, table)


@dataclass(frozen=True)
class Cross:
    """Combinations of the categories of several columns, in buckets; none where one is missing."""

    members: tuple[Any, ...]
    n_buckets: int

    @property
    def width(self) -> int:
        """How many columns."""
        return self.n_buckets

    def names(self) -> list[str]:
        """Names of the columns."""
        return _buckets(":".join(map(str, self.members)), self.n_buckets)

    def add(self, rows: RowEncoder, columns: dict[Any, Read], first: int) -> None:
        """Add the values of rows."""
        read = [_codes(columns[name], name, rows.n_rows) for name in self.members]
        hashes = [column.of_values(Cross, hashes_of) for column in read]
        rows.add_cross([column.codes for column in read], hashes, first, self.n_buckets)


def _codes(column: Read, name: Any, rows: int) -> Codes:
    import pandas as pd

    if isinstance(column, Nothing):
        return Codes(np.full(rows, -1, np.int8), pd.Index([], dtype=object), False, rows)
    if isinstance(column, Numbers):  # the values of categories, before astype("category")
        codes, values = pd.factorize(column.values)
        return Codes(codes.astype(np.int32), pd.Index(values), False, column.missing)
    if isinstance(column, Bags):
        raise _changed(name, "categories", "lists")
    return column


def _table(places: NDArray[Any], first: int, missing: int) -> NDArray[np.int32]:
    """The column of each code from -1 on; negative places have none."""
    table = np.empty(len(places) + 1, np.int32)
    table[0] = missing
    table[1:] = np.where(places < 0, -1, places + first)
    return table


_WORDS = {Numbers: "numbers", Codes: "categories or strings", Bags: "lists"}


def _changed(name: Any, before: str, now: str) -> ColumnError:
    return ColumnError(
        f"column {str(name)!r} of X{{place}} holds {now}, and held {before} when the "
        "encoder was fitted: convert it"
    )


def _buckets(name: str, n: int) -> list[str]:
    return [f"{name}#{bucket}" for bucket in range(n)]


def _indicator(name: Any, wanted: bool) -> list[str]:
    return [f"missingindicator_{name}"] if wanted else []
