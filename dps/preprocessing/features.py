"""Features: the encoded columns for one column, and the writers of their values.

A feature defines names and number of its encoded columns. It maps the distinct values of a
partition once, for a writer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from dps.data.hashing import buckets_of, hashes_of, salt_of
from dps.preprocessing.columns import (
    CategoryColumn,
    ColumnError,
    EmptyColumn,
    ListColumn,
    NumericColumn,
    Read,
    kind_of_values,
    logarithms_of,
)
from dps.preprocessing.frame_reader import numbers_in
from dps.preprocessing.writers import (
    CodesWriter,
    CrossWriter,
    LookupWriter,
    MissingWriter,
    NumberWriter,
    SequenceWriter,
    SeveralWriter,
    TokensWriter,
    Writer,
    table_of_codes,
)

Unknown = Literal["ignore", "error", "infrequent_if_exist"]
_MOST_BUCKETS = 1 << 30


class Feature(Protocol):
    """One or more encoded columns."""

    @property
    def width(self) -> int:
        """Number of columns."""

    def names(self) -> list[str]:
        """Names of the columns."""

    def writer(self, columns: dict[Any, Read], first: int) -> Writer:
        """Return a writer of a partition's values, in columns from `first` on.

        Raises ColumnError: the column has another kind than the one that the encoder was fitted to.
        """
        ...


@dataclass(frozen=True)
class Number:
    """A number."""

    name: object
    place: int  # its position among the numbers of the frame
    fill: float  # replaces a missing number
    indicator: bool  # whether a column after it marks missing numbers
    logarithm: bool = False  # whether its logarithm is used

    def __post_init__(self) -> None:
        if not np.isfinite(self.fill):
            raise ValueError(f"fill is {self.fill!r}, which is no finite number")

    @property
    def width(self) -> int:
        """Number of columns."""
        return 1 + self.indicator

    def names(self) -> list[str]:
        """Names of the columns."""
        own = f"log_{self.name}" if self.logarithm else str(self.name)
        return [own, *_indicator(self.name, self.indicator)]

    def values(self, columns: dict[Any, Read], rows: int) -> np.ndarray:
        """Return the column's values."""
        column = columns[self.name]
        if isinstance(column, EmptyColumn):
            return np.full(rows, np.nan)
        if not isinstance(column, NumericColumn):
            raise _changed(self.name, "numbers", _WORDS[type(column)])
        return logarithms_of(column.values) if self.logarithm else column.values

    def writer(self, columns: dict[Any, Read], first: int) -> Writer:
        """Return a writer of a partition's values."""
        return NumberWriter(self.place, first, self.fill, self.indicator)


@dataclass(frozen=True)
class OneHot:
    """One column per category."""

    name: object
    categories: Any
    indicator: bool  # whether missing values are a further category
    # Categories that share the last column; an empty list if all unknown ones do.
    infrequent: Any = None
    unknown: Unknown = "ignore"  # how others are encoded

    @property
    def width(self) -> int:
        """Number of columns."""
        return len(self.categories) + (self.infrequent is not None) + self.indicator

    @property
    def labels(self) -> list[Any]:
        """The category of each column."""
        shared = [] if self.infrequent is None else ["infrequent"]
        return [*self.categories, *shared, *[np.nan] * self.indicator]

    def names(self) -> list[str]:
        """Names of the columns."""
        return [f"{self.name}_{label}" for label in self.labels]

    def writer(self, columns: dict[Any, Read], first: int) -> Writer:
        """Return a writer of a partition's values."""
        return _writer(self, columns, first, first + self.width - 1 if self.indicator else -1)

    def places(self, values: Any) -> np.ndarray:
        """Return the category of each value."""
        if values is self.categories or values.equals(self.categories):
            return np.arange(len(self.categories))
        before, now = kind_of_values(self.categories), kind_of_values(values)
        if before != now and len(values):
            raise _changed(self.name, before, now)
        places: np.ndarray = self.categories.get_indexer(values)
        if self.infrequent is not None:
            shared = np.flatnonzero(places < 0)
            if self.unknown != "infrequent_if_exist":
                shared = shared[self.infrequent.get_indexer(values[shared]) >= 0]
            places = places.copy()
            places[shared] = len(self.categories)
        return places

    def check(self, column: CategoryColumn, places: np.ndarray) -> None:
        """Raise if a row has an unknown category, if that is an error."""
        if self.unknown != "error":
            return
        unknown = places < 0
        if column.given:  # a category dtype may have values that no row has
            codes = np.empty(0, np.int8) if column.codes is None else column.codes
            unknown &= np.bincount(codes[codes >= 0], minlength=len(places)) > 0
        if unknown.any():
            value = column.values[int(np.flatnonzero(unknown)[0])]
            raise ColumnError(
                f"column {str(self.name)!r} of X{{place}} holds {value!r}, which it did not when "
                "the encoder was fitted: use handle_unknown='ignore' or 'infrequent_if_exist'"
            )


