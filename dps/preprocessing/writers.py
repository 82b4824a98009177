"""Writers of the encoded values of a partition's rows, slice by slice.

A writer holds what was derived from the distinct values of a column, such as the encoded column of
each code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dps._kernels.encode import RowEncoder
from dps.preprocessing.columns import CategoryColumn, NumericColumn, Read


class Writer(Protocol):
    """Writes the encoded values of a partition's rows."""

    def add(self, rows: RowEncoder, columns: dict[Any, Read]) -> None:
        """Add the values of some rows."""


class WithWriter(Protocol):
    """A feature that makes a writer."""

    def writer(self, columns: dict[Any, Read], first: int) -> Writer:
        """Return a writer of a partition's values, in columns from `first` on."""


@dataclass(frozen=True)
class NumberWriter:
    """Numbers: the frame's number `place`, in column `first`."""

    place: int
    first: int
    fill: float
    indicator: bool

    def add(self, rows: RowEncoder, columns: dict[Any, Read]) -> None:
        """Add the values of some rows."""
        rows.add_number(self.place, self.first, self.fill, self.indicator)


@dataclass(frozen=True)
class CodesWriter:
    """Categories: a one in the column of their code."""

    name: object
    table: NDArray[np.int32]

    def add(self, rows: RowEncoder, columns: dict[Any, Read]) -> None:
        """Add the values of some rows."""
        column: Any = columns[self.name]
        rows.add_codes(column.codes, self.table)


@dataclass(frozen=True)
class TokensWriter:
    """Lists: the counts of their tokens."""

    name: object
    table: NDArray[np.int32]

    def add(self, rows: RowEncoder, columns: dict[Any, Read]) -> None:
        """Add the values of some rows."""
        column: Any = columns[self.name]
        rows.add_bags(column.starts, column.codes, self.table)


@dataclass(frozen=True)
class SequenceWriter:
    """Lists in order: the values of their tokens, in columns from `first` on."""

    name: object
    values: NDArray[np.float64]
    first: int
    most: int

    def add(self, rows: RowEncoder, columns: dict[Any, Read]) -> None:
        """Add the values of some rows."""
        column: Any = columns[self.name]
        rows.add_sequence(column.starts, column.codes, self.values, self.first, self.most)


@dataclass(frozen=True)
class MissingWriter:
    """A column without values: a one in the column of missing values, if there is one."""

    column: int

    def add(self, rows: RowEncoder, columns: dict[Any, Read]) -> None:
        """Add the values of some rows."""
        rows.add_codes(np.full(rows.n_rows, -1, np.int8), np.array([self.column], np.int32))


@dataclass(frozen=True)
class CrossWriter:
    """Combinations of categories: a one in their bucket."""

    names: tuple[Any, ...]
    hashes: Sequence[NDArray[np.uint64]]
    first: int
    n_buckets: int

    def add(self, rows: RowEncoder, columns: dict[Any, Read]) -> None:
        """Add the values of some rows."""
        read: list[Any] = [columns[name] for name in self.names]
        rows.add_cross([column.codes for column in read], self.hashes, self.first, self.n_buckets)


@dataclass(frozen=True)
class SeveralWriter:
    """Several writers, one after the other."""

    writers: tuple[Writer, ...]

    def add(self, rows: RowEncoder, columns: dict[Any, Read]) -> None:
        """Add the values of some rows."""
        for writer in self.writers:
            writer.add(rows, columns)


@dataclass(frozen=True)
class LookupWriter:
    """Categories without codes: the distinct values of rows are looked up."""

    feature: WithWriter
    names: tuple[Any, ...]
    first: int

    def add(self, rows: RowEncoder, columns: dict[Any, Read]) -> None:
        """Add the values of some rows."""
        coded: dict[Any, Read] = {name: _codes(columns[name], rows.n_rows) for name in self.names}
        self.feature.writer(coded, self.first).add(rows, coded)


def table_of_codes(places: np.ndarray, first: int, missing: int) -> NDArray[np.int32]:
    """Return the column of each code from -1 on; negative values mean none."""
    table = np.empty(len(places) + 1, np.int32)
    table[0] = missing
    table[1:] = np.where(places < 0, -1, places + first)
    return table


def _codes(column: Read, rows: int) -> CategoryColumn:
    import pandas as pd

    if isinstance(column, CategoryColumn):
        return column
    if isinstance(column, NumericColumn):  # the values of categories before astype("category")
        codes, values = pd.factorize(column.values if column.exact is None else column.exact)
        if column.exact is not None:
            codes = np.where(np.isnan(column.values), -1, codes)
        return CategoryColumn(codes.astype(np.int32), pd.Index(values), False, column.missing)
    return CategoryColumn(np.full(rows, -1, np.int8), pd.Index([], dtype=object), False, rows)
