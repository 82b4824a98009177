"""Descriptions of a partition's defects in the user's terms.

Each function returns None, or the end of a sentence that begins with the place.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse

from dps.data.collections.partitions import check_columns
from dps.losses import Loss

if TYPE_CHECKING:
    import pandas as pd

#: Advice about missing numbers.
ENCODE_MISSING = 'encoder=dps.preprocessing.FrameEncoder(missing="mean"), or missing="indicator"'

_CHUNK = 1 << 16  # elements that are checked at a time, which bounds temporary memory


#: Types of labels that files can hold.
_LABELS = (str, bytes, bool, int, float, np.generic, datetime.date)


def defect_of_lengths(rows: int, targets: np.ndarray, weights: np.ndarray | None) -> str | None:
    """Return the defect of the lengths of y and weights, or None."""
    for name, values in (("y", targets), ("sample_weight", weights)):
        if values is None:
            continue
        if values.ndim not in ((1, 2) if name == "y" else (1,)):
            return f"{name}{{place}} has {values.ndim} dimensions, one is wanted"
        if len(values) != rows:
            return (
                f"{name}{{place}} has {len(values)} rows, X has {rows}: "
                "they must be cut at the same rows"
            )
    return None


def defect_of_structure(X: Any) -> str | None:
    """Return the defect of a sparse matrix with indices out of bounds, or None.

    It is called before anything uses an index, such as a conversion to CSR.
    """
    if hasattr(X, "to_scipy_sparse"):  # pydata/sparse
        X = X.to_scipy_sparse()
    if not scipy.sparse.issparse(X) or X.ndim != 2:
        return None
    if X.format in ("csr", "csc", "bsr"):
        wrong = _wrong_in_compressed(X)
    elif X.format == "lil":
        wrong = _wrong_in_compressed(_lil_as_csr(X))
    elif X.format == "coo":
        wrong = _wrong_in_coordinates(X)
    else:  # other formats check their indices themselves
        return None
    return None if wrong is None else f"X{{place}} is a broken {X.format} matrix: {wrong}{_REMAKE}"


def _lil_as_csr(X: Any) -> Any:
    """Return its lists of column indices, concatenated like in SciPy's conversion."""
    made = scipy.sparse.csr_array(X.shape, dtype=X.dtype)
    made.indptr = np.cumsum([0, *map(len, X.rows)])
    made.indices = np.array([index for row in X.rows for index in row], np.int64)
    made.data = np.zeros(len(made.indices), X.dtype)
    return made


def _wrong_in_compressed(X: Any) -> str | None:
    """Return the defect of a matrix in CSR, CSC or BSR, or None."""
    height, width = (
        extent // block
        for extent, block in zip(X.shape, getattr(X, "blocksize", (1, 1)), strict=True)
    )
    along, across = ("row", "column") if X.format != "csc" else ("column", "row")
    if X.format == "csc":
        height, width = width, height
    indptr, indices = X.indptr, X.indices
    for name, array in (("indptr", indptr), ("indices", indices)):
        if array.ndim != 1 or array.dtype.kind not in "iu":
            return f"its {name} has {array.ndim} dimensions and dtype {array.dtype}"
    if len(indptr) != height + 1:
        return f"its indptr has {len(indptr)} elements, {height + 1} are wanted"
    if indptr[0] != 0:
        return f"its indptr begins with {indptr[0]} instead of 0"
    falls = np.flatnonzero(indptr[1:] < indptr[:-1])
    if len(falls):
        at = int(falls[0])
        return f"its indptr falls from {indptr[at]} to {indptr[at + 1]} at {along} {at}"
    stored = int(indptr[-1])
    there = min(len(indices), len(X.data))
    if stored > there:
        return f"its indptr ends with {stored}, and {there} values are stored"
    outside = _first_outside(indices[:stored], width)
    if outside is None:
        return None
    place = int(np.searchsorted(indptr, outside, "right")) - 1
    return f"{along} {place} has the {across} index {indices[outside]}, of {width} {across}s"


def _wrong_in_coordinates(X: Any) -> str | None:
    for name, at, extent in (("row", X.row, X.shape[0]), ("column", X.col, X.shape[1])):
        if len(at) != len(X.data):
            return f"it has {len(at)} {name} indices for {len(X.data)} values"
        outside = _first_outside(at, extent)
        if outside is not None:
            return f"value {outside} has the {name} index {at[outside]}, of {extent} {name}s"
    return None


