"""Conversion of the user's containers to aligned partitions, with scikit-learn's errors.

It checks what is visible without computation: kinds, shapes, names and lengths. Values are
inspected later, on the workers.
"""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
from sklearn.utils import check_array, check_consistent_length, column_or_1d
from sklearn.utils.validation import validate_data

from dps.data.collections.alignment import partitions_of
from dps.data.collections.partitions import (
    Partition,
    as_pandas,
    check_columns,
    check_names,
    is_dask,
    is_frame,
    meta_of,
)
from dps.data.feed.blocks import as_rows
from dps.data.survey.defects import defect_of_structure

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

    from dps.data.survey.rows import DataSummary


def partitions_for(
    estimator: BaseEstimator,
    X: Any,
    y: Any,
    sample_weight: Any,
    *,
    classification: bool,
    reset: bool,
    encoded: bool,
) -> tuple[list[Partition], bool]:
    """Return the data in aligned partitions, and whether it is not partitioned.

    estimator: stores the names of columns, or compares them.
    X, y, sample_weight: as given by the user; with a local X all are local.
    classification: whether y holds labels.
    reset: whether this is a first fit, which sets names and numbers of columns.
    encoded: whether X is encoded already, or a dataframe to be encoded.
    Raises ValueError, TypeError.
    """
    if y is None:
        raise ValueError("requires y to be passed, but the target y is None")
    if is_dask(X):
        meta = None if encoded else meta_of(X)
        if meta is not None:
            validate_data(estimator, X=meta, skip_check_array=True, reset=reset)
        return partitions_of(X, y, sample_weight, multi_output=True), False
    if not encoded:
        X = plain(estimator, X, reset)
    if not is_frame(X) and (
        not X.dtype.isnative or (X.dtype.kind == "f" and X.dtype.itemsize not in (4, 8))
    ):
        X = X.astype(np.float64)
    y = _targets(y, classification)
    check_consistent_length(X, y)
    return [Partition(X, y, _weights(sample_weight, X.shape[0]))], True


def _targets(y: Any, classification: bool) -> Any:
    if hasattr(y, "toarray"):
        y = y.toarray()
    shape = y.shape if hasattr(y, "shape") else np.asarray(y).shape
    if classification and not (len(shape) == 2 and shape[1] > 1):
        # scikit-learn would convert nullable integers to floats, and merge large ones.
        return column_or_1d(np.asarray(y) if hasattr(y, "dtypes") else y, warn=True)
    y = check_array(
        y, ensure_2d=False, ensure_min_samples=0, ensure_min_features=0, dtype=None,
        ensure_all_finite=False, input_name="y",
    )  # fmt: skip
    return y.astype(np.float64) if y.dtype == object and not classification else y


def as_weights(sample_weight: Any) -> Any:
    """Return weights in a known container; a number is no weighting, since weights average 1."""
    if not isinstance(sample_weight, Real):
        return as_pandas(sample_weight)
    if not 0 < float(sample_weight) < np.inf:
        raise ValueError(f"sample_weight must be above 0 and finite, got {sample_weight}")
    return None


def _weights(sample_weight: Any, rows: int) -> Any:
    if sample_weight is None:
        return None
    sample_weight = check_array(
        sample_weight, ensure_2d=False, ensure_min_samples=0, allow_nd=True, dtype=np.float64,
        ensure_all_finite=False, input_name="sample_weight",
    )  # fmt: skip
    if len(sample_weight) != rows:
        raise ValueError(f"sample_weight has {len(sample_weight):,} rows, and X has {rows:,}")
    return sample_weight


def plain(estimator: BaseEstimator, X: Any, reset: bool) -> Any:
    """Return local data as an array or CSR of numbers; values are inspected later."""
    frame = X if is_frame(X) else None
    if frame is not None:
        check_names(frame)
    defect = defect_of_structure(X)
    if defect is not None:
        raise ValueError(defect.replace("{place}", ""))
    if hasattr(X, "to_scipy_sparse") or (scipy.sparse.issparse(X) and X.ndim == 2):
        X = as_rows(X)
    try:
        X = validate_data(
            estimator, X, accept_sparse="csr", dtype="numeric", ensure_all_finite=False,
            reset=reset,
        )  # fmt: skip
    except (TypeError, ValueError):
        if frame is not None:
            check_columns(frame)  # it names the columns, if they are the reason
        raise
    if frame is not None and X.dtype.kind not in "biuf":
        check_columns(frame)
    return X


def check_found(estimator: BaseEstimator, summary: DataSummary, reset: bool) -> None:
    """Store or compare columns once partitions have been computed."""
    found: object = np.empty((1, summary.n_features))
    if summary.columns is not None:
        import pandas as pd

        found = pd.DataFrame(columns=list(summary.columns))
    validate_data(estimator, X=found, skip_check_array=True, reset=reset)
