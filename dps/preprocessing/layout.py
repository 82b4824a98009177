"""All features of a frame: what an encoder has learned, as a frozen object.

It is sent to workers, and converts read partitions to CSR.
"""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy.sparse

from dps._kernels.encode import RowEncoder
from dps._kernels.gather import ColumnTable
from dps._warned import warn
from dps.data.keep.tables import FieldTable
from dps.data.survey.defects import gaps_message
from dps.preprocessing.columns import (
    ColumnError,
    FrameMaker,
    ListColumn,
    Read,
    ReadFrame,
    logarithms_of,
    together,
    without,
)
from dps.preprocessing.features import (
    Bag,
    Feature,
    Hashed,
    Number,
    OneHot,
    Shared,
    TokenSequence,
)
from dps.preprocessing.frame_reader import read_frame
from dps.preprocessing.survey import missing_values
from dps.preprocessing.writers import Writer

if TYPE_CHECKING:
    import pandas as pd

Missing = Literal["error", "indicator", "mean"]

#: Largest number of encoded columns, for 32-bit numbers.
MOST_COLUMNS = (1 << 31) - 1


@dataclass(frozen=True)
class FrameLayout:
    """Encoded columns."""

    columns: tuple[Any, ...]  # names of the frame's columns
    features: tuple[Feature, ...]  # in the order of their columns, interactions last
    dtype: str  # dtype of the stored values
    missing: Missing  # {"error", "indicator", "mean"}
    parts: bool  # whether columns of dates are read as their parts
    # Equal for copies.
    token: str = field(default_factory=lambda: uuid.uuid4().hex, compare=False, repr=False)

    def __reduce__(self) -> Any:
        # Streams of many partitions share one layout, also after Dask has pickled them.
        fields = self.columns, self.features, self.dtype, self.missing, self.parts, self.token
        return _layout, fields

    @cached_property
    def width(self) -> int:
        """Number of columns."""
        return sum(feature.width for feature in self.features)

    @property
    def members(self) -> tuple[Feature, ...]:
        """Features, with those that share buckets listed separately."""
        shared = [each for each in self.features if isinstance(each, Shared)]
        own = tuple(each for each in self.features if not isinstance(each, Shared))
        return sum((each.members for each in shared), own)

    @property
    def n_numbers(self) -> int:
        """Number of the frame's numeric columns."""
        return sum(isinstance(feature, Number) for feature in self.features)

    @property
    def number_columns(self) -> tuple[int, ...]:
        """Encoded columns that are numbers."""
        starts = accumulate((feature.width for feature in self.features), initial=0)
        at = zip(self.features, starts, strict=False)
        return tuple(start for feature, start in at if isinstance(feature, Number))

    def with_logarithms(self, names: Sequence[Any]) -> FrameLayout:
        """Return the layout with logarithms of these numbers, also for missing values."""
        features = tuple(
            replace(each, fill=float(logarithms_of(np.array(each.fill))), logarithm=True)
            if isinstance(each, Number) and each.name in names
            else each
            for each in self.features
        )
        return FrameLayout(self.columns, features, self.dtype, self.missing, self.parts)

    def names(self) -> list[str]:
        """Names of the encoded columns."""
        return [name for feature in self.features for name in feature.names()]

    def nbytes(self, frame: ReadFrame) -> int:
        """Return the approximate bytes of a partition's CSR."""
        tokens = sum(len(c.codes) for c in frame.columns.values() if isinstance(c, ListColumn))
        stored = frame.rows * len(self.members) + tokens
        return stored * (np.dtype(self.dtype).itemsize + 4) + 4 * frame.rows

    def __call__(self, frame: pd.DataFrame, where: int | str = "") -> Any:
        """Encode a pandas dataframe, or a read partition, as a CSR matrix.

        frame: pandas.DataFrame, ReadFrame, or array of the columns in their order.
        where: number of its partition, or a phrase for its place.
        Raises ValueError: the message names the column and the place.
        """
        place = where if isinstance(where, str) else f" in partition {where}"
        if not isinstance(frame, ReadFrame):
            if not hasattr(frame, "columns"):
                import pandas as pd

                dense = frame.toarray() if scipy.sparse.issparse(frame) else frame
                if dense.shape[1] != len(self.columns):
                    raise ValueError(
                        f"X{place} has {dense.shape[1]} features, but {len(self.columns)} are "
                        "expected"
                    )
                frame = pd.DataFrame(dense, columns=list(self.columns))
            frame = read_frame(frame, self.columns, parts=self.parts)
        try:
            encoded = self._encode(frame)
        except ColumnError as error:
            raise error.at(place) from None
        if self.missing == "indicator" and (gaps := self._new_gaps(frame)):
            warn(gaps_message(place, gaps, frame.rows), UserWarning, stacklevel=2)
        return encoded

    def _new_gaps(self, read: ReadFrame) -> list[tuple[Any, int]]:
        """Return numeric columns with missing values but no indicator, and their number."""
        plain = [f.name for f in self.features if isinstance(f, Number) and not f.indicator]
        counts = ((name, read.columns[name].missing) for name in plain if name in read.columns)
        return [(name, count) for name, count in counts if count]

    def _encode(self, read: ReadFrame) -> Any:
        if not read.rows:
            return _SpecialisedLayout(self.width, self.dtype)(read)
        self._check(read.columns, read.rows, read.defects)
        return self._bound(read.columns)(read)

    def _check(self, columns: dict[Any, Read], rows: int, defects: dict[Any, ColumnError]) -> None:
        problems = [str(defect) for defect in defects.values()]
        named = Number | OneHot | Hashed | Bag | TokenSequence
        learned = [f.name for f in self.members if isinstance(f, named)]
        lost = [str(name) for name in learned if name not in columns]
        if lost and not problems:  # a column changed from dates to something else, or back
            problems.append(
                f"X{{place}} has no {lost}, which the encoder was fitted to: make dates of columns "
                "that were dates then, as by pandas.to_datetime, and of no others"
            )
        if self.missing == "error":
            strict = {f.name for f in self.members if isinstance(f, Number | Bag | TokenSequence)}
            counts = ((name, read.missing) for name, read in columns.items() if name in strict)
            problems += missing_values(counts, rows)
        if problems:
            raise ColumnError(together(problems))

    def bind(self, table: FieldTable, where: int) -> FieldTable:
        """Return a table of CSR rows in place of the rows of a read partition.

        Derived values replace the distinct values.

        Raises ValueError: the message names the column and the place.
        """
        frames = table.make
        assert isinstance(frames, FrameMaker)
        try:
            if table.n_rows:
                self._check(frames.columns, table.n_rows, frames.defects)
            bound = (
                self._bound(frames.columns)
                if table.n_rows
                else _SpecialisedLayout(self.width, self.dtype)
            )
        except ColumnError as error:
            raise error.at(f" in partition {where}") from None
        columns = {name: without(column, "values") for name, column in frames.columns.items()}
        return replace(table, make=_PartitionEncoder(FrameMaker(columns, {}), bound))

    def _bound(self, columns: dict[Any, Read]) -> _SpecialisedLayout:
        starts = accumulate((feature.width for feature in self.features), initial=0)
        return _SpecialisedLayout(
            self.width,
            self.dtype,
            tuple(feature for feature in self.features if isinstance(feature, Number)),
            tuple(
                f.writer(columns, first) for f, first in zip(self.features, starts, strict=False)
            ),
            any(isinstance(feature, Bag | Shared) for feature in self.features),
        )