@dataclass(frozen=True)
class _InBuckets:
    """A column whose values are hashed to buckets."""

    name: object
    n_buckets: int
    indicator: bool

    def __post_init__(self) -> None:
        _check_buckets(self.n_buckets, 1)

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.n_buckets + self.indicator

    def names(self) -> list[str]:
        """Names of the columns."""
        return _buckets(str(self.name), self.n_buckets) + _indicator(self.name, self.indicator)

    def _missing(self, first: int) -> int:
        """Return the column of missing values, if there is one."""
        return first + self.n_buckets if self.indicator else -1

    def places(self, values: Any) -> np.ndarray:
        """Return the bucket of each value."""
        return buckets_of(values, self.n_buckets)


@dataclass(frozen=True)
class Hashed(_InBuckets):
    """Categories in buckets."""

    def writer(self, columns: dict[Any, Read], first: int) -> Writer:
        """Return a writer of a partition's values."""
        return _writer(self, columns, first, self._missing(first))


@dataclass(frozen=True)
class Bag(_InBuckets):
    """The tokens of a list, counted in buckets."""

    def writer(self, columns: dict[Any, Read], first: int) -> Writer:
        """Return a writer of a partition's values."""
        column, missing = columns[self.name], self._missing(first)
        if isinstance(column, EmptyColumn):
            return MissingWriter(missing)
        if not isinstance(column, ListColumn):
            raise _changed(self.name, "lists", _WORDS[type(column)])
        table = table_of_codes(self.places(column.values), first, missing)
        return TokensWriter(self.name, table)


@dataclass(frozen=True)
class TokenSequence:
    """The tokens of a list in order, side by side; none if the list is missing."""

    name: object
    most: int  # largest number of tokens per row, from the first one on
    # Buckets of strings, numbered from 1; 0: tokens are numbers.
    n_buckets: int

    def __post_init__(self) -> None:
        _check_buckets(self.most, 1)
        _check_buckets(self.n_buckets, 0)

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.most

    def names(self) -> list[str]:
        """Names of the columns."""
        return [f"{self.name}[{place}]" for place in range(self.most)]

    def writer(self, columns: dict[Any, Read], first: int) -> Writer:
        """Return a writer of a partition's values."""
        column = columns[self.name]
        if isinstance(column, EmptyColumn):
            return MissingWriter(-1)
        before = "lists" if self.n_buckets else "lists of numbers"
        if not isinstance(column, ListColumn):
            raise _changed(self.name, before, _WORDS[type(column)])
        numbers = numbers_in(column.values)
        if self.n_buckets and numbers is not None and len(numbers):
            raise _changed(self.name, "lists of strings", "lists of numbers")
        if self.n_buckets:
            numbers = (buckets_of(column.values, self.n_buckets) + 1).astype(np.float64)
        if numbers is None:
            raise _changed(self.name, before, "lists of something else")
        return SequenceWriter(self.name, numbers, first, self.most)


