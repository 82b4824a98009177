"""Encoding of dataframes that are not purely numeric, on the workers that hold them.

A partition is read once, and kept in a compact form until the encoder has learned from all
partitions. Then it is encoded, and only the result is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
from sklearn.base import clone
from sklearn.utils.validation import validate_data

from dps.data.collections.partitions import (
    columns_without_numbers,
    is_dask,
    is_frame,
    is_list,
    unmasked,
)
from dps.data.survey.defects import places
from dps.preprocessing import FrameEncoder
from dps.preprocessing.dtypes import check_frame

if TYPE_CHECKING:
    import pandas as pd
    from sklearn.base import BaseEstimator

    from dps.cluster.base import Cluster
    from dps.preprocessing.reader import FrameReader


@dataclass
class Encoding:
    """An encoder and its progress."""

    encoder: FrameEncoder
    fitted: bool  # whether it was fitted before, and stays as it is
    ours: bool = False  # whether it may choose logarithms
    reader: FrameReader | None = None  # reads partitions for the encoder to learn from

    def encode(self, frame: pd.DataFrame) -> Any:
        """Encode a pandas dataframe as CSR, whatever `set_output` says."""
        return self.encoder._encoded(frame, fit=not self.fitted)

    def prepare(self, X: Any) -> Callable[[Any, int], Any]:
        """Return a function that encodes a partition of a frame or array by its number."""
        change: Callable[..., Any]
        if self.fitted:
            change = self.encoder._layout
        else:
            example = X if is_frame(X) else as_frame(np.empty((0, X.shape[1]), X.dtype))
            change = self.reader = self.encoder._begin(example)
        return change if is_frame(X) else Framed(change)

    @property
    def unscaled(self) -> bool:
        """True if encoded values include unscaled numbers."""
        return self.encoder._layout.n_numbers > 0

    def complete(self, cluster: Cluster, trained: int) -> None:
        """Learn from the first partitions, which have been read, and encode all."""
        if self.reader is not None:
            self.encoder._learn(cluster.map(self.reader.reread, range(trained)))
            cluster.replace(self.encoder._layout)


def encoding_for(
    estimator: BaseEstimator, X: Any, going_on: bool, gaps: bool = False
) -> Encoding | None:
    """Return the encoding of `X`; None if it is not encoded.

    estimator: has `encoder`, and the `encoder_` of an earlier fit.
    going_on: whether training continues from coefficients for the columns of `encoder_`.
    gaps: whether numbers are missing; then arrays are encoded, too.
    Raises TypeError: an encoder was given, and `X` is not a dataframe.
    """
    if going_on:
        kept = getattr(estimator, "encoder_", None)
        return None if kept is None else Encoding(kept, fitted=True)
    if isinstance(estimator.encoder, FrameEncoder):
        if not is_frame(X):
            remedy = "give dask.dataframe.from_delayed(X)" if is_list(X) else "use encoder='auto'"
            raise TypeError(
                f"encoder={estimator.encoder!r} encodes dataframes, and X is of the type "
                f"{type(X).__name__}: {remedy}"
            )
        return Encoding(clone(estimator.encoder), fitted=False)
    if not is_frame(X):
        # An array has one coefficient per column, so there are no indicators of missing values.
        return Encoding(FrameEncoder(missing="mean"), fitted=False) if gaps else None
    if not (
        gaps
        or columns_without_numbers(X._meta if is_dask(X) else X)
        or (not is_dask(X) and X.isna().to_numpy().any())
    ):
        return None
    encoder = FrameEncoder(**estimator._encoder_parameters)
    return Encoding(encoder, fitted=False, ours=True)


@dataclass(frozen=True)
class Framed:
    """A step that encodes blocks of an array as dataframes."""

    change: Callable[..., Any]
    names: Sequence[Any] | None = None  # names of the columns of arrays, if not their positions

    def __call__(self, block: Any, number: int) -> Any:
        """Convert a block to a dataframe, and encode it."""
        return self.change(as_frame(block, self.names), number)


def as_frame(X: Any, names: Sequence[Any] | None = None) -> Any:
    """Return local rows as a dataframe; columns of an array are named by their positions."""
    if is_frame(X):
        return X
    import pandas as pd

    X = X.toarray() if scipy.sparse.issparse(X) else np.asarray(unmasked(X))
    return pd.DataFrame(X, columns=places(X.shape[1]) if names is None else names)


def positional(encoder: FrameEncoder) -> bool:
    """True if an encoder was fitted to an array, or will be."""
    if not encoder.__sklearn_is_fitted__():
        return True
    return list(encoder._layout.columns) == places(len(encoder._layout.columns))


def select(estimator: BaseEstimator, encoder: FrameEncoder, X: Any, reset: bool) -> Any:
    """Return the columns of `X` that the encoder was fitted to, by name and in any order.

    Columns of an array are found by position, if the encoder was fitted to an array.

    Raises ValueError: a column is missing or extra, in scikit-learn's words.
    """
    if is_list(X) and positional(encoder):  # its partitions are examined when they are read
        return X
    if not is_frame(X) and positional(encoder):
        X = X if is_dask(X) or scipy.sparse.issparse(X) else np.asarray(X)
        if X.ndim != 2:
            raise ValueError(f"X has {X.ndim} dimensions, two are wanted")
        validate_data(estimator, X=np.empty((1, X.shape[1])), skip_check_array=True, reset=reset)
        return X
    X = X if reset else encoder._ordered(X)
    meta = X._meta if is_dask(X) else X
    check_frame(meta)
    validate_data(estimator, X=meta, skip_check_array=True, reset=reset)
    return X


def index_of(names: Iterable[Any]) -> Any:
    """Return names as an index of pandas, with dtype object if Arrow cannot hold them as text."""
    import pandas as pd

    names = list(names)
    try:
        return pd.Index(names)
    except UnicodeEncodeError:  # a lone surrogate
        return pd.Index(names, dtype=object)


def coefficient_names(estimator: BaseEstimator) -> np.ndarray:
    """Return the names of the columns that the coefficients belong to."""
    if estimator.encoder_ is not None:
        return np.asarray(estimator.encoder_.get_feature_names_out())
    names = getattr(estimator, "feature_names_in_", None)
    if names is None:
        names = places(estimator.n_features_in_)
    return np.asarray(names, object)
