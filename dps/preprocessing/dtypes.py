"""The kind of a column by its dtype: numbers, categories, text, lists, or unsuitable.

It reads no values, so it works on the empty frame that describes a dask dataframe.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dps.data.collections.partitions import check_names

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["number", "category", "text", "lists", "object", "date", "other"]


def kind_of(dtype: Any) -> Kind:
    """Return the kind of a column with this dtype; "object" if values must decide.

    Examples
    --------
    >>> import pandas as pd
    >>> [kind_of(dtype) for dtype in (pd.Int8Dtype(), pd.CategoricalDtype(), pd.StringDtype())]
    ['number', 'category', 'text']
    """
    import pandas as pd

    if isinstance(dtype, pd.CategoricalDtype):
        return "category"
    if isinstance(dtype, pd.StringDtype):
        return "text"
    if isinstance(dtype, pd.PeriodDtype) or dtype.kind in "mM":
        return "date"
    if hasattr(dtype, "pyarrow_dtype"):
        return _kind_of_arrow(dtype)
    if dtype.kind in "biuf":
        return "number"
    return "object" if dtype == np.dtype(object) else "other"


def _kind_of_arrow(dtype: Any) -> Kind:
    from pyarrow import types

    arrow = dtype.pyarrow_dtype
    if types.is_string(arrow) or types.is_large_string(arrow) or types.is_string_view(arrow):
        return "text"
    if types.is_dictionary(arrow):
        return "category"
    if types.is_list(arrow) or types.is_large_list(arrow):
        return "lists"
    if types.is_temporal(arrow) and not types.is_time(arrow):
        return "date"
    if types.is_null(arrow):
        return "object"
    return "number" if dtype.kind in "biuf" or types.is_decimal(arrow) else "other"


def check_frame(frame: pd.DataFrame) -> None:
    """Raise if a frame has no columns, or two with the same name."""
    if not len(frame.columns):
        raise ValueError("Found array with 0 feature(s): X has no columns, 1 is required.")
    check_names(frame)


def unfit_columns(frame: pd.DataFrame, parts: bool) -> tuple[list[Any], list[str]]:
    """Return the columns that cannot be encoded because of their dtype, with advice.

    parts: whether dates are encoded.
    Returns a sentence for all dates, and one for all others.
    """
    kinds = {name: kind_of(dtype) for name, dtype in frame.dtypes.items()}
    dates = [name for name, kind in kinds.items() if kind == "date" and not parts]
    unfit = [name for name, kind in kinds.items() if kind == "other"]
    problems = []
    if dates:
        name = dates[0]
        problems.append(
            f"columns {_listed(dates)} of X hold dates or durations ({_dtypes(frame, dates)}): "
            'encoder=dps.preprocessing.FrameEncoder(dates="parts") makes year, month, day of week, '
            f"hour and days of them; or derive what matters, for example X[{name!r}].dt.month "
            "with .astype('category') for a coefficient a value, or .dt.total_seconds() of a "
            f"duration, and drop {name!r}"
        )
    if unfit:
        problems.append(
            f"columns {_listed(unfit)} of X are neither numbers, categories, strings nor lists "
            f"({_dtypes(frame, unfit)}): convert or drop them"
        )
    return dates + unfit, problems


def _listed(names: Sequence[Any]) -> str:
    return str([str(name) for name in names])


def _dtypes(frame: pd.DataFrame, names: Sequence[Any]) -> str:
    return ", ".join(str(frame.dtypes[name]) for name in names)