def _first_outside(indices: np.ndarray, extent: int) -> int | None:
    """Return the position of the first index that is negative or too large."""
    # Two reductions need no memory, and suffice if nothing is wrong.
    if not len(indices) or (indices.min() >= 0 and indices.max() < extent):
        return None
    return int(np.argmax((indices < 0) | (indices >= extent)))


def _remedy(found: str) -> str:
    """Return advice about a number that is not finite."""
    return _FILL_NAN if found == "NaN" else _FILL


def defect_of_features(X: Any) -> str | None:
    """Return the first value of X (array, CSR rows or dataframe) that is not finite, or None."""
    if X.ndim != 2:
        return f"X{{place}} has {X.ndim} dimensions, two are wanted"
    if hasattr(X, "columns") and hasattr(X, "dtypes"):
        try:
            check_columns(X, _ENCODE)
        except ValueError as error:
            return f"in X{{place}}: {error}"
        return _not_finite_in(X)
    if scipy.sparse.issparse(X):
        at = _first_not_finite(X.data)
        if at is None:
            return None
        row_number = int(np.searchsorted(X.indptr, at[0], "right")) - 1
        return f"X{{place}} holds {at[1]}, in row {row_number}{_remedy(at[1])}"
    if X.dtype.kind not in "biuf":
        return f"X{{place}} has dtype {X.dtype}, which is no number: encode or convert it"
    if X.dtype.kind != "f":
        return None
    step = max(1, _CHUNK // max(1, X.shape[1]))
    for start in range(0, len(X), step):
        bad = _first_not_finite(X[start : start + step].ravel())
        if bad is not None:
            row_number = start + bad[0] // X.shape[1]
            return f"X{{place}} holds {bad[1]}, in row {row_number}{_remedy(bad[1])}"
    return None


def _not_finite_in(frame: pd.DataFrame) -> str | None:
    """Return all columns of a numeric dataframe that have a value that is not finite."""
    wrong, found = [], set()
    for name in frame.columns:
        values = frame[name].to_numpy()
        if values.dtype == object:  # a nullable column with gaps
            values = np.where(frame[name].isna(), np.nan, 0.0)
        first = _first_not_finite(values)
        if first is not None:
            found.add(first[1])
            wrong.append(f"holds {first[1]}, in row {first[0]} of column {str(name)!r}")
    remedy = _FILL_NAN if "NaN" in found else _FILL
    return f"X{{place}} {', and '.join(wrong)}{remedy}" if wrong else None


def gaps_message(place: str, counts: Iterable[tuple[Any, int]], rows: int) -> str:
    """Return a message about numbers that are missing in predictions but were not in training."""
    listed = ", ".join(f"{str(name)!r} {count:,}" for name, count in counts)
    return (
        f"X{place} has missing numbers in columns that had none in the training rows: {listed} of "
        f"{rows:,} rows; the mean of those stands for them"
    )


def places(width: int) -> list[str]:
    """Return names for the columns of an array."""
    return [f"x{number}" for number in range(width)]


def is_of_gaps(defect: str | None) -> bool:
    """True if nothing is wrong, or only numbers are missing."""
    return defect is None or defect.endswith(_FILL_NAN)


_FILL = ": fill or drop such rows"
_FILL_NAN = f"{_FILL}, or give a dataframe and {ENCODE_MISSING}"
_REMAKE = ": make it anew from its values, and see its check_format()"
_ENCODE = (
    ": make them numbers, or give a dask dataframe, as dask.dataframe.from_delayed makes it of a "
    "list, whose dtypes are known beforehand: that is encoded"
)


def _first_not_finite(values: np.ndarray) -> tuple[int, str] | None:
    """Return the position and the name of the first NaN or infinity of a vector."""
    if values.dtype.kind != "f":
        return None
    # A sum is finite only if all terms are. It may also overflow, so a closer look follows.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum()):
            return None
    bad = ~np.isfinite(values)
    if not bad.any():
        return None
    at = int(np.argmax(bad))
    return at, "NaN" if np.isnan(values[at]) else "infinity (inf)"


def defect_of_weights(weights: np.ndarray | None) -> str | None:
    """Return the defect of sample weights, or None."""
    if weights is None:
        return None
    if weights.dtype.kind not in "biuf":
        return f"sample_weight{{place}} has dtype {weights.dtype}, numbers are wanted"
    bad = _first_not_finite(weights)
    if bad is not None:
        return f"sample_weight{{place}} holds {bad[1]}, in row {bad[0]}: weights must be finite"
    if len(weights) and weights.min() < 0:
        return (
            f"sample_weight{{place}} is negative ({weights.min():g}) in row "
            f"{int(weights.argmin())}: weights must not be negative"
        )
    return None


def defect_of_targets(targets: np.ndarray, classification: bool) -> str | None:
    """Return the defect of y, or None."""
    columns = 1 if targets.ndim == 1 else targets.shape[1]
    if columns == 0:
        return "y{place} has 0 columns, one is wanted"
    bad = _first_not_finite(targets.ravel())
    if bad is not None:
        return f"y{{place}} holds {bad[1]}, in row {bad[0] // columns}: Input y contains {bad[1]}"
    if classification and columns > 1:
        return _defect_of_indicators(targets)
    if classification:
        return _defect_of_labels(targets)
    if targets.dtype.kind not in "biuf":
        return f"y{{place}} has dtype {targets.dtype}, a regression wants numbers"
    return None


def _defect_of_labels(labels: np.ndarray) -> str | None:
    """Return the defect of one column of labels, or None."""
    if labels.dtype == object:
        return _defect_of_objects(labels)
    if labels.dtype.kind in "mM" and (absent := np.isnat(labels)).any():
        return f"y{{place}} holds a missing label, in row {int(absent.argmax())}{_FILL}"
    if labels.dtype.kind == "f" and (broken := labels != np.floor(labels)).any():
        row = int(broken.argmax())
        return (
            f"y{{place}} holds {labels[row]:g}, in row {row}: that is no label but a "
            "continuous number, which a regressor learns"
        )
    return None


def _defect_of_objects(labels: np.ndarray) -> str | None:
    """Return the defect of labels of any type, or None."""
    missing = [_is_missing(value) for value in labels]
    if any(missing):
        return f"y{{place}} holds a missing label, in row {missing.index(True)}{_FILL}"
    for row, value in enumerate(labels):
        if not isinstance(value, _LABELS):
            kind = type(value).__name__
            return (
                f"y{{place}} holds a label of the type {kind}, in row {row}: give numbers, "
                "strings or dates"
            )
    kinds = sorted({type(value).__name__ for value in labels})
    large = max((value for value in labels if type(value) is int), key=abs, default=0)
    if abs(large) >= 1 << 63:
        return (
            f"y{{place}} holds {large}, which takes more than 64 bits: give such labels as strings"
        )
    if "str" in kinds and len(kinds) > 1:  # they have no order
        names = ", ".join(kinds)
        return f"y{{place}} holds labels of several types ({names}): give labels of one"
    return None


def _defect_of_indicators(targets: np.ndarray) -> str | None:
    """Return the defect of a y with a column for each label, or None."""
    wanted = "of several columns of y each says of one label whether a row has it, by 0 or 1"
    if targets.dtype.kind not in "biuf":
        shape = f"{targets.shape[1]} columns of dtype {targets.dtype}"
        return f"y{{place}} has {shape}: {wanted}; convert them, as in y.astype(int)"
    other = (targets != 0) & (targets != 1)
    if not other.any():
        return None
    row, column = np.unravel_index(int(other.argmax()), targets.shape)
    return f"y{{place}} holds {targets[row, column]:g}, in row {row}: {wanted}"


def defect_of_domain(targets: np.ndarray, loss: Loss | None) -> str | None:
    """Return the defect of a one-dimensional y for a loss, or None."""
    if loss is None or loss.domain is None:
        return None
    allowed = np.asarray(loss.allows(targets.ravel()))
    if allowed.all():
        return None
    at = int(np.argmin(allowed))
    row = at // (1 if targets.ndim == 1 else targets.shape[1])
    return (
        f"y{{place}} holds {targets.ravel()[at]:g}, in row {row}: targets of loss={loss.name!r} "
        f"must be {loss.domain}"
    )


def _is_missing(label: object) -> bool:
    # NaN and NaT differ from themselves; the comparison of pandas' NA is NA.
    same = label == label
    return label is None or not isinstance(same, bool | np.bool_) or not same
