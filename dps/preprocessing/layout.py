"""All features of a frame side by side: what an encoder has learned, as a frozen object.

It travels to workers, and turns what was read of a partition into CSR.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import scipy.sparse

from dps._kernels.encode import RowEncoder
from dps._kernels.gather import ColumnTable
from dps.preprocessing.columns import Bags, ColumnError, ReadFrame
from dps.preprocessing.features import Bag, Cross, Feature, Hashed, Number, OneHot
from dps.preprocessing.reading import read_frame
from dps.preprocessing.survey import ColumnSurvey, FrameSurvey, missing_values

__all__ = ["Layout", "Missing", "make_layout"]

Missing = Literal["error", "indicator", "mean"]

#: Buckets of interactions and of lists where none were asked for.
BUCKETS = 1 << 16
#: Encoded columns that can be numbered in 32 bits.
_MOST = (1 << 31) - 1


@dataclass(frozen=True)
class Layout:
    """Encoded columns.

    Parameters
    ----------
    columns : tuple
        Names of the frame's columns.
    features : tuple of Feature
        In the order of their columns, interactions last.
    dtype : str
        Of the stored values.
    missing : {"error", "indicator", "mean"}
    """

    columns: tuple[Any, ...]
    features: tuple[Feature, ...]
    dtype: str
    missing: Missing

    @cached_property
    def width(self) -> int:
        """How many there are."""
        return sum(feature.width for feature in self.features)

    @property
    def n_numbers(self) -> int:
        """How many of the frame's columns are numbers."""
        return sum(isinstance(feature, Number) for feature in self.features)

    def names(self) -> list[str]:
        """Their names."""
        return [name for feature in self.features for name in feature.names()]

    def nbytes(self, frame: ReadFrame) -> int:
        """About how many bytes the CSR of what was read of a partition takes."""
        tokens = sum(len(c.codes) for c in frame.columns.values() if isinstance(c, Bags))
        stored = frame.rows * len(self.features) + tokens
        return stored * (np.dtype(self.dtype).itemsize + 4) + 4 * frame.rows

    def __call__(self, frame: Any, where: int | str = "") -> Any:
        """Encode a pandas dataframe, or what was read of it, as a CSR matrix.

        Parameters
        ----------
        frame : pandas.DataFrame or ReadFrame
        where : int or str
            The number of its partition, or a phrase that says where it lies.

        Raises
        ------
        ValueError
            Names the column and the place.
        """
        place = where if isinstance(where, str) else f" in partition {where}"
        if not isinstance(frame, ReadFrame):
            frame = read_frame(frame, self.columns)
        try:
            return self._encode(frame)
        except ColumnError as error:
            raise error.at(place) from None

    def _encode(self, read: ReadFrame) -> Any:
        if not read.rows:  # of any columns and dtypes
            return scipy.sparse.csr_matrix((0, self.width), dtype=self.dtype)
        if read.defect is not None:
            raise read.defect
        if self.missing == "error":
            counts = ((name, column.missing) for name, column in read.columns.items())
            missing_values(counts, read.rows, "{place}", ColumnError)
        numbers = [
            f.values(read.columns, read.rows) for f in self.features if isinstance(f, Number)
        ]
        rows = RowEncoder(read.rows, ColumnTable(numbers))
        starts = accumulate((feature.width for feature in self.features), initial=0)
        for feature, first in zip(self.features, starts, strict=False):
            feature.add(rows, read.columns, first)
        index = np.int32 if rows.bound <= np.iinfo(np.int32).max else np.int64
        indices, data = np.empty(rows.bound, index), np.empty(rows.bound, self.dtype)
        indptr = np.empty(read.rows + 1, index)
        stored = rows.encode(indices, data, indptr)
        # In place: pages that were never written have cost nothing.
        indices.resize(stored, refcheck=False)
        data.resize(stored, refcheck=False)
        encoded = scipy.sparse.csr_matrix((read.rows, self.width), dtype=self.dtype)
        encoded.data, encoded.indices, encoded.indptr = data, indices, indptr
        if any(isinstance(feature, Bag) for feature in self.features):
            encoded.sum_duplicates()
        else:
            encoded.has_canonical_format = True
        return encoded


def make_layout(
    survey: FrameSurvey,
    *,
    n_hash: int | None,
    missing: Missing,
    interactions: Sequence[Sequence[Any]],
    dtype: str,
) -> Layout:
    """What the columns of a surveyed frame become.

    Raises
    ------
    ValueError
        Values are missing and may not be, or an interaction is not of categories.
    """
    if survey.rows == 0:
        raise ValueError("Found array with 0 sample(s): X has no rows, a minimum of 1 is required.")
    if missing == "error":
        missing_values(((n, c.missing) for n, c in survey.columns.items()), survey.rows)
    features: list[Feature] = []
    n_numbers = 0
    for name, column in survey.columns.items():
        feature = _feature(name, column, n_hash, missing == "indicator", n_numbers)
        n_numbers += isinstance(feature, Number)
        features.append(feature)
    for members in interactions:
        for name in members:
            if name not in survey.columns:
                raise ValueError(f"interactions name {name!r}, which is no column of X")
            if survey.columns[name].kind != "categories":
                raise ValueError(
                    f"interactions are of categories, and column {str(name)!r} of X holds "
                    f"{survey.columns[name].kind}: use X[{str(name)!r}].astype('category')"
                )
        features.append(Cross(tuple(members), n_hash or BUCKETS))
    width = sum(feature.width for feature in features)
    if width > _MOST:
        raise ValueError(
            f"X has {width:,} encoded columns, up to {_MOST:,} are possible: lower n_hash"
        )
    if dtype == "auto":
        exact = all(column.exact for column in survey.columns.values())
        dtype = "float32" if exact else "float64"
    return Layout(tuple(survey.columns), tuple(features), np.dtype(dtype).name, missing)


def _feature(
    name: Any, column: ColumnSurvey, n_hash: int | None, indicators: bool, n_numbers: int
) -> Feature:
    indicator = indicators and column.missing > 0
    if column.kind == "numbers" and column.count:
        return Number(name, n_numbers, column.total / column.count, indicator)
    if column.kind == "lists":
        return Bag(name, n_hash or BUCKETS, indicator)
    if column.kind == "categories" and n_hash is not None:
        return Hashed(name, n_hash, indicator)
    if column.kind == "categories" and len(column.values):
        return OneHot(name, column.values, indicator)
    raise ValueError(f"column {str(name)!r} of X has no value at all: drop it")
