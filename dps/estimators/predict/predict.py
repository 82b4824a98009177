"""Predictions: one function of a block of rows, applied to any container.

They are lazy for Dask collections, with their chunks, index and divisions, also unknown ones; for
other containers they are NumPy arrays.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from sklearn.utils.extmath import safe_sparse_dot

from dps._warned import warn
from dps.data.collections.partitions import check_columns, is_dask, is_frame, is_list
from dps.data.collections.parts import Parts, blocks_of
from dps.data.collections.sealed import identity, sealed
from dps.data.feed.blocks import as_rows, features_of
from dps.data.survey.defects import defect_of_features, defect_of_structure, gaps_message, places
from dps.errors import NonFiniteError
from dps.estimators.predict.tables import TablePredictor

if TYPE_CHECKING:
    import pandas as pd


#: Maps raw outputs (n, n_outputs) to predictions.
Finish = Callable[[NDArray[np.floating]], np.ndarray]


#: Number of parameters that is large.
_MANY = 1 << 20


class Raw(Protocol):
    """A trained model for predictions: raw outputs of a block of rows."""

    @property
    def n_features(self) -> int:
        """Columns that a block must have."""

    @property
    def dtype(self) -> Any:
        """Dtype of the parameters."""

    def __call__(self, X: Any) -> NDArray[np.floating]:
        """Return raw outputs (n, n_outputs) for an array or a CSR matrix."""


@dataclass(frozen=True, eq=False)
class FittedModel:
    """A model with its parameters; raw outputs are float32 if X is, else float64.

    Kernels compute in that dtype. For many parameters and encoded rows they compute in the dtype of
    training, because copying all parameters would take longer.
    """

    model: Any
    params: NDArray[np.floating]  # (n,)
    encoded: bool = False  # whether rows were encoded

    @property
    def n_features(self) -> int:
        """Columns that a block must have."""
        return self.model.n_features

    @property
    def dtype(self) -> Any:
        """Dtype of the parameters."""
        return self.model.dtype

    def __call__(self, X: Any) -> NDArray[np.floating]:
        """Return raw outputs (n, n_outputs) for an array or a CSR matrix."""
        model, made = self.model, np.float32 if X.dtype == np.float32 else np.float64
        if hasattr(model, "with_dtype"):
            trained = self.encoded and self.params.size > _MANY
            model = _in_this_thread(model, model.dtype if trained else np.dtype(made))
        rows = features_of(X, model.dtype).rows(0, X.shape[0], None)
        raw = model.raw(self.params.astype(model.dtype, copy=False), rows)
        return raw.astype(made, copy=False) if made == np.float64 else raw


_of_thread = threading.local()


def _in_this_thread(model: Any, dtype: np.dtype[Any]) -> Any:
    """Return the model in a dtype, with scratch memory of this thread."""
    if not hasattr(_of_thread, "models"):
        _of_thread.models = weakref.WeakKeyDictionary()
    made = _of_thread.models.setdefault(model, {})
    if dtype not in made:
        made[dtype] = model.with_dtype(dtype)
    return made[dtype]


@dataclass(frozen=True, eq=False)
class LinearRaw:
    """``X @ coef + intercept``."""

    coef: NDArray[np.floating]  # (n_features, n_outputs)
    intercept: NDArray[np.floating]  # (n_outputs,)
    propagates: ClassVar[bool] = True  # non-finite values of X give non-finite outputs

    @property
    def n_features(self) -> int:
        """Columns that a block must have."""
        return len(self.coef)

    @property
    def dtype(self) -> Any:
        """Dtype of the parameters."""
        return self.coef.dtype

    def __call__(self, X: Any) -> NDArray[np.floating]:
        """Return raw outputs (n, n_outputs) for an array or a CSR matrix."""
        with np.errstate(over="ignore", invalid="ignore"):  # the result is checked
            raw: NDArray[np.floating] = safe_sparse_dot(X, self.coef, dense_output=True)
            return raw + self.intercept


class Predictor(Protocol):
    """A function that predicts a block of rows."""

    def __call__(self, X: Any, place: str = "") -> np.ndarray:
        """Predict a block; `place` is its place in errors."""

    def example(self, like: Any) -> np.ndarray:
        """Predict a row of zeros, in the dtype of a container."""

    @property
    def model(self) -> Raw:
        """The trained model."""


@dataclass(frozen=True, eq=False)
class RawPredictor:
    """``finish(raw(X))`` for one block of rows."""

    raw: Raw  # the trained model
    finish: Finish  # maps raw outputs (n, n_outputs) to predictions
    # (n_features,) expected names of a dataframe's columns.
    names: np.ndarray | None = None
    # (n_features,) means of the training rows, which replace missing numbers.
    means: NDArray[np.float64] | None = None

    def __call__(self, X: Any, place: str = "") -> np.ndarray:
        """Predict a block: array, sparse matrix, or dataframe of numbers.

        Raises ValueError: it has other columns than the training data, a value is not finite, or a
            sparse matrix has indices out of bounds.
        """
        given = X = self.rows(X, place)
        if hasattr(X, "columns") and hasattr(X, "to_numpy"):
            if self.names is not None and list(X.columns) != list(self.names):
                raise ValueError(
                    f"the columns of X{place} are {[str(name) for name in X.columns]}, and were "
                    f"{[str(name) for name in self.names]} when the model was trained"
                )
            check_columns(X, f"{place}, and the model was trained on numbers")
            X = X.to_numpy(dtype=np.result_type(self.raw.dtype, _dtype_of(X)))
        raw = self.raw(X)
        # A linear model passes on non-finite values of X; other models clip numbers.
        bounded = not getattr(self.raw, "propagates", False)
        if not np.isfinite(raw).all() or (bounded and defect_of_features(X) is not None):
            dense = self.means is not None and not scipy.sparse.issparse(X)
            gaps = np.isnan(X) if dense else np.zeros((1, 1), bool)
            if not gaps.any():
                _refuse(defect_of_features(given), place)
            else:
                X = self._filled(X, gaps, place)
                _refuse(defect_of_features(X), place)
                raw = self.raw(X)
            _refuse_outputs(raw, bounded, place)
        with np.errstate(under="ignore", over="ignore"):  # probabilities may round to 0 and 1
            return self.finish(raw)

    def _filled(self, X: Any, gaps: NDArray[np.bool_], place: str) -> Any:
        """Replace missing values by means, with a warning."""
        columns = np.flatnonzero(gaps.any(axis=0))
        names = places(X.shape[1]) if self.names is None else self.names
        counts = ((names[j], int(gaps[:, j].sum())) for j in columns)
        warn(gaps_message(place, counts, len(X)), UserWarning, stacklevel=2)
        assert self.means is not None
        return np.where(gaps, self.means.astype(X.dtype), X)

    @property
    def model(self) -> Raw:
        """The trained model."""
        return self.raw

    def with_model(self, raw: Raw) -> RawPredictor:
        """Return the predictor with another model."""
        return replace(self, raw=raw)

    def rows(self, X: Any, place: str = "") -> Any:
        """Return a block with the model's columns.

        Raises ValueError: it has others, or a sparse matrix has indices out of bounds.
        """
        _refuse(defect_of_structure(X), place)
        X = as_rows(X)
        if X.ndim != 2:
            raise ValueError(f"X{place} has {X.ndim} dimensions, two are wanted")
        if not hasattr(X, "columns") and X.dtype.kind not in "biuf":
            _refuse(defect_of_features(X), place)
        expected = self.raw.n_features
        if X.shape[1] != expected:
            raise ValueError(f"X{place} has {X.shape[1]} features, but {expected} are expected")
        return X

    def example(self, like: Any) -> np.ndarray:
        """Predict a row of zeros, in the dtype of all predictions."""
        return self.finish(self.raw(np.zeros((1, self.raw.n_features), _dtype_of(like))))


@dataclass(frozen=True, eq=False)
class EncodedPredictor:
    """A predictor for dataframes, which it encodes first."""

    encode: Any  # maps a pandas dataframe and its place to CSR in `dtype`
    predict: RawPredictor

    def __call__(self, X: Any, place: str = "") -> np.ndarray:
        """Predict a dataframe."""
        return self.predict(self.encode(X, place))

    @property
    def model(self) -> Raw:
        """The trained model."""
        return self.predict.model

    def with_model(self, raw: Raw) -> EncodedPredictor:
        """Return the predictor with another model."""
        return replace(self, predict=self.predict.with_model(raw))

    def rows(self, X: Any, place: str = "") -> Any:
        """Encode a dataframe."""
        return self.encode(X, place)

    def example(self, like: Any) -> np.ndarray:
        """Predict a row of zeros."""
        return self.predict.example(np.empty(0, self.encode.dtype))


def apply_to(X: Any, predict: Predictor, columns: Sequence[Any] | None, client: Any = None) -> Any:
    """Apply a predictor to a container.

    X: NumPy array, sparse matrix, dask array, dask dataframe or list of partitions.
    columns: names of the columns of a two-dimensional prediction; None for a vector.
    client: its workers may hold a large table.
    Returns array, dask array, dask series or dask dataframe; a list of Delayed arrays for a list.
    """
    if not is_dask(X):
        return predict(X)
    import dask

    in_pieces = TablePredictor.of(predict, client)
    if in_pieces is not None:
        return _in_pieces(X, in_pieces, columns)
    # A task of its own, so that each worker gets the model once, and not each task.
    model = dask.delayed(sealed(identity, predict), pure=True)()
    if is_list(X):
        apply = dask.delayed(sealed(_predict_part), pure=False)
        return [apply(part, model, number) for number, part in enumerate(X)]
    if hasattr(X, "divisions"):
        meta = _meta(X, predict, columns)
        return X.map_partitions(sealed(_predict_frame), model, columns, meta=meta)
    X = Parts(X).values  # rechunked to whole rows
    predict_block, empty = sealed(_predict_block), predict.example(X)[:0]
    if columns is None:
        return X.map_blocks(predict_block, model, dtype=empty.dtype, drop_axis=1, meta=empty)
    chunks = (X.chunks[0], (len(columns),))
    return X.map_blocks(predict_block, model, dtype=empty.dtype, chunks=chunks, meta=empty)


def _in_pieces(X: Any, predict: TablePredictor, columns: Sequence[Any] | None) -> Any:
    """Return predictions of a model whose table is on workers."""
    parts = Parts(X)
    if parts.is_frame:
        import dask.dataframe as dd

        made = predict.parts(parts.tasks, partial(_predict_numbered_frame, columns))
        return dd.from_delayed(made, _meta(X, predict.base, columns), X.divisions)
    made = predict.parts(parts.tasks, _predict_part)
    if parts.is_list:
        return made
    wide, empty = () if columns is None else (len(columns),), predict.base.example(X)[:0]
    return blocks_of(made, parts.lengths, wide, empty.dtype, empty)


def _meta(X: Any, predict: Predictor, columns: Sequence[Any] | None) -> Any:
    """Predict a dataframe without rows."""
    import pandas as pd

    example = predict.example(X._meta)
    # pandas infers text from values, not from NumPy's dtype.
    one: Any = pd.Series(example) if columns is None else pd.DataFrame(example, columns=columns)
    return one.iloc[:0].set_axis(X._meta.index[:0])


def _dtype_of(X: Any) -> Any:
    """Return the dtype of a container's values in an array."""
    if not hasattr(X, "columns"):
        return X.dtype
    # Nullable and pyarrow dtypes name the NumPy dtype that they convert to.
    names = [getattr(dtype, "numpy_dtype", dtype) for dtype in X.dtypes]
    return np.result_type(*names)


