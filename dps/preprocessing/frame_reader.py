"""Reading a partition's columns as numbers or codes, whatever their dtypes.

Strings are read once, here; all later steps use the distinct values only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import chain
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dps.data.collections.partitions import is_frame
from dps.data.hashing import Hashes, hashes_of
from dps.preprocessing.columns import (
    CategoryColumn,
    ColumnError,
    EmptyColumn,
    ListColumn,
    NumericColumn,
    Read,
    ReadFrame,
)
from dps.preprocessing.dates import parts_of_dates
from dps.preprocessing.dtypes import kind_of

if TYPE_CHECKING:
    import pandas as pd

#: From here on float64 cannot represent every integer.
_WHOLE = 2.0**53
_SEQUENCES = (list, tuple, set, frozenset, np.ndarray)


def read_frame(frame: pd.DataFrame, names: Sequence[Any], *, parts: bool = False) -> ReadFrame:
    """Read the named columns of a pandas dataframe.

    parts: whether columns of dates are read as their parts, see `parts_of_dates`.
    """
    columns: dict[Any, Read] = {}
    defects: dict[Any, ColumnError] = {}
    if not is_frame(frame):
        kind = type(frame).__name__
        return ReadFrame(1, {}, {None: ColumnError(f"X{{place}} is a {kind}, and not a dataframe")})
    for name in names:
        try:
            if name not in frame.columns:
                raise ColumnError(f"X{{place}} has no column {str(name)!r}")
            column = frame[name]
            if column.ndim != 1:
                raise ColumnError(f"X{{place}} has several columns named {str(name)!r}")
            if parts and kind_of(column.dtype) == "date":
                columns |= parts_of_dates(column, str(name))
            else:
                columns[name] = _read(column, str(name))
        except ColumnError as error:
            defects[name] = error
    return ReadFrame(len(frame), columns, defects)


def keep_frame(read: ReadFrame, *, hashed: bool, ordered: bool = False) -> ReadFrame:
    """Return a copy of a read frame that shares no memory with the original.

    hashed: whether only hashes of categories are needed, as of lists.
    ordered: whether lists are sequences: then numbers in them are needed.
    """
    columns = {name: _detached(column, hashed, ordered) for name, column in read.columns.items()}
    return ReadFrame(read.rows, columns, read.defects)


def _detached(read: Read, hashed: bool, ordered: bool) -> Read:
    if isinstance(read, NumericColumn) and read.values.base is not None:
        return replace(read, values=read.values.copy())
    if isinstance(read, ListColumn):
        numbers = numbers_in(read.values) if ordered else None
        values = Hashes(hashes_of(read.values)) if numbers is None else numbers
        return ListColumn(read.starts, read.codes, values, read.missing)
    if isinstance(read, CategoryColumn):
        codes = read.codes if read.codes.base is None else read.codes.copy()
        values = Hashes(hashes_of(read.values)) if hashed else read.values
        return CategoryColumn(codes, values, read.given, read.missing)
    return read


def numbers_in(values: Any) -> NDArray[np.float64] | None:
    """Return the distinct tokens of lists if all are finite numbers, else None."""
    if isinstance(values, Hashes):
        return None
    if not isinstance(values, np.ndarray):
        if not all(isinstance(value, Real) for value in values):
            return None
        values = np.array([float(value) for value in values], np.float64)
    found: NDArray[np.float64] = values
    return found if np.isfinite(found).all() else None


def _read(series: pd.Series, name: str) -> Read:
    kind = kind_of(series.dtype)
    if kind == "number":
        return _numbers(series, name)
    if kind == "category":
        return _categories(series, name)
    if kind == "text":
        return _codes_of(series)
    if kind == "lists":
        return _arrow_lists(series)
    if kind == "object":
        return _objects(series, name)
    raise ColumnError(f"column {name!r} of X{{place}} has dtype {series.dtype}: convert or drop it")


def _numbers(series: pd.Series, name: str) -> NumericColumn:
    dtype, exact = series.dtype, None
    if isinstance(dtype, np.dtype):
        values = series.to_numpy()
    elif dtype.kind == "O":  # Arrow's decimals
        values = _arrow(series).cast("float64").to_numpy()
    elif hasattr(dtype, "numpy_dtype") and not series.isna().any():
        values = series.to_numpy(dtype.numpy_dtype)
    elif hasattr(dtype, "numpy_dtype"):
        single = dtype.numpy_dtype.itemsize <= 2 or dtype.numpy_dtype == np.float32
        values = series.to_numpy(np.float32 if single else np.float64, na_value=np.nan)
        if dtype.kind in "iu" and np.nanmax(np.abs(values), initial=0) >= _WHOLE:
            exact = series.to_numpy(dtype.numpy_dtype, na_value=0)
    else:  # pandas' sparse columns
        values = np.asarray(series)
    if values.dtype.kind == "f" and values.dtype.itemsize not in (4, 8):
        values = values.astype(np.float32 if values.dtype.itemsize == 2 else np.float64)
    elif not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    if values.dtype.kind != "f":
        return NumericColumn(values, 0)
    with np.errstate(over="ignore", invalid="ignore"):  # finite only if all terms are
        if np.isfinite(values.sum()):
            return NumericColumn(values, 0)
    infinite = np.isinf(values)
    if infinite.any():
        raise ColumnError(
            f"X{{place}} holds infinity (inf), in row {int(infinite.argmax())} of column "
            f"{name!r}: fill or drop such rows"
        )
    return NumericColumn(values, int(np.isnan(values).sum()), exact)


def _categories(series: pd.Series, name: str) -> CategoryColumn:
    if hasattr(series, "cat"):
        codes, values, given = series.cat.codes.to_numpy(), series.cat.categories, True
    else:
        array = _arrow(series).unify_dictionaries().combine_chunks()
        codes = _smallest(array.indices.fill_null(-1).to_numpy(False), len(array.dictionary))
        values, given = array.dictionary.to_pandas(), False
    if codes.dtype.itemsize > 4:
        codes = codes.astype(np.int32)
    return CategoryColumn(codes, _plain(values, name), given, int((codes < 0).sum()))


def _plain(values: Any, name: str) -> Any:
    """Return the values of categories as an Index: strings as objects, numbers in NumPy's dtype."""
    import pandas as pd

    index = pd.Index(values)
    kind = kind_of(index.dtype)
    if kind == "number":
        return pd.Index(index.to_numpy(getattr(index.dtype, "numpy_dtype", index.dtype)))
    if kind == "text":
        return pd.Index(index.to_numpy(object), dtype=object)
    if kind == "object" and not all(isinstance(value, str) for value in index):
        kinds = sorted({type(value).__name__ for value in index})
        raise ColumnError(
            f"column {name!r} of X{{place}} has categories of the types {kinds}: make them all "
            f"strings, as in X[{name!r}].astype('str')"
        )
    return index


