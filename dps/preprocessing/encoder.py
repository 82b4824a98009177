"""The encoder for users, with scikit-learn's interface for pandas and dask dataframes."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils._param_validation import Interval, RealNotInt, StrOptions
from sklearn.utils._set_output import _wrap_data_with_container
from sklearn.utils.validation import check_is_fitted, validate_data

from dps.data.collections.partitions import (
    as_pandas,
    is_dask,
    is_dask_frame,
    is_frame,
    is_list,
)
from dps.data.collections.parts import Parts
from dps.files.directories import write_directory
from dps.files.records import Kind, RecordWriter
from dps.preprocessing.dates import check_part_names
from dps.preprocessing.dtypes import check_frame, unfit_columns

if TYPE_CHECKING:
    from dps._typing import MatrixLike, PathLike, VectorLike
    from dps.preprocessing.layout import FrameLayout
    from dps.preprocessing.reader import FrameReader
    from dps.preprocessing.survey import FrameSurvey

#: Parameters for columns with one column per category, and their defaults.
_OF_CATEGORIES = {"handle_unknown": "ignore", "min_frequency": None, "max_categories": None}


class FrameEncoder(TransformerMixin, BaseEstimator, auto_wrap_output_keys=None):  # type: ignore[call-arg]
    """Encode dataframes with any columns as sparse rows of numbers.

    ==================================  ====================================================
    column                              becomes
    ==================================  ====================================================
    numbers, bool, nullable or arrow    one column, as it is
    category                            a column for each category, in their order
    strings                             a column for each string, sorted; or `n_buckets`
    lists of tokens, arrow lists        counts of tokens in `n_buckets`; with `lists` an int
                                        the tokens in order
    dates, durations                    their parts with ``dates="parts"``, else an error
    ==================================  ====================================================

    Rows are written as CSR, without a dense matrix. Convert whole numbers that are categories, such
    as an hour, with ``.astype("category")``. Numbers are not scaled; the estimators do that.

    `fit` reads Dask dataframes once, partition by partition, and only distinct values, sums and
    counts leave the workers. `transform` is lazy.

    Parameters
    ----------
    n_buckets : int or None, default=None
        Number of buckets into which the categories of each column are hashed, if there are too many
        for a column each. The bucket depends on the category's text alone, so it is the same in
        every process and for every dtype. None makes a column for each category, and 65,536 buckets
        for lists and interactions.
    missing : {"indicator", "mean", "error"}, default="indicator"
        Treatment of missing values. With "indicator" a missing number becomes the mean of the
        training rows, a missing list zeros, and a column ``missingindicator_age`` marks them if
        training rows had missing values; a missing category is a category, ``city_nan``, or
        ``missingindicator_city`` if categories are hashed. "mean" adds no such columns, and a
        missing category becomes zeros. With "error" numbers and lists may not be missing.
    lists : "counts" or int, default="counts"
        Treatment of lists of tokens. An int keeps that many tokens in order: numbers as they are,
        strings as bucket numbers from 1 on. It is for models that take columns
        (docs/howto/own_models.md).
    interactions : sequence of tuples of column names or None, default=()
        Combinations of the categories of two or more columns, hashed into `n_buckets`; zeros if one
        of them is missing.
    dates : {"error", "parts"}, default="error"
        Treatment of dates. "parts" makes ``when_year``, ``when_month``, ``when_day_of_week`` (0:
        Monday) and ``when_hour``, which are categories in their time zone, and ``when_days``, the
        days since 1970 in UTC, to three minutes. A duration has only the days.
    handle_unknown : {"ignore", "error", "infrequent_if_exist"}, default="ignore"
        Treatment of categories that `fit` has not seen: zeros, an error, or the column of
        infrequent categories if there is one.
    min_frequency : int, float, "auto" or None, default=None
        Categories with fewer rows than this, or than this share of the rows, go to one column,
        ``city_infrequent``, as in scikit-learn's `OneHotEncoder`. "auto" is 3 for columns that have
        more than 1,000 rarer categories, where it counts those that `fit` has not seen as
        infrequent, too; else None. It needs a `handle_unknown` that is no error.
    max_categories : int, default=None
        Maximal number of columns for the categories of a column, with the infrequent one.
    dtype : {"auto", "float32", "float64"} or dtype, default="auto"
        Dtype of the encoded values. "auto" is float32 if that changes no value (categories, counts,
        bool, float32, and whole numbers up to 2**24, also with gaps), else float64.
    shared : bool, default=False
        If True, all columns that are hashed share `n_buckets`, as all features of Vowpal Wabbit
        share the 2**18 of its ``-b 18``, and are one field of a factorization machine.
    logarithms : sequence of column names or None, default=()
        Columns of numbers with long tails, which become their logarithms, by `np.arcsinh`: of any
        sign, and zero at zero.

    Attributes
    ----------
    n_features_in_, feature_names_in_
        As in scikit-learn, of the dataframe.
    n_features_out_ : int
        Number of encoded columns.
    dtype_ : dtype
        Dtype of the encoded values.

    Examples
    --------
    >>> import pandas as pd
    >>> from dps.preprocessing import FrameEncoder
    >>> frame = pd.DataFrame({"origin": ["JFK", "LGA", "JFK"], "distance": [301, 2475, 762]})
    >>> encoder = FrameEncoder()
    >>> encoder.fit_transform(frame).toarray()
    array([[1.000e+00, 0.000e+00, 3.010e+02],
           [0.000e+00, 1.000e+00, 2.475e+03],
           [1.000e+00, 0.000e+00, 7.620e+02]], dtype=float32)
    >>> encoder.get_feature_names_out()
    array(['origin_JFK', 'origin_LGA', 'distance'], dtype=object)
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "n_buckets": [Interval(Integral, 1, 1 << 30, closed="both"), None],
        "missing": [StrOptions({"error", "indicator", "mean"})],
        "interactions": ["array-like", None],
        "lists": [Interval(Integral, 1, 1 << 24, closed="both"), StrOptions({"counts"})],
        "dates": [StrOptions({"error", "parts"})],
        "handle_unknown": [StrOptions({"ignore", "error", "infrequent_if_exist"})],
        "min_frequency": [
            Interval(Integral, 1, None, closed="left"),
            Interval(RealNotInt, 0, 1, closed="neither"),
            StrOptions({"auto"}),
            None,
        ],
        "max_categories": [Interval(Integral, 1, None, closed="left"), None],
        "dtype": "no_validation",
        "shared": ["boolean"],
        "logarithms": ["array-like", None],
    }

    _layout: FrameLayout
    _names: tuple[Any, ...]
    _unfit: list[str]

    def __init__(  # noqa: PLR0913 - public options
        self,
        n_buckets: int | None = None,
        *,
        missing: str = "indicator",
        lists: str | int = "counts",
        interactions: Sequence[Sequence[Any]] | None = (),
        dates: str = "error",
        handle_unknown: str = "ignore",
        min_frequency: float | Literal["auto"] | None = None,
        max_categories: int | None = None,
        dtype: Any = "auto",
        shared: bool = False,
        logarithms: Sequence[Any] | None = (),
    ) -> None:
        self.n_buckets = n_buckets
        self.missing = missing
        self.lists = lists
        self.interactions = interactions
        self.dates = dates
        self.handle_unknown = handle_unknown
        self.min_frequency = min_frequency
        self.max_categories = max_categories
        self.dtype = dtype
        self.shared = shared
        self.logarithms = logarithms

    def fit(self, X: MatrixLike, y: VectorLike | None = None) -> Self:
        """Learn categories, and the means of columns with missing values.

        Parameters
        ----------
        X : dataframe of pandas, dask, polars or pyarrow
        y : ignored

        Returns
        -------
        self

        Raises
        ------
        ValueError
            Columns cannot be encoded: all of them, in which partition, and what to do.
        TypeError
            `X` is no dataframe.
        """
        X = as_pandas(X)
        reader = self._begin(X)
        if is_dask(X):
            return self._learn(Parts(X).computed(reader.survey, None))
        return self._learn([reader.survey(X)], whole=True)

    def transform(self, X: MatrixLike) -> Any:
        """Encode.

        Parameters
        ----------
        X : dataframe of pandas, dask, polars or pyarrow
            With the columns of `fit`, in any order.

        Returns
        -------
        scipy.sparse.csr_matrix, or a lazy dask array of such blocks for a dask dataframe, whatever
        `set_output` says
        """
        check_is_fitted(self)
        X = self._ordered(as_pandas(X))
        validate_data(self, X=_meta(X), skip_check_array=True, reset=False)
        if is_dask(X):
            return Parts(X).csr(self._layout, self._layout.width, self.dtype_)
        return _wrap_data_with_container("transform", self._layout(X), X, self)

    def fit_transform(self, X: MatrixLike, y: VectorLike | None = None, **_: Any) -> Any:
        """Fit, then encode; a pandas dataframe is read once."""
        X = as_pandas(X)
        if is_dask(X):
            return self.fit(X).transform(X)
        return _wrap_data_with_container("transform", self._encoded(X, fit=True), X, self)

    def _encoded(self, X: Any, fit: bool) -> Any:
        """Encode a pandas dataframe as CSR, after fitting to it if requested."""
        if not fit:
            return self._layout(self._ordered(X))
        reader = self._begin(X)
        read = reader(X)
        self._learn([reader.look(read)], whole=True)
        return self._layout(read)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the encoded columns.

        ``origin_JFK`` for a category, ``origin#17`` for a bucket, ``origin:destination#17`` for
        one of an interaction, ``missingindicator_age`` for an indicator.

        Parameters
        ----------
        input_features : ignored
        """
        check_is_fitted(self)
        return np.array(self._layout.names(), object)

    def save(self, path: PathLike) -> None:
        """Write the encoder to a directory, from which :func:`dps.load` reads it.

        Nothing is pickled: the files hold numbers and texts.

        Parameters
        ----------
        path : str or path
            Directory on any file system of fsspec. What was saved there is replaced.

        Raises
        ------
        TypeError
            A parameter or category cannot be written.
        """
        writer = RecordWriter(encoder_kinds())
        write_directory(path, {"encoder": writer(self, "encoder")}, writer.arrays)

    # The interface for estimators, partition by partition.

    def _begin(self, X: Any) -> FrameReader:
        """Check the columns of a frame to learn from, without reading values."""
        self._validate_params()
        _check_interactions(self.interactions or ())
        for name, default in _OF_CATEGORIES.items():
            if self.n_buckets is not None and getattr(self, name) != default:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} has no effect with n_buckets={self.n_buckets}"
                    f", which has no column a category: use {name}={default!r} or n_buckets=None"
                )
        if str(self.dtype) != "auto" and np.dtype(self.dtype) not in (np.float32, np.float64):
            raise ValueError(
                "The 'dtype' parameter of FrameEncoder must be 'auto', float32 or float64. "
                f"Got {self.dtype!r} instead."
            )
        from dps.preprocessing.reader import FrameReader
        from dps.preprocessing.survey import SurveyFrame

        meta = _meta(X)
        check_frame(meta)
        validate_data(self, X=meta, skip_check_array=True)
        self._names = tuple(meta.columns)
        parts = self.dates == "parts"
        if parts:
            check_part_names(meta)
        # One error reports these defects together with all others.
        unfit, self._unfit = unfit_columns(meta, parts)
        names = tuple(name for name in self._names if name not in unfit)
        counts = self.min_frequency is not None or self.max_categories is not None
        survey = SurveyFrame(self.n_buckets is None, counts, tuple(self.logarithms or ()))
        return FrameReader(names, survey, parts, not isinstance(self.lists, str))

    def _learn(self, surveys: Sequence[FrameSurvey], whole: bool = False) -> Self:
        """Fit to the surveys of the frame's partitions."""
        from dps.preprocessing.learning import Options, make_layout
        from dps.preprocessing.survey import merge

        options = Options(
            self.n_buckets,
            self.missing,  # type: ignore[arg-type]
            self.interactions or (),
            "auto" if str(self.dtype) == "auto" else np.dtype(self.dtype).name,
            self.dates == "parts",
            self.lists if isinstance(self.lists, str) else int(self.lists),
            self.handle_unknown,  # type: ignore[arg-type]
            self.min_frequency,
            self.max_categories,
            bool(self.shared),
            tuple(self.logarithms or ()),
        )
        self._layout = make_layout(merge(surveys, whole), self._names, self._unfit, options)
        return self._learned()

    def _restored(self, layout: FrameLayout) -> Self:
        """Become the encoder that a layout belongs to."""
        self._layout, self._names = layout, layout.columns
        self.n_features_in_ = len(layout.columns)
        if all(isinstance(name, str) for name in layout.columns):
            self.feature_names_in_ = np.array(layout.columns, object)
        return self._learned()

    def _take_logarithms(self, names: Sequence[Any]) -> None:
        """Replace numbers by their logarithms from now on."""
        self.logarithms = tuple(names)
        self._layout = self._layout.with_logarithms(self.logarithms)

    def _learned(self) -> Self:
        self.n_features_out_ = self._layout.width
        self.dtype_ = np.dtype(self._layout.dtype)
        return self

    def _ordered(self, X: Any) -> Any:
        """Return a frame with its columns in the order of `fit`, if they are the same."""
        meta = _meta(X)
        check_frame(meta)
        names = list(meta.columns)
        same = names != list(self._names) and set(names) == set(self._names)
        return X[list(self._names)] if same else X

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_layout")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = tags.input_tags.string = tags.input_tags.allow_nan = True
        return tags