def _refuse(defect: str | None, place: str) -> None:
    """Raise if there is a defect."""
    if defect is not None:
        raise ValueError(defect.replace("{place}", place))


def _refuse_outputs(raw: NDArray[np.floating], bounded: bool, place: str) -> None:
    """Raise if finite rows have raw outputs that are not finite.

    bounded: whether infinite outputs are errors; a linear model's sum may overflow.
    Raises NonFiniteError: the message names rows and values.
    """
    lost = ~np.isfinite(raw) if bounded else np.isnan(raw)
    odd = np.flatnonzero(lost.reshape(len(raw), -1).any(axis=1))
    if len(odd):
        raise NonFiniteError(
            f"the model's output is {raw[lost][0]} for {len(odd):,} of {len(raw):,} rows of "
            f"X{place}, the first in row {odd[0]}, though these are finite: does the model divide, "
            "or take a logarithm?"
        )


def _predict_part(part: Any, predict: Predictor, number: int) -> np.ndarray:
    return predict(part, f" in partition {number}")


def _predict_block(block: Any, predict: Predictor, block_id: tuple[int, ...]) -> np.ndarray:
    # Dask passes it to functions with this argument.
    return _predict_part(block, predict, block_id[0])


def _predict_numbered_frame(
    columns: Sequence[Any] | None, frame: pd.DataFrame, predict: Predictor, number: int
) -> Any:
    return _predict_frame(frame, predict, columns)


def _place_of(index: Any) -> str:
    """Describe a dataframe's partition by its index; Dask may read several as one."""
    if not len(index):
        return " in an empty partition"
    return f" in the partition with the index from {index[0]} to {index[-1]}"


def _predict_frame(frame: pd.DataFrame, predict: Predictor, columns: Sequence[Any] | None) -> Any:
    import pandas as pd

    if not is_frame(frame):
        raise ValueError(
            f"a partition of X is a {type(frame).__name__} where Dask was promised a dataframe: "
            "have the function that makes it return one"
        )
    values = predict(frame, _place_of(frame.index))
    if columns is None:
        return pd.Series(values, index=frame.index)
    return pd.DataFrame(values, index=frame.index, columns=columns)
