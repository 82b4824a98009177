"""Writers of the values of a partition's rows, in any number of slices.

A writer holds what was worked out of the distinct values of a partition's column: the encoded
column of each code, say. It knows nothing of the values themselves.
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
    """Writes the values of rows of one partition."""

    def add(self, rows: RowEncoder, columns: dict[Any, Read]) -> None:
        """Add the values of rows."""


class WithWriter(Protocol):
    """A feature, as far as it is known here."""

    def writer(self, columns: dict[Any, Read], first: int) -> Writer:
        """A writer of a partition's values in columns from `first` on."""


@dataclass(frozen=True)
class NumberWriter:
    """Numbers as they are: the `place`-th of the frame's, in column `first`."""

    place: int
    first: int
    fill: float
    indicator: bool

    def add(self, rows: RowEncoder, columns: dict[Any, Read]) -> None:
        """Add the values of rows."""
        rows.add_number(self.place, self.first, self.fill, self.indicator)


@dataclass(frozen=True)
class CodesWriter:
    """Categories: a one in the column of their code."""

    name: object
    table: NDArray[np.int32]

    def add(self, rows: RowEncoder, columns: dict[Any, Read]) -> None:
        """Add the values of rows."""
        column: Any = columns[self.name]
        rows.add_codes(column.codes, self.table)


@dataclass(frozen=True)
class TokensWriter:
    """Lists: the counts of their tokens."""

    name: object
    table: NDArray[np.int32]

    def add(self, rows: RowEncoder, columns: dict[Any, Read]) -> None:
        """Add the values of rows."""
        column: Any = columns[self.name]
        rows.add_bags(column.starts, column.codes, self.table)


@dataclass(frozen=True)
class SequenceWriter:
    """Lists in their order: the values of their tokens, in columns from `first` on."""

    name: object
    values: NDArray[np.float64]
    first: int
    most: int

    def add(self, rows: RowEncoder, columns: dict[Any, Read]) -> None:
        """Add the values of rows."""
        column: Any = columns[self.name]
        rows.add_sequence(column.starts, column.codes, self.values, self.first, self.most)


@dataclass(frozen=True)
class MissingWriter:
    """A column without any value: a one in the column of missing ones, if there is one."""

    column: int

    def add(self, rows: RowEncoder, columns: dict[Any, Read]) -> None:
        """Add the values of rows."""
        rows.add_codes(np.full(rows.n_rows, -1, np.int8), np.array([self.column], np.int32))


@dataclass(frozen=True)
class CrossWriter:
    """Combinations of categories: a one in their bucket."""

    names: tuple[Any, ...]
    hashes: Sequence[NDArray[np.uint64]]
    first: int
    n_buckets: int

    def add(self, rows: RowEncoder, columns: dict[Any, Read]) -> None:
        """Add the values of rows."""
        read: list[Any] = [columns[name] for name in self.names]
        rows.add_cross([column.codes for column in read], self.hashes, self.first, self.n_buckets)


@dataclass(frozen=True)
class SeveralWriter:
    """Several writers, one after the other."""

    writers: tuple[Writer, ...]

    def add(self, rows: RowEncoder, columns: dict[Any, Read]) -> None:
        """Add the values of rows."""
        for writer in self.writers:
            writer.add(rows, columns)


@dataclass(frozen=True)
class LookupWriter:
    """Categories of columns that have no codes: rows are looked at for their distinct values."""

    feature: WithWriter
    names: tuple[Any, ...]
    first: int

    def add(self, rows: RowEncoder, columns: dict[Any, Read]) -> None:
        """Add the values of rows."""
        coded: dict[Any, Read] = {name: _codes(columns[name], rows.n_rows) for name in self.names}
        self.feature.writer(coded, self.first).add(rows, coded)


def table_of_codes(places: np.ndarray, first: int, missing: int) -> NDArray[np.int32]:
    """The column of each code from -1 on; negative places have none."""
    table = np.empty(len(places) + 1, np.int32)
    table[0] = missing
    table[1:] = np.where(places < 0, -1, places + first)
    return table


def _codes(column: Read, rows: int) -> CategoryColumn:
    import pandas as pd

    if isinstance(column, CategoryColumn):
        return column
    if isinstance(column, NumericColumn):  # the values of categories, before astype("category")
        codes, values = pd.factorize(column.values if column.exact is None else column.exact)
        if column.exact is not None:
            codes = np.where(np.isnan(column.values), -1, codes)
        return CategoryColumn(codes.astype(np.int32), pd.Index(values), False, column.missing)
    return CategoryColumn(np.full(rows, -1, np.int8), pd.Index([], dtype=object), False, rows)