# `set_output` exists, and lazy output stays lazy: scikit-learn's own wrapper does not know Dask.
FrameEncoder._sklearn_auto_wrap_output_keys = {"transform"}


def encoder_kinds() -> list[Kind]:
    """Return the kinds of an encoder in files and of its parts; imports pandas."""
    from dps.preprocessing.saved import layout_kinds

    kind = Kind("encoder", FrameEncoder, ("parameters", "layout"), _fields, _encoder)
    return [*layout_kinds(), kind]


def _fields(encoder: FrameEncoder) -> dict[str, Any]:
    layout = encoder._layout if hasattr(encoder, "_layout") else None
    return {"parameters": encoder.get_params(deep=False), "layout": layout}


def _encoder(parameters: Any, layout: Any) -> FrameEncoder:
    from dps.preprocessing.layout import FrameLayout

    if not isinstance(parameters, dict):
        raise ValueError("parameters of the encoder are no dict")
    encoder = FrameEncoder(**parameters)
    if layout is None:
        return encoder
    if not isinstance(layout, FrameLayout):
        raise ValueError(f"the layout of the encoder is {layout!r}")
    return encoder._restored(layout)


def _meta(X: Any) -> Any:
    """Return a pandas dataframe with the columns of `X`."""
    if is_frame(X):
        return X._meta if is_dask(X) else X
    if is_dask_frame(X) or (hasattr(X, "iloc") and not is_dask(X)):
        raise ValueError("X is a Series: X.to_frame() makes a dataframe of one column")
    remedy = ""
    if is_list(X) or isinstance(X, np.ndarray):
        maker = "dask.dataframe.from_delayed" if is_list(X) else "pandas.DataFrame"
        remedy = f": {maker}(X) makes one"
    raise TypeError(f"X must be a dataframe of pandas or dask, got {type(X).__name__}{remedy}")


def _check_interactions(interactions: Any) -> None:
    for members in interactions:
        if isinstance(members, str) or len(members) < 2 or len(set(members)) < len(members):
            raise ValueError(
                "The 'interactions' parameter of FrameEncoder must hold tuples of two or more "
                f"column names. Got {members!r} instead."
            )
