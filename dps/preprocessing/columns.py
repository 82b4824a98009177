"""The contents of a partition after reading: numbers and codes, in arrays.

Nothing else is kept of a partition until it can be encoded: of strings only the distinct ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dps.data.keep.tables import FieldTable, Flat, Ragged
from dps.preprocessing.dtypes import kind_of


class ColumnError(ValueError):
    """A defect of a column; ``{place}`` is replaced by the partition."""

    def at(self, place: str) -> ValueError:
        """Return the error to raise, with the place of the data."""
        return ValueError(str(self).replace("{place}", place))


def together(problems: Sequence[str]) -> str:
    """Join all problems into one message."""
    if len(problems) == 1:
        return problems[0]
    return "\n* ".join([f"X{{place}} cannot be encoded, for {len(problems)} reasons:", *problems])


@dataclass(frozen=True)
class NumericColumn:
    """A column of numbers."""

    values: np.ndarray  # (n,) in a dtype that kernels read; NaN for missing values
    missing: int
    # (n,) all digits of integers that are too large for `values`, for categories.
    exact: np.ndarray | None = None


@dataclass(frozen=True)
class CategoryColumn:
    """A column of categories or strings."""

    codes: np.ndarray  # (n,) positions in `values`; -1 is missing
    values: Any  # an index of the distinct values, or their hashes
    given: bool  # whether the user has chosen values and their order, as in a category dtype
    missing: int


@dataclass(frozen=True)
class ListColumn:
    """A column of lists."""

    starts: NDArray[np.int64]  # (n + 1,) first token of each row
    codes: NDArray[np.int32]  # positions in `values`; a single -1 stands for a missing row
    values: Any  # an index, or for sequences of numbers an array
    missing: int


@dataclass(frozen=True)
class EmptyColumn:
    """A column of objects without any value, whose kind is unknown."""

    missing: int


Read = NumericColumn | CategoryColumn | ListColumn | EmptyColumn


@dataclass(frozen=True)
class ReadFrame:
    """The columns of a partition."""

    rows: int
    columns: dict[Any, Read]  # by name, in the requested order
    # Defects of the other columns, by name.
    defects: dict[Any, ColumnError] = field(default_factory=dict)

    def __sizeof__(self) -> int:
        """Size for Dask."""
        arrays = (vars(column).values() for column in self.columns.values())
        return sum(int(getattr(array, "nbytes", 0)) for array in chain.from_iterable(arrays))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.rows, len(self.columns)

    def table(self) -> FieldTable:
        """Return the columns as fields; their distinct values stay in memory."""
        fields = [_FIELDS[type(column)](column) for column in self.columns.values()]
        empty = {name: without(column, "rows") for name, column in self.columns.items()}
        filled = tuple(field for field in fields if field is not None)
        return FieldTable(self.rows, filled, FrameMaker(empty, self.defects))


_FIELDS: dict[type, Callable[[Any], Flat | Ragged | None]] = {
    NumericColumn: lambda column: Flat(column.values),
    CategoryColumn: lambda column: Flat(column.codes),
    ListColumn: lambda column: Ragged(column.starts, (column.codes,)),
    EmptyColumn: lambda column: None,
}
_ROWS = {
    NumericColumn: ("values",),
    CategoryColumn: ("codes",),
    ListColumn: ("starts", "codes"),
    EmptyColumn: (),
}
_VALUES = {NumericColumn: (), CategoryColumn: ("values",), ListColumn: ("values",), EmptyColumn: ()}


def without(column: Read, what: Literal["rows", "values"]) -> Read:
    """Return a column without its arrays of rows, or without the distinct values of its codes."""
    names = (_ROWS if what == "rows" else _VALUES)[type(column)]
    lost: Any = dict.fromkeys(names)
    return replace(column, **lost)


@dataclass(frozen=True)
class FrameMaker:
    """Makes the frame of some rows."""

    columns: dict[Any, Read]  # columns without rows
    defects: dict[Any, ColumnError]  # defects of the frame

    def __call__(self, n_rows: int, fields: Sequence[Any]) -> ReadFrame:
        """Make a frame of `n_rows` rows from the fields."""
        left = iter(fields)
        found: dict[Any, Read] = {}
        for name, column in self.columns.items():
            if isinstance(column, NumericColumn):
                found[name] = replace(column, values=next(left).values)
            elif isinstance(column, CategoryColumn):
                found[name] = replace(column, codes=next(left).values)
            elif isinstance(column, ListColumn):
                rows = next(left)
                found[name] = replace(column, starts=rows.starts, codes=rows.values[0])
            else:
                found[name] = replace(column, missing=n_rows)
        return ReadFrame(n_rows, found, self.defects)


def kind_of_values(values: Any) -> str:
    """Describe the kind of categories' values."""
    words = {"O": "strings", "i": "numbers", "u": "numbers", "f": "numbers", "M": "dates"}
    if kind_of(values.dtype) == "text":
        return "strings"
    return words.get(values.dtype.kind if isinstance(values.dtype, np.dtype) else "",
                     str(values.dtype))  # fmt: skip


def logarithms_of(values: np.ndarray) -> NDArray[np.float64]:
    """Return logarithms of numbers of any sign, zero at zero."""
    # NumPy rounds values with gaps between them in another way.
    return np.arcsinh(np.asarray(values, np.float64, order="C"))


def take_logarithms(X: Any, number: int = 0, *, columns: NDArray[np.integer]) -> Any:
    """Return CSR rows with logarithms in some columns."""
    if not X.shape[0]:
        return X
    chosen = np.zeros(X.shape[1], bool)
    chosen[columns] = True
    at, data = chosen[X.indices], X.data.copy()
    data[at] = logarithms_of(data[at])
    return type(X)((data, X.indices, X.indptr), shape=X.shape)


def as_objects(values: Any) -> Any:
    """Return an index of strings as an index of objects; other values unchanged."""
    import pandas as pd

    if values is not None and kind_of(values.dtype) == "text":
        return pd.Index(values.to_numpy(object), dtype=object)
    return values
