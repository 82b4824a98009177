"""What has been read of a partition: numbers and codes, in arrays.

It is all that is kept of a partition until it can be encoded: no strings but the distinct ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps.data.tables import Flat, Ragged, Table

__all__ = [
    "Bags",
    "Codes",
    "ColumnError",
    "Nothing",
    "Numbers",
    "Read",
    "ReadFrame",
    "kind_of_values",
]


class ColumnError(ValueError):
    """What is wrong with a column; ``{place}`` stands where the partition belongs."""

    def at(self, place: str) -> ValueError:
        """The error to raise for data that lies there."""
        return ValueError(str(self).replace("{place}", place))


@dataclass(frozen=True)
class Numbers:
    """A column of numbers.

    Parameters
    ----------
    values : (n,) array
        Of a dtype that kernels read; NaN where a value is missing.
    missing : int
    """

    values: NDArray[Any]
    missing: int


@dataclass(frozen=True)
class _Valued:
    """A column of codes, which stand for values.

    What an encoder makes of the values is worked out once, however many slices of the rows there
    are: they share it.
    """

    made: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False, kw_only=True)

    def of_values(self, key: Any, make: Callable[[Any], Any]) -> Any:
        """``make(values)``, which is the same for every call with this key."""
        if key not in self.made:
            self.made[key] = make(self.values)  # type: ignore[attr-defined]
        return self.made[key]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "made": {}}


@dataclass(frozen=True)
class Codes(_Valued):
    """A column of categories or strings.

    Parameters
    ----------
    codes : (n,) int8, int16 or int32 array
        Positions in `values`; -1 is missing.
    values : pandas.Index or Hashes
        Distinct; of objects where they are strings.
    given : bool
        Whether the user has chosen values and their order, as in a category dtype.
    missing : int
    """

    codes: NDArray[Any]
    values: Any
    given: bool
    missing: int


@dataclass(frozen=True)
class Bags(_Valued):
    """A column of lists.

    Parameters
    ----------
    starts : (n + 1,) int64 array
        Where the tokens of each row begin and end.
    codes : int32 array
        Positions in `values`; a single -1 stands for a row that is missing.
    values : pandas.Index or Hashes
    missing : int
    """

    starts: NDArray[np.int64]
    codes: NDArray[np.int32]
    values: Any
    missing: int


@dataclass(frozen=True)
class Nothing:
    """A column of objects without any value, which could have been of any kind."""

    missing: int


Read = Numbers | Codes | Bags | Nothing


@dataclass(frozen=True)
class ReadFrame:
    """The columns of a partition.

    Parameters
    ----------
    rows : int
    columns : dict
        By name, in the order of the names asked for.
    defect : ColumnError or None
        What is wrong with the first bad column; then there are no columns.
    """

    rows: int
    columns: dict[Any, Read]
    defect: ColumnError | None = None

    def __sizeof__(self) -> int:
        """Bytes, which Dask asks for."""
        arrays = (vars(column).values() for column in self.columns.values())
        return sum(int(getattr(array, "nbytes", 0)) for array in chain.from_iterable(arrays))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.rows, len(self.columns)

    def table(self) -> Table:
        """The columns as fields, of which the distinct values stay in memory."""
        fields = [_FIELDS[type(column)](column) for column in self.columns.values()]
        empty = {name: _without_rows(column) for name, column in self.columns.items()}
        filled = tuple(field for field in fields if field is not None)
        return Table(self.rows, filled, partial(_frame_of, empty, self.defect))


def _without_rows(column: Read) -> Read:
    nothing: Any = None
    if isinstance(column, Numbers):
        return replace(column, values=nothing)
    if isinstance(column, Codes):
        return replace(column, codes=nothing)
    return replace(column, starts=nothing, codes=nothing) if isinstance(column, Bags) else column


def _frame_of(
    columns: dict[Any, Read], defect: ColumnError | None, n_rows: int, fields: Sequence[Any]
) -> ReadFrame:
    """A frame of some rows."""
    left = iter(fields)
    found: dict[Any, Read] = {}
    for name, column in columns.items():
        if isinstance(column, Numbers):
            found[name] = replace(column, values=next(left).values)
        elif isinstance(column, Codes):
            found[name] = replace(column, codes=next(left).values)
        elif isinstance(column, Bags):
            rows = next(left)
            found[name] = replace(column, starts=rows.starts, codes=rows.values[0])
        else:
            found[name] = replace(column, missing=n_rows)
    return ReadFrame(n_rows, found, defect)


_FIELDS: dict[type, Callable[[Any], Flat | Ragged | None]] = {
    Numbers: lambda column: Flat(column.values),
    Codes: lambda column: Flat(column.codes),
    Bags: lambda column: Ragged(column.starts, (column.codes,)),
    Nothing: lambda column: None,
}


def kind_of_values(values: Any) -> str:
    """What the values of categories are, in words."""
    words = {"O": "strings", "i": "numbers", "u": "numbers", "f": "numbers", "M": "dates"}
    return words.get(values.dtype.kind if isinstance(values.dtype, np.dtype) else "",
                     str(values.dtype))  # fmt: skip
