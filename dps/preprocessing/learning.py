"""The step from surveyed columns to encoded columns.

One error reports all defects of a frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from dps.preprocessing.columns import ColumnError, as_objects, together
from dps.preprocessing.features import (
    Bag,
    Cross,
    Feature,
    Hashed,
    Number,
    OneHot,
    Shared,
    TokenSequence,
    Unknown,
)
from dps.preprocessing.layout import MOST_COLUMNS, FrameLayout, Missing
from dps.preprocessing.survey import ColumnSurvey, FrameSurvey, missing_values

#: Default number of buckets for interactions and lists.
BUCKETS = 1 << 16
#: For "auto": rows from which a category has a column of its own, and the number of rarer
#: categories up to which each has one anyway.
_FREQUENT, _FEW = 3, 1000


@dataclass(frozen=True)
class Options:
    """An encoder's parameters."""

    n_buckets: int | None
    missing: Missing
    interactions: Sequence[Sequence[Any]]
    dtype: str
    parts: bool  # whether dates are encoded by their parts
    lists: str | int = "counts"
    unknown: Unknown = "ignore"
    min_frequency: float | Literal["auto"] | None = None
    max_categories: int | None = None
    shared: bool = False
    logarithms: Sequence[Any] = ()  # names of numeric columns


def make_layout(
    survey: FrameSurvey, names: Sequence[Any], unfit: Sequence[str], options: Options
) -> FrameLayout:
    """Return the encoded columns for a surveyed frame.

    unfit: known defects.
    Raises ValueError: the message has all problems of the columns, or an interaction has a column
        without categories.
    """
    if survey.rows == 0:
        raise ValueError("Found array with 0 sample(s): X has no rows, a minimum of 1 is required.")
    missing = options.missing
    if problems := [*unfit, *_problems(survey, options.n_buckets, missing)]:
        raise ColumnError(together(problems)).at("")
    for name in options.logarithms:
        if name not in survey.columns or survey.columns[name].kind != "numbers":
            raise ValueError(f"logarithms name {name!r}, which is no column of numbers of X")
    features: list[Feature] = []
    n_numbers = 0
    for name, column in survey.columns.items():
        feature = _feature(name, column, options, n_numbers)
        if isinstance(feature, OneHot):
            feature = _one_hot(feature, column.counts, survey.rows, options)
            names_of = {at: as_objects(getattr(feature, at)) for at in ("categories", "infrequent")}
            feature = replace(feature, **names_of)
        n_numbers += isinstance(feature, Number)
        features.append(feature)
    features += [_cross(survey, members, options.n_buckets) for members in options.interactions]
    if options.shared:
        features = _sharing(features, options.n_buckets or BUCKETS)
    width = sum(feature.width for feature in features)
    if width > MOST_COLUMNS:
        raise ValueError(
            f"X has {width:,} encoded columns, up to {MOST_COLUMNS:,} are possible: lower n_buckets"
        )
    dtype = options.dtype
    if dtype == "auto":
        exact = all(
            column.exact or name in options.logarithms for name, column in survey.columns.items()
        )
        dtype = "float32" if exact else "float64"
    return FrameLayout(tuple(names), tuple(features), np.dtype(dtype).name, missing, options.parts)


def _sharing(features: list[Feature], n_buckets: int) -> list[Feature]:
    """Return the features with a single one, at the end, for all that are hashed."""
    members = tuple(each for each in features if isinstance(each, Hashed | Bag | Cross))
    own = [each for each in features if not isinstance(each, Hashed | Bag | Cross)]
    return [*own, Shared(members, n_buckets)] if members else own


def _problems(survey: FrameSurvey, n_buckets: int | None, missing: Missing) -> list[str]:
    """Defects of the columns."""
    problems = [*map(str, survey.defects.values())]
    empty = {name for name, column in survey.columns.items() if _has_nothing(column, n_buckets)}
    if missing == "error":
        counts = (
            (name, column.missing)
            for name, column in survey.columns.items()
            if column.kind != "categories" and name not in empty
        )
        problems += missing_values(counts, survey.rows)
    return problems + [f"column {str(name)!r} of X has no value at all: drop it" for name in empty]


def _cross(survey: FrameSurvey, members: Sequence[Any], n_buckets: int | None) -> Cross:
    """Return an interaction of columns, which must have categories."""
    for name in members:
        if name not in survey.columns:
            raise ValueError(f"interactions name {name!r}, which is no column of X")
        if survey.columns[name].kind != "categories":
            raise ValueError(
                f"interactions are of categories, and column {str(name)!r} of X holds "
                f"{survey.columns[name].kind}: use X[{str(name)!r}].astype('category')"
            )
    return Cross(tuple(members), n_buckets or BUCKETS)


def _feature(name: object, column: ColumnSurvey, options: Options, n_numbers: int) -> Feature:
    n_buckets, lists = options.n_buckets, options.lists
    # Numbers and lists have no missing values if these would be errors.
    indicator = options.missing != "mean" and column.missing > 0
    if column.kind == "numbers":
        logarithm = name in options.logarithms
        total = column.logarithms if logarithm else column.total
        return Number(name, n_numbers, total / column.count, indicator, logarithm)
    if column.kind in ("lists", "lists of numbers") and not isinstance(lists, str):
        return TokenSequence(name, lists, 0 if column.kind != "lists" else n_buckets or BUCKETS)
    if column.kind == "lists":
        return Bag(name, n_buckets or BUCKETS, indicator)
    if n_buckets is not None:
        return Hashed(name, n_buckets, indicator)
    return OneHot(name, column.values, indicator, unknown=options.unknown)


def _one_hot(feature: OneHot, counts: Any, rows: int, options: Options) -> OneHot:
    """Return the feature with one column for rare or surplus categories.

    Categories are chosen as in scikit-learn's `OneHotEncoder`: the least frequent, and among
    equally frequent ones the first. "auto" treats new categories as rare.
    """
    least, most = options.min_frequency, options.max_categories
    if least is None and most is None:
        return feature
    if least == "auto":
        least = None
        if feature.unknown != "error" and np.count_nonzero(counts < _FREQUENT) > _FEW:
            least, feature = _FREQUENT, replace(feature, unknown="infrequent_if_exist")
    elif least is not None and not isinstance(least, int | np.integer):
        least = least * rows  # a share of the rows
    rare = counts < float(least or 0)
    if most is not None and most < len(counts) - rare.sum() + 1:
        rare[np.argsort(counts, kind="stable")[: len(counts) - most + 1]] = True
    if not rare.any():
        return feature
    if feature.unknown == "infrequent_if_exist":  # as for all values without a column
        infrequent = feature.categories[:0]
    else:
        infrequent = feature.categories[rare]
    return replace(feature, categories=feature.categories[~rare], infrequent=infrequent)


def _has_nothing(column: ColumnSurvey, n_buckets: int | None) -> bool:
    """True if there is no value to learn from."""
    if column.kind == "numbers":
        return not column.count
    if column.kind == "categories":
        return n_buckets is None and not len(column.values)
    return column.kind == "nothing"
