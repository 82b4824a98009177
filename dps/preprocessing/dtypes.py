"""What a column is, as far as its dtype tells: numbers, categories, text, lists, or unfit.

Looks at no value, so that it can judge the empty frame that describes a dask dataframe.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from dps.data.partitions import check_names

__all__ = ["Kind", "check_frame", "kind_of"]

Kind = Literal["number", "category", "text", "lists", "object", "date", "other"]


def kind_of(dtype: Any) -> Kind:
    """The kind of a column of this dtype; "object" if only its values tell.

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
    if types.is_temporal(arrow):
        return "date"
    if types.is_null(arrow):
        return "object"
    return "number" if dtype.kind in "biuf" else "other"


def check_frame(frame: Any) -> None:
    """Raise if a frame's columns cannot be encoded, whatever they hold.

    Raises
    ------
    ValueError
        Two columns have one name, or a dtype is neither numbers nor categories; says what to do.
    """
    columns = frame.columns
    if not len(columns):
        raise ValueError("Found array with 0 feature(s): X has no columns, 1 is required.")
    check_names(frame)
    kinds = {name: kind_of(dtype) for name, dtype in frame.dtypes.items()}
    dates = [name for name, kind in kinds.items() if kind == "date"]
    if dates:
        name = dates[0]
        raise ValueError(
            f"columns {_listed(dates)} of X hold dates or durations "
            f"({_dtypes(frame, dates)}): derive what matters, for example "
            f"X[{name!r}].dt.month, .dt.day_of_week or .dt.hour, with .astype('category') for a "
            f"coefficient a value, or .dt.total_seconds() of a duration, and drop {name!r}"
        )
    unfit = [name for name, kind in kinds.items() if kind == "other"]
    if unfit:
        raise ValueError(
            f"columns {_listed(unfit)} of X are neither numbers, categories, strings nor lists "
            f"({_dtypes(frame, unfit)}): convert or drop them"
        )


def _listed(names: Sequence[Any]) -> str:
    return str([str(name) for name in names])


def _dtypes(frame: Any, names: Sequence[Any]) -> str:
    return ", ".join(str(frame.dtypes[name]) for name in names)
