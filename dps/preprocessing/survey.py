"""The survey for an encoder: some numbers and the distinct values of each partition.

`survey` runs where a partition is, and `merge` combines the results and describes defects in the
user's terms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

import numpy as np

from dps.data.survey.defects import ENCODE_MISSING
from dps.preprocessing.columns import (
    CategoryColumn,
    ColumnError,
    ListColumn,
    NumericColumn,
    Read,
    ReadFrame,
    as_objects,
    kind_of_values,
    logarithms_of,
)

#: Integers up to here are exact in float32.
_EXACT = 1 << 24

ReadKind = Literal["numbers", "categories", "lists", "lists of numbers", "nothing"]


@dataclass(frozen=True)
class ColumnSurvey:
    """A survey of a column."""

    # {"numbers", "categories", "lists", "lists of numbers", "nothing"} the fourth for sequences
    # only.
    kind: ReadKind
    missing: int
    total: float = 0.0  # for numbers: sum and number of the values
    count: int = 0
    exact: bool = True  # for numbers: whether float32 represents all values
    values: Any = None  # for categories: distinct values, if requested
    given: bool = False  # whether the user has chosen these and their order
    counts: Any = None  # rows of each of them, if requested
    logarithms: float = 0.0  # for numbers: sum of logarithms, if requested


@dataclass(frozen=True)
class FrameSurvey:
    """A survey of one partition, or of all."""

    rows: int
    columns: dict[Any, ColumnSurvey]
    defects: dict[Any, ColumnError] = field(default_factory=dict)


@dataclass(frozen=True)
class SurveyFrame:
    """Surveys a partition that has been read."""

    values: bool  # whether distinct values of categories are needed
    counts: bool = False  # whether rows of each are needed
    logarithms: tuple[Any, ...] = ()  # numeric columns whose logarithms are needed

    def __call__(self, read: ReadFrame) -> FrameSurvey:
        """Survey the columns."""
        columns = {name: self._column(column, name) for name, column in read.columns.items()}
        return FrameSurvey(read.rows, columns, read.defects)

    def _column(self, column: Read, name: object) -> ColumnSurvey:
        if isinstance(column, NumericColumn):
            values = column.values
            there = values[~np.isnan(values)] if column.missing else values
            total = float(there.sum(dtype=np.float64))
            logarithms = float(logarithms_of(there).sum()) if name in self.logarithms else 0.0
            return ColumnSurvey(
                "numbers", column.missing, total, len(there), _exact(there), logarithms=logarithms
            )
        if isinstance(column, CategoryColumn):
            if not self.values:
                return ColumnSurvey("categories", column.missing)
            counts = None
            if self.counts:
                codes = np.asarray(column.codes)
                counts = np.bincount(codes[codes >= 0], minlength=len(column.values))
                counts = counts.astype(np.min_scalar_type(counts.max(initial=0)))
            return ColumnSurvey(
                "categories", column.missing, values=column.values, given=column.given,
                counts=counts,
            )  # fmt: skip
        if isinstance(column, ListColumn) and isinstance(column.values, np.ndarray):
            return ColumnSurvey("lists of numbers", column.missing, exact=_exact_in(column.values))
        return ColumnSurvey(
            "lists" if isinstance(column, ListColumn) else "nothing", column.missing
        )


def _exact(values: Any) -> bool:
    """True if float32 represents the numbers; for float64, only if they are integers."""
    floating = values.dtype.kind == "f"
    if values.dtype.itemsize <= (4 if floating else 2) or not len(values):
        return True
    if floating and (values != np.rint(values)).any():
        return False
    return bool(max(float(values.max()), -float(values.min())) <= _EXACT)


def _exact_in(values: Any) -> bool:
    return bool((values.astype(np.float32) == values).all())


def merge(surveys: Sequence[FrameSurvey], whole: bool) -> FrameSurvey:
    """Merge the surveys of all partitions.

    For a column that has defects, or whose partitions disagree, it has the defect of the first
    partition concerned.

    whole: whether the data is not partitioned, so that errors do not mention partitions.
    """
    # Partitions without rows may have any dtype.
    filled = {number: survey for number, survey in enumerate(surveys) if survey.rows}
    columns: dict[Any, ColumnSurvey] = {}
    defects: dict[Any, ColumnError] = {}
    for number, survey in filled.items():
        for name, defect in survey.defects.items():
            place = "" if whole else f" in partition {number}"
            defects.setdefault(name, ColumnError(str(defect.at(place))))
    for name in dict.fromkeys(chain.from_iterable(survey.columns for survey in filled.values())):
        if name not in defects:
            found = {number: s.columns[name] for number, s in filled.items() if name in s.columns}
            try:
                columns[name] = _merge(str(name), found)
            except ColumnError as error:
                defects[name] = error
    return FrameSurvey(sum(survey.rows for survey in surveys), columns, defects)


def _merge(name: str, found: Mapping[int, ColumnSurvey]) -> ColumnSurvey:
    """Merge the surveys of a column by number of the partition."""
    surveys = found.values()
    kind = _same(name, "{}", {n: s.kind for n, s in found.items() if s.kind != "nothing"})
    values, given, counts = None, False, None
    if kind == "categories":
        known = {number: s for number, s in found.items() if s.values is not None}
        values, given, counts = _merge_values(name, known, all(s.given for s in surveys))
    return ColumnSurvey(
        kind or "nothing",
        sum(s.missing for s in surveys),
        sum(s.total for s in surveys),
        sum(s.count for s in surveys),
        all(s.exact for s in surveys),
        values,
        given,
        counts,
        sum(s.logarithms for s in surveys),
    )


def _merge_values(
    name: str, found: Mapping[int, ColumnSurvey], given: bool
) -> tuple[Any, bool, Any]:
    """Return all values in their common order, else sorted; and their counts."""
    import pandas as pd

    if not found:
        return None, False, None
    surveys = list(found.values())
    first, counts = surveys[0], None
    if given and all(survey.values.equals(first.values) for survey in surveys):
        if first.counts is not None:
            counts = np.sum([survey.counts for survey in surveys], axis=0, dtype=np.int64)
        return first.values, True, counts
    some = {number: survey for number, survey in found.items() if len(survey.values)}
    _same(name, "categories of {}", {n: kind_of_values(s.values) for n, s in some.items()})
    filled = list(some.values()) or [first]
    every = [survey.values for survey in filled]
    # Pandas would convert them to its own strings.
    if any(values.dtype == object for values in every):
        objects = np.concatenate([as_objects(values).to_numpy() for values in every])
        together = pd.Index(objects, dtype=object)
    else:
        together = every[0].append(every[1:])
    codes, distinct = pd.factorize(together.array)
    values = pd.Index(distinct, dtype=together.dtype)
    order = values.argsort()
    if first.counts is not None:
        rows = np.concatenate([survey.counts for survey in filled])
        counts = np.bincount(codes, rows, len(values)).astype(np.int64)[order]
    return values.take(order), False, counts


def _same(name: str, what: str, kinds: Mapping[int, Any]) -> Any:
    """Return the value that all non-empty partitions share; `kinds` are given by number."""
    first: tuple[int, Any] | None = None
    for number, kind in kinds.items():
        if first is None:
            first = number, kind
        elif kind != first[1]:
            raise ColumnError(
                f"column {name!r} of X differs between partitions: {first[0]} holds "
                f"{what.format(first[1])}, {number} holds {what.format(kind)}; give it one dtype, "
                f"as in X[{name!r}].astype('str')"
            )
    return None if first is None else first[1]


def missing_values(counts: Iterable[tuple[Any, int]], rows: int) -> list[str]:
    """Return messages about missing values."""
    gaps = [f"{str(name)!r} {count:,}" for name, count in counts if count]
    if not gaps:
        return []
    return [
        f"X{{place}} has missing values in {rows:,} rows: {', '.join(gaps)}; fill or drop them, "
        f"or have them encoded: {ENCODE_MISSING}"
    ]
