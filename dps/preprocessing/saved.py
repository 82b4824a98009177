"""The layout of encoded dataframes in files, with distinct values."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from dps.files.records import Kind
from dps.preprocessing.dates import PARTS
from dps.preprocessing.features import (
    Bag,
    Cross,
    Hashed,
    Number,
    OneHot,
    Shared,
    TokenSequence,
)
from dps.preprocessing.layout import MOST_COLUMNS, FrameLayout

_FEATURES = Number | OneHot | Hashed | Bag | Cross | TokenSequence


def layout_kinds() -> list[Kind]:
    """Return the kinds of a layout and of its parts; imports pandas."""
    import pandas as pd

    # Dtypes of categories; an Index of text holds objects.
    indexes = (pd.Index, pd.DatetimeIndex, pd.TimedeltaIndex, pd.IntervalIndex, pd.RangeIndex)
    return [
        Kind.of("feature:number", Number),
        Kind.of("feature:one_hot", OneHot, _check_one_hot),
        Kind.of("feature:hashed", Hashed),
        Kind.of("feature:bag", Bag),
        Kind.of("feature:cross", Cross),
        Kind.of("feature:sequence", TokenSequence),
        Kind.of("feature:shared", Shared),
        Kind.of("layout", FrameLayout, _check_layout, _LAYOUT),
        *(Kind(f"index:{cls.__name__}", cls, _INDEX, _fields_of_index, _index) for cls in indexes),
        Kind(
            "index:PeriodIndex", pd.PeriodIndex, ("ordinals", "freq"), _fields_of_periods, _periods
        ),
        # Types of column names.
        Kind("timestamp", pd.Timestamp, ("is", "zone"), _fields_of_timestamp, _timestamp),
        Kind("interval", pd.Interval, _INTERVAL, _fields_of_interval, _interval),
    ]


_LAYOUT = ("columns", "features", "dtype", "missing", "parts")
_INDEX = ("values", "zone", "ends")
_INTERVAL = ("left", "right", "closed")


def _fields_of_index(index: Any) -> dict[str, Any]:
    import pandas as pd

    if isinstance(index, pd.IntervalIndex):
        ends = [index.left, index.right, index.closed]
        return {"values": None, "zone": None, "ends": ends}
    zone = None
    if isinstance(index.dtype, pd.DatetimeTZDtype):
        zone = _zone_of(index.tz)
        index = index.tz_convert("UTC").tz_localize(None)
    if not isinstance(index.dtype, np.dtype):
        raise TypeError(f"categories of the dtype {index.dtype}")
    return {"values": index.to_numpy(), "zone": zone, "ends": None}


def _index(values: Any, zone: object, ends: Any) -> Any:
    import pandas as pd

    if ends is not None:
        left, right, closed = ends
        return pd.IntervalIndex.from_arrays(left, right, closed=closed)
    if not isinstance(values, np.ndarray) or values.ndim != 1:
        raise ValueError("categories are no vector")
    index = pd.Index(values, dtype=values.dtype)
    if not index.is_unique:
        raise ValueError("categories come twice")
    if zone is not None:
        index = index.tz_localize("UTC").tz_convert(_zone(zone))
    return index


def _fields_of_periods(index: Any) -> dict[str, Any]:
    return {"ordinals": np.asarray(index.asi8), "freq": index.freqstr}


def _periods(ordinals: Any, freq: Any) -> Any:
    import pandas as pd

    if not isinstance(ordinals, np.ndarray) or ordinals.dtype != np.int64 or ordinals.ndim != 1:
        raise ValueError("periods are not numbered")
    index = pd.PeriodIndex.from_ordinals(ordinals, freq=str(freq))
    if not index.is_unique:
        raise ValueError("categories come twice")
    return index


def _fields_of_timestamp(name: Any) -> dict[str, Any]:
    if name.tz is None:
        return {"is": name.isoformat(), "zone": None}
    return {"is": name.tz_convert("UTC").tz_localize(None).isoformat(), "zone": _zone_of(name.tz)}


def _timestamp(zone: object, **text: object) -> Any:
    import pandas as pd

    made = pd.Timestamp(str(text["is"]))
    return made if zone is None else made.tz_localize("UTC").tz_convert(_zone(zone))


def _fields_of_interval(name: object) -> dict[str, Any]:
    return {each: getattr(name, each) for each in _INTERVAL}


def _interval(left: Any, right: Any, closed: Any) -> Any:
    import pandas as pd

    return pd.Interval(left, right, closed)


def _zone_of(zone: object) -> str:
    """Return the name of a time zone from which `_zone` makes an equal one."""
    try:
        if str(_zone(str(zone))) == str(zone):
            return str(zone)
    except ValueError:
        pass
    raise TypeError(f"categories of the time zone {zone!r}: give one of zoneinfo")


def _zone(name: Any) -> Any:
    """Return a time zone from the system's list; no other file is opened for a name."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    if name == "UTC":
        return datetime.UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError) as error:
        raise ValueError(f"there is no time zone {name!r}") from error


def _check_one_hot(feature: OneHot) -> None:
    import pandas as pd

    categories, infrequent = feature.categories, feature.infrequent
    for index in (categories, categories if infrequent is None else infrequent):
        if not isinstance(index, pd.Index):
            raise ValueError(f"categories of {feature.name!r} are no index")
    some = infrequent is None or len(infrequent) or feature.unknown == "infrequent_if_exist"
    if not some or (infrequent is not None and not categories.append(infrequent).is_unique):
        raise ValueError(f"categories of {feature.name!r} are none, or come twice")


def _column_of(name: object, columns: tuple[Any, ...], parts: bool) -> Any:
    """Return the column of a feature or of a part of a date."""
    if name in columns or not parts:
        return name
    owners = [c for c in columns for part in PARTS if name == f"{c}_{part}"]
    return owners[0] if owners else name


def _check_layout(layout: FrameLayout) -> None:
    columns, parts, features = layout.columns, layout.parts, cast(Sequence[Any], layout.members)
    if len(set(columns)) < len(columns):
        raise ValueError("a column comes twice")
    if not all(isinstance(feature, _FEATURES) for feature in features):
        raise ValueError("among the features is something else")
    named: Sequence[Any] = [f.name for f in features if not isinstance(f, Cross)]
    of = [_column_of(name, columns, parts) for name in named]
    # The columns of a shared feature come last.
    if any(isinstance(each, Shared) for each in layout.features):
        of.sort(key=lambda name: columns.index(name) if name in columns else len(columns))
    if [*dict.fromkeys(of)] != [*columns] or (not parts and len(of) != len(columns)):
        raise ValueError(f"features are of {named}, and columns are {[*columns]}")
    members = {name for f in features if isinstance(f, Cross) for name in f.members}
    if not members <= set(named):
        raise ValueError(f"interactions are of {members}, and columns are {[*columns]}")
    places = [f.place for f in features if isinstance(f, Number)]
    if places != [*range(len(places))]:
        raise ValueError("numbers are not in the order of their columns")
    if layout.dtype not in ("float32", "float64"):
        raise ValueError(f"dtype is {layout.dtype!r}")
    if not 0 < layout.width <= MOST_COLUMNS:
        raise ValueError(f"there are {layout.width} encoded columns")