@dataclass(frozen=True)
class Cross:
    """Combinations of the categories of several columns, in buckets; none if one is missing."""

    members: tuple[Any, ...]
    n_buckets: int

    def __post_init__(self) -> None:
        if len(self.members) < 2:
            raise ValueError(f"an interaction has members, and not {self.members!r}")
        _check_buckets(self.n_buckets, 1)

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.n_buckets

    def names(self) -> list[str]:
        """Names of the columns."""
        return _buckets(":".join(map(str, self.members)), self.n_buckets)

    def writer(self, columns: dict[Any, Read], first: int, salt: int = 0) -> Writer:
        """Return a writer of a partition's values; `salt` is added to their hashes."""
        read = [columns[name] for name in self.members]
        for name, column in zip(self.members, read, strict=True):
            if isinstance(column, ListColumn):
                raise _changed(name, "categories", "lists")
        if not all(isinstance(column, CategoryColumn) for column in read):
            return LookupWriter(self, self.members, first)
        hashes = [hashes_of(column.values) for column in read]  # type: ignore[union-attr]
        hashes[0] = hashes[0] + np.uint64(salt)
        return CrossWriter(self.members, hashes, first, self.n_buckets)


class _Salted:
    """A column that shares its buckets with other columns."""

    name: object
    n_buckets: int
    indicator: bool

    def places(self, values: Any) -> np.ndarray:
        """Return the bucket of each value."""
        return buckets_of(values, self.n_buckets, salt_of(self.name))

    def _missing(self, first: int) -> int:
        return first + int(self.places(["missing"])[0]) if self.indicator else -1


class _SaltedHashed(_Salted, Hashed):
    """Categories."""


class _SaltedBag(_Salted, Bag):
    """Tokens."""


@dataclass(frozen=True)
class Shared:
    """Hashed columns that share their buckets, like all features of Vowpal Wabbit."""

    members: tuple[Hashed | Bag | Cross, ...]
    n_buckets: int
    name: ClassVar[str] = "hashed"

    def __post_init__(self) -> None:
        _check_buckets(self.n_buckets, 1)
        if any(member.n_buckets != self.n_buckets for member in self.members):
            raise ValueError(f"columns that share {self.n_buckets} buckets have others")

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.n_buckets

    def names(self) -> list[str]:
        """Names of the columns."""
        return _buckets(self.name, self.n_buckets)

    def writer(self, columns: dict[Any, Read], first: int) -> Writer:
        """Return a writer of a partition's values."""
        return SeveralWriter(tuple(self._writer(each, columns, first) for each in self.members))

    def _writer(self, member: Hashed | Bag | Cross, columns: dict[Any, Read], first: int) -> Writer:
        if isinstance(member, Cross):
            return member.writer(columns, first, salt_of(":".join(map(str, member.members))))
        salted = _SaltedHashed if isinstance(member, Hashed) else _SaltedBag
        return salted(member.name, self.n_buckets, member.indicator).writer(columns, first)


def _writer(feature: OneHot | Hashed, columns: dict[Any, Read], first: int, missing: int) -> Writer:
    """Return a writer of categories."""
    column = columns[feature.name]
    if isinstance(column, ListColumn):
        raise _changed(feature.name, "categories", "lists")
    if isinstance(column, EmptyColumn):
        return MissingWriter(missing)
    if isinstance(column, NumericColumn):
        return LookupWriter(feature, (feature.name,), first)
    places = feature.places(column.values)
    if isinstance(feature, OneHot):
        feature.check(column, places)
    return CodesWriter(feature.name, table_of_codes(places, first, missing))


def _check_buckets(n_buckets: int, least: int) -> None:
    if not least <= n_buckets <= _MOST_BUCKETS:
        raise ValueError(f"n_buckets is {n_buckets!r}, up to {_MOST_BUCKETS} are possible")


_WORDS = {NumericColumn: "numbers", CategoryColumn: "categories or strings", ListColumn: "lists"}


def _changed(name: object, before: str, now: str) -> ColumnError:
    return ColumnError(
        f"column {str(name)!r} of X{{place}} holds {now}, and held {before} when the "
        "encoder was fitted: convert it"
    )


def _buckets(name: str, n: int) -> list[str]:
    return [f"{name}#{bucket}" for bucket in range(n)]


def _indicator(name: object, wanted: bool) -> list[str]:
    return [f"missingindicator_{name}"] if wanted else []