def _codes_of(series: pd.Series) -> CategoryColumn:
    """Return codes of strings in the order of first occurrence."""
    import pandas as pd

    if hasattr(series.array, "__arrow_array__"):
        encoded = _arrow(series).dictionary_encode().combine_chunks()
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        values = pd.Index(series.dtype.__from_arrow__(encoded.dictionary))
    else:
        codes, values = pd.factorize(series)
        values = pd.Index(np.asarray(values, object), dtype=object)
    codes = _smallest(codes, len(values))
    return CategoryColumn(codes, values, False, int((codes < 0).sum()))


def _smallest(codes: np.ndarray, n_values: int) -> np.ndarray:
    for dtype in (np.int8, np.int16):
        if n_values <= np.iinfo(dtype).max:
            return codes.astype(dtype)
    return codes.astype(np.int32)


def _objects(
    series: pd.Series, name: str
) -> CategoryColumn | ListColumn | EmptyColumn | NumericColumn:
    import pandas as pd

    absent = series.isna().to_numpy()
    if absent.all():
        return EmptyColumn(len(absent))
    if isinstance(series.iloc[int(absent.argmin())], _SEQUENCES):
        return _lists(series.to_numpy(object), absent, name)
    try:
        codes, values = pd.factorize(series)
    except TypeError:  # a value cannot be hashed
        codes, values = np.empty(0, np.int64), series[~absent]
    if all(isinstance(value, Real | Decimal | np.bool_) for value in values):
        return _numbers(series.where(~absent, np.nan).astype(np.float64), name)
    kinds = sorted({type(value).__name__ for value in values if not isinstance(value, str)})
    if set(kinds) <= {"date", "datetime", "Timestamp"} and kinds:
        raise ColumnError(
            f"column {name!r} of X{{place}} holds objects of the types {kinds}: make it dates, as "
            f'in pd.to_datetime(X[{name!r}]), which FrameEncoder(dates="parts") encodes'
        )
    if kinds:
        some = "strings and " if any(isinstance(value, str) for value in values) else ""
        raise ColumnError(
            f"column {name!r} of X{{place}} holds {some}objects of the types {kinds}: make it "
            f"strings, as in X[{name!r}].astype('str'), or numbers, as in "
            f"pd.to_numeric(X[{name!r}])"
        )
    values = pd.Index(np.asarray(values, object), dtype=object)
    return CategoryColumn(_smallest(codes, len(values)), values, False, int(absent.sum()))


