"""Streams: partitions whose rows are made each time they are read.

A stream replaces X, y and weight of a partition. It gets rows from an origin (compact in memory, on
disk, or computed again) and applies the steps of training to them, such as encoding.
`open_partition` returns X, y and weight of whatever represents a partition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from dps.data.keep.tables import FieldTable, Put, table_of, table_of_targets

#: X, y and weight of a partition.
Values = tuple[Any, Any, Any]


class Origin(Protocol):
    """Where the rows of a stream come from."""

    @property
    def n_rows(self) -> int:
        """Rows of the partition."""

    @property
    def whole(self) -> bool:
        """True if any read computes all rows."""

    @property
    def known(self) -> bool:
        """True if rows can be read."""

    @property
    def nbytes(self) -> int:
        """Bytes of the partition as stored, or when it was computed."""

    @property
    def resident(self) -> int:
        """Bytes of it in memory."""

    def read(self, start: int, stop: int) -> Values:
        """Return X, y and weight of some rows."""

    def repeats(self, values: Values) -> bool:
        """True if all rows are equal when they are read again."""


@dataclass(frozen=True)
class KeptRows:
    """Compact rows, in memory or in a file."""

    X: FieldTable
    y: FieldTable
    weight: FieldTable | None
    whole: ClassVar[bool] = False
    known: ClassVar[bool] = True

    @property
    def n_rows(self) -> int:
        """Rows of the partition."""
        return self.X.n_rows

    @property
    def _tables(self) -> list[FieldTable]:
        return [self.X, self.y, *([] if self.weight is None else [self.weight])]

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return sum(table.nbytes for table in self._tables)

    @property
    def resident(self) -> int:
        """Bytes of it in memory."""
        return sum(table.resident for table in self._tables)

    def read(self, start: int, stop: int) -> Values:
        """Return X, y and weight of some rows."""
        weight = None if self.weight is None else self.weight.rows(start, stop)
        return self.X.rows(start, stop), self.y.rows(start, stop), weight

    def repeats(self, values: Values) -> bool:
        """True: the bytes are the same."""
        return True

    def put(self, store: Put) -> KeptRows:
        """Return the same, stored elsewhere."""
        weight = None if self.weight is None else self.weight.put(store)
        return KeptRows(self.X.put(store), self.y.put(store), weight)


def kept_of(X: Any, y: Any, weight: Any) -> KeptRows | None:
    """Return a partition as tables in memory; None if impossible, or if lengths differ."""
    table = table_of(X)
    if table is None:
        return None
    others = [table_of_targets(y), *([] if weight is None else [table_of_targets(weight)])]
    if any(other.n_rows != table.n_rows for other in others):
        return None
    return KeptRows(table, *others, *([None] if weight is None else []))


@dataclass(frozen=True)
class Stream:
    """A partition whose rows are made each time they are read."""

    number: int  # number of the partition
    origin: Origin
    # Functions that are applied to X one after the other: from X and the number to X.
    functions: tuple[Callable[[Any, int], Any], ...] = ()

    def __sizeof__(self) -> int:
        """Size for Dask, without bytes in files."""
        return 1000 + self.origin.resident

    @property
    def n_rows(self) -> int:
        """Rows of the partition."""
        return self.origin.n_rows

    def then(self, function: Callable[[Any, int], Any]) -> Stream:
        """Return the stream with another function that is applied to X.

        A method ``bind(table, number)`` of the function makes a table from the table of X that is
        smaller than the function's result.
        """
        if isinstance(self.origin, KeptRows) and not self.functions and hasattr(function, "bind"):
            bound = function.bind(self.origin.X, self.number)
            return replace(self, origin=replace(self.origin, X=bound))
        return replace(self, functions=(*self.functions, function))

    def read(self, start: int = 0, stop: int | None = None) -> Values:
        """Return X, y and weight of some rows, by default of all.

        Raises Exception: whatever reading or computing rows raises, with a note that names the
            partition.
        """
        return self.made(self.had(start, self.n_rows if stop is None else stop))

    def had(self, start: int, stop: int) -> Values:
        """Return rows as the origin has them."""
        try:
            return self.origin.read(start, stop)
        except Exception as error:
            error.add_note(f"partition {self.number} could not be read again")
            raise

    def made(self, values: Values) -> Values:
        """Apply the functions to rows of the origin."""
        X, y, weight = values
        for function in self.functions:
            X = function(X, self.number)
        return X, y, weight


def is_whole(X: Any, *_: Any) -> bool | None:
    """True if any read of a stream computes all rows; None if X is not a stream."""
    return X.origin.whole if isinstance(X, Stream) else None


def open_partition(X: Any, y: Any = None, weight: Any = None) -> Values:
    """Return X, y and weight of a partition; X may be a stream, or a tuple of all three."""
    if isinstance(X, Stream):
        return X.read()
    if isinstance(X, tuple):
        return X
    return X, y, weight