_known: weakref.WeakValueDictionary[str, FrameLayout] = weakref.WeakValueDictionary()


def _layout(*values: Any) -> FrameLayout:
    """Return an unpickled layout: the one that exists already, if it does."""
    return _known.setdefault(values[-1], FrameLayout(*values))


@dataclass(frozen=True)
class _SpecialisedLayout:
    """A layout for one partition, which no longer needs its distinct values."""

    width: int
    dtype: str
    numbers: tuple[Number, ...] = ()
    writers: tuple[Writer, ...] = ()
    repeated: bool = False  # whether a row may have several values in one column

    def __call__(self, read: ReadFrame) -> Any:
        """Return rows of the partition as CSR."""
        encoded = scipy.sparse.csr_matrix((read.rows, self.width), dtype=self.dtype)
        if not read.rows:  # an empty partition may have any columns
            return encoded
        numbers = [number.values(read.columns, read.rows) for number in self.numbers]
        rows = RowEncoder(read.rows, ColumnTable(numbers))
        for writer in self.writers:
            writer.add(rows, read.columns)
        index = np.int32 if rows.bound <= np.iinfo(np.int32).max else np.int64
        indices, data = np.empty(rows.bound, index), np.empty(rows.bound, self.dtype)
        indptr = np.empty(read.rows + 1, index)
        stored = rows.encode(indices, data, indptr)
        # In place: pages that were never written cost nothing.
        indices.resize(stored, refcheck=False)
        data.resize(stored, refcheck=False)
        encoded.data, encoded.indices, encoded.indptr = data, indices, indptr
        if self.repeated:
            encoded.sum_duplicates()
        else:
            encoded.has_canonical_format = True
        return encoded


@dataclass(frozen=True)
class _PartitionEncoder:
    """Makes the CSR of some rows of a partition."""

    frames: FrameMaker
    bound: _SpecialisedLayout

    def __call__(self, n_rows: int, fields: Sequence[Any]) -> Any:
        return self.bound(self.frames(n_rows, fields))