def _lists(rows: np.ndarray, absent: NDArray[np.bool_], name: str) -> ListColumn:
    import pandas as pd

    there = rows[~absent]
    odd = sorted({type(row).__name__ for row in there if not isinstance(row, _SEQUENCES)})
    if odd:
        raise ColumnError(
            f"column {name!r} of X{{place}} holds lists and objects of the types {odd}: make all "
            "rows lists of tokens"
        )
    counts = np.zeros(len(rows), np.int64)
    counts[~absent] = np.fromiter(map(len, there), np.int64, len(there))
    tokens = np.fromiter(chain.from_iterable(there), object, int(counts.sum()))
    try:
        codes, values = pd.factorize(tokens)
    except TypeError:
        raise ColumnError(
            f"column {name!r} of X{{place}} has lists whose items cannot be tokens: make them "
            "strings"
        ) from None
    return _bags(counts, codes, absent, pd.Index(values, dtype=object))


def _arrow_lists(series: pd.Series) -> ListColumn:
    import pandas as pd
    import pyarrow.compute as pc

    lists = _arrow(series).combine_chunks()
    encoded = lists.flatten().dictionary_encode()
    counts = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    values = pd.Index(encoded.dictionary.to_pylist(), dtype=object)
    return _bags(counts.astype(np.int64), codes, series.isna().to_numpy(), values)


def _bags(
    counts: NDArray[np.int64], codes: np.ndarray, absent: NDArray[np.bool_], values: Any
) -> ListColumn:
    """Return a column of the concatenated tokens of rows; missing tokens are dropped."""
    if len(codes) and codes.min() < 0:
        rows = np.repeat(np.arange(len(counts)), counts)[codes >= 0]
        counts = np.bincount(rows, minlength=len(counts))
        codes = codes[codes >= 0]
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts + absent, out=starts[1:])
    marked = np.full(int(starts[-1]), -1, np.int32)
    token = np.ones(len(marked), bool)
    token[starts[:-1][absent]] = False
    marked[token] = codes
    return ListColumn(starts, marked, values, int(absent.sum()))


def _arrow(series: pd.Series) -> Any:
    """Return a column as pyarrow's chunked array."""
    import pyarrow as pa

    array = series.array.__arrow_array__()
    return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])
