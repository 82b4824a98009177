"""Parts of dates and durations: calendar categories, and the days as a number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dps.preprocessing.columns import CategoryColumn, NumericColumn, Read
from dps.preprocessing.dtypes import kind_of

if TYPE_CHECKING:
    import pandas as pd

#: Parts of the calendar, each a column of categories.
_PARTS = ("year", "month", "day_of_week", "hour")
#: Suffixes of the names of parts.
PARTS = (*_PARTS, "days")


def check_part_names(frame: pd.DataFrame) -> None:
    """Raise if a column of a pandas dataframe has the name of a part of a date."""
    dates = [name for name, dtype in frame.dtypes.items() if kind_of(dtype) == "date"]
    parts = {name for date in dates for name in parts_of_dates(frame[date].iloc[:0], str(date))}
    taken = sorted(parts & set(map(str, frame.columns)))
    if taken:
        raise ValueError(f"X has columns named {taken}, as parts of its dates are: rename them")


def parts_of_dates(series: pd.Series, name: str) -> dict[Any, Read]:
    """Return the parts of a column of dates, durations or periods, by name.

    ``name_year``, ``name_month`` (1 to 12), ``name_day_of_week`` (0 is Monday) and ``name_hour``
    are categories in the column's time zone; ``name_days`` is the number of days since 1970 in UTC
    as float32, exact to three minutes. A duration has days only.
    """
    import pandas as pd

    if isinstance(series.dtype, pd.PeriodDtype):
        series = series.dt.to_timestamp()
    elif hasattr(series.dtype, "pyarrow_dtype"):
        series = _of_numpy(series)
    missing = series.isna().to_numpy()
    count = int(missing.sum())
    if series.dtype.kind == "m":
        return {f"{name}_days": NumericColumn(_days(series.to_numpy()), count)}
    found: dict[Any, Read] = {}
    for part in _PARTS:
        numbers = getattr(series.dt, part).to_numpy(np.float64, na_value=np.nan)
        values = np.unique(numbers[~missing]).astype(np.int64)
        codes = np.searchsorted(values, np.where(missing, 0, numbers))
        codes[missing] = -1
        small = np.int8 if len(values) < 1 << 7 else np.int32
        found[f"{name}_{part}"] = CategoryColumn(
            codes.astype(small), pd.Index(values), False, count
        )
    if series.dt.tz is not None:
        series = series.dt.tz_convert(None)
    found[f"{name}_days"] = NumericColumn(_days(series.to_numpy()), count)
    return found


def _of_numpy(series: pd.Series) -> Any:
    """Return Arrow's dates in NumPy's dtype, with their time zone."""
    import pandas as pd
    import pyarrow as pa

    array = series.array.__arrow_array__()
    kind = array.type
    if pa.types.is_date(kind):
        array = array.cast(pa.timestamp("ms"))
    return pd.Series(array.to_pandas())


def _days(times: Any) -> Any:
    missing = np.isnat(times)
    unit = np.timedelta64(1, "D").astype(f"m8[{np.datetime_data(times.dtype)[0]}]")
    whole = times.view(np.int64) / unit.astype(np.int64)
    return np.where(missing, np.nan, whole).astype(np.float32)
