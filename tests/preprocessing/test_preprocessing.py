"""FrameEncoder: what scikit-learn's encoder makes of a frame, on any dtype and any partitions."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys
import warnings
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
from hypothesis import given, settings, strategies as st
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from versions import PANDAS

import dps
from dps import FMClassifier, FMRegressor, LinearClassifier, LinearRegressor, MLPRegressor
from dps.preprocessing import FrameEncoder

STRINGS = [
    "str", "object", "category", "string[python]", "string[pyarrow]", pd.ArrowDtype(pa.string()),
    pd.ArrowDtype(pa.dictionary(pa.int8(), pa.string())),
]  # fmt: skip
CITIES = ["Rome", "Oslo", None, "Rome", "Bonn", "Oslo"]
FRAME = pd.DataFrame(
    {
        "city": CITIES,
        "size": [1.5, np.nan, 2.0, 4.0, 0.0, 1.0],
        "hour": pd.Categorical([7, 9, 7, 8, 9, 7]),
        "tags": pd.Series([["a", "b", "a"], [], ["c"], None, ["b"], ["a"]]),
    }
)
FULL = FRAME.assign(city=["Rome", "Oslo", "Oslo", "Rome", "Bonn", "Oslo"], size=range(6))
FULL["tags"] = FULL["tags"].where(FULL["tags"].notna(), "x").map(list)


def parts(frame: pd.DataFrame, *cuts: int) -> Any:
    """A dask dataframe of the rows between the cuts; each partition has its own categories."""
    edges = [0, *cuts, len(frame)]
    pieces = [frame.iloc[a:b] for a, b in itertools.pairwise(edges)]
    for piece in pieces:
        for name in frame.columns[frame.dtypes == "category"]:
            own = piece[name].cat.remove_unused_categories()
            piece.isetitem(frame.columns.get_loc(name), own)
    return of_pieces(pieces)


def of_pieces(pieces: list[pd.DataFrame]) -> Any:
    """A dask dataframe of these partitions, whatever they hold."""
    with dask.config.set({"dataframe.convert-string": False}):  # it makes strings of lists
        return dd.from_map(lambda n: pieces[n], range(len(pieces)), meta=pieces[0][:0])


def dense(encoded: Any) -> Any:
    assert encoded.has_canonical_format
    return encoded.toarray()


values = st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=3))


@settings(max_examples=20)
@given(
    rows=st.lists(st.tuples(values, st.integers(0, 4)), min_size=1, max_size=20),
    cut=st.integers(0, 20),
)
def test_it_is_one_hot_as_in_scikit_learn(rows: list[Any], cut: int) -> None:
    frame = pd.DataFrame(rows, columns=["text", "kind"])
    frame["text"] = frame["text"].astype("str").where(frame["text"].notna())
    frame["kind"] = frame["kind"].astype("category")
    if frame["text"].isna().all():
        frame.loc[0, "text"] = "some"
    peer = OneHotEncoder()
    expected = peer.fit_transform(frame)
    encoder = FrameEncoder(missing="indicator")
    np.testing.assert_array_equal(dense(encoder.fit_transform(frame)), expected.toarray())
    np.testing.assert_array_equal(encoder.get_feature_names_out(), peer.get_feature_names_out())
    with dask.config.set(scheduler="synchronous"):
        lazy = FrameEncoder(missing="indicator").fit(parts(frame, min(cut, len(frame))))
    np.testing.assert_array_equal(lazy.get_feature_names_out(), peer.get_feature_names_out())
    np.testing.assert_array_equal(dense(lazy.transform(frame)), expected.toarray())


@pytest.mark.parametrize("dtype", STRINGS, ids=str)
@pytest.mark.parametrize(
    "options", [{}, {"n_buckets": 5}, {"n_buckets": 5, "interactions": [("s", "t")]}]
)
def test_strings_are_the_same_in_every_dtype(options: dict[str, Any], dtype: Any) -> None:
    frame = pd.DataFrame({"s": CITIES, "t": CITIES[::-1]})
    expected = FrameEncoder(missing="indicator", **options).fit_transform(frame)
    encoder = FrameEncoder(missing="indicator", **options)
    if dtype == "str" and PANDAS < (3, 0):
        pytest.skip("of pandas 3: before, None became text")
    typed = frame.astype({"s": dtype, "t": dtype})
    np.testing.assert_array_equal(dense(encoder.fit_transform(typed)), expected.toarray())
    np.testing.assert_array_equal(dense(encoder.transform(frame)), expected.toarray())
    pieces = dd.from_pandas(typed, npartitions=3)
    actual = encoder.transform(pieces)
    assert actual.shape[1] == actual.compute().shape[1] == encoder.n_features_out_
    assert isinstance(actual._meta, scipy.sparse.csr_matrix)
    np.testing.assert_array_equal(actual.compute().toarray(), expected.toarray())


@pytest.mark.parametrize(
    ("dtype", "encoded"),
    [
        ("float32", "float32"), ("float64", "float32"), ("float16", "float32"), (">f8", "float32"),
        ("int8", "float32"), ("int64", "float32"), ("uint16", "float32"), ("bool", "float32"),
        ("Int64", "float32"), ("boolean", "float32"), ("Float64", "float32"),
        ("int32[pyarrow]", "float32"), ("bool[pyarrow]", "float32"), ("double[pyarrow]", "float32"),
        (pd.SparseDtype("float64"), "float32"), (pd.ArrowDtype(pa.decimal128(25, 2)), "float32"),
    ],
    ids=str,
)  # fmt: skip
def test_numbers_are_themselves(dtype: Any, encoded: str) -> None:
    frame = pd.DataFrame({"a": pd.Series([0, 1, 1, 0]).astype(dtype), "b": ["x", "y", "x", "x"]})
    actual = FrameEncoder().fit_transform(frame)
    assert actual.dtype == encoded
    assert actual.indices.dtype == np.int32
    np.testing.assert_array_equal(dense(actual), [[0, 1, 0], [1, 0, 1], [1, 1, 0], [0, 1, 0]])


def test_float32_is_chosen_where_it_changes_no_value() -> None:
    for largest, dtype in ((1 << 24, "float32"), ((1 << 24) + 1, "float64")):
        for values in ([0, -largest], [largest, 0], [largest, np.nan]):
            assert FrameEncoder().fit(pd.DataFrame({"a": values})).dtype_ == dtype
    for values, dtype in (
        ([0.5, 1.0], "float64"),
        ([0.5, np.nan], "float64"),
        ([np.nan, 2.0], "float32"),
    ):
        frame = pd.DataFrame({"a": values})
        for data in (frame, dd.from_pandas(frame, npartitions=2)):
            assert FrameEncoder().fit(data).dtype_ == dtype
    assert FrameEncoder(dtype=np.float64).fit_transform(pd.DataFrame({"a": ["x"]})).dtype == float


@pytest.mark.parametrize("dtype", ["float64", "Int64", "double[pyarrow]", "boolean"])
def test_missing_numbers_become_the_mean(dtype: str) -> None:
    frame = pd.DataFrame({"a": pd.Series([0, None, 1, 1, 0], dtype="float").astype(dtype)})
    for data in (frame, dd.from_pandas(frame, npartitions=2)):
        filled = FrameEncoder(missing="mean").fit(data).transform(frame)
        np.testing.assert_array_equal(dense(filled)[:, 0], [0, 0.5, 1, 1, 0])
        said = FrameEncoder(missing="indicator").fit(data)
        np.testing.assert_array_equal(dense(said.transform(frame))[:, 1], [0, 1, 0, 0, 0])
        assert list(said.get_feature_names_out()) == ["a", "missingindicator_a"]


def test_decimals_are_numbers() -> None:
    values = [Decimal("1.25"), None, Decimal("-3.5"), Decimal(0)]
    expected = [1.25, -0.75, -3.5, 0.0]
    for dtype in (object, pd.ArrowDtype(pa.decimal128(10, 4))):
        frame = pd.DataFrame({"a": pd.Series(values, dtype=dtype)})
        # Dask makes strings of objects.
        for data in (frame, dd.from_pandas(frame, npartitions=2))[: 1 + (dtype is not object)]:
            filled = FrameEncoder(missing="mean").fit(data).transform(frame)
            np.testing.assert_array_equal(dense(filled)[:, 0], expected)


def test_missing_categories_and_lists_become_zeros_or_say_so() -> None:
    filled = FrameEncoder(missing="mean", n_buckets=4).fit(FRAME)
    zeros = dense(filled.transform(FRAME))
    assert zeros[2, :4].sum() == zeros[3, 9:].sum() == 0
    said = FrameEncoder(missing="indicator").fit(FRAME)
    names = list(said.get_feature_names_out())
    actual = dense(said.transform(FRAME))
    assert [names[column] for column in np.flatnonzero(actual[2, :4])] == ["city_nan"]
    assert np.flatnonzero(actual[:, names.index("missingindicator_tags")]).tolist() == [3]
    assert "hour_nan" not in names


def test_lists_are_counted() -> None:
    tags = FRAME[["tags"]]
    arrow = tags.astype({"tags": pd.ArrowDtype(pa.list_(pa.string()))})
    encoder = FrameEncoder(n_buckets=1 << 16, missing="mean").fit(tags)
    actual = encoder.transform(tags)
    assert actual[0].data.tolist() in ([2, 1], [1, 2])
    np.testing.assert_array_equal(np.ravel(actual.sum(axis=1)), [3, 0, 1, 0, 1, 1])
    for other in (arrow, tags.map(lambda row: row and tuple(row))):
        assert (encoder.transform(other) != actual).nnz == 0
    gappy = pd.DataFrame({"tags": [["a", None, "b", "a"], [None], ["c"], None, ["b"], ["a"]]})
    assert (encoder.transform(gappy) != actual).nnz == 0
    assert (encoder.transform(gappy.astype(arrow.dtypes)) != actual).nnz == 0


def test_buckets_are_the_same_in_a_process_that_knows_no_dask() -> None:
    frame = "pd.DataFrame({'a': ['x', 'y', 'z'], 'b': pd.Categorical([1, 2, 1])})"
    program = (
        "import sys, pandas as pd; from dps.preprocessing import FrameEncoder; "
        f"encoder = FrameEncoder(n_buckets=97, interactions=[('a', 'b')]);"
        f"print(encoder.fit_transform({frame}).indices);"
        "assert not {'dask', 'distributed'} & {*sys.modules}"
    )
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    here = FrameEncoder(n_buckets=97, interactions=[("a", "b")]).fit_transform(eval(frame))
    assert other.stdout.strip() == str(here.indices), other.stderr
    assert here.indices.tolist() == [77, 158, 280, 4, 145, 198, 46, 158, 208]


def test_numbers_of_a_category_hash_as_their_text() -> None:
    kinds = [pd.Categorical(v) for v in ([1, 2], [1.0, 2.0], ["1", "2"], pd.array([1, 2], "Int8"))]
    encoder = FrameEncoder(n_buckets=1000)
    buckets = [encoder.fit_transform(pd.DataFrame({"a": kind})).indices for kind in kinds]
    for other in buckets[1:]:
        np.testing.assert_array_equal(other, buckets[0])


def test_an_interaction_knows_pairs_and_their_order() -> None:
    frame = pd.DataFrame({"a": ["x", "y", "x", "y"], "b": ["y", "x", "x", None]})
    encoder = FrameEncoder(missing="mean", interactions=[("a", "b")])
    buckets = encoder.fit_transform(frame).tocsr()[:, 4:]
    assert buckets.shape[1] == 1 << 16
    assert len(set(buckets.indices)) == 3
    assert buckets.sum(axis=1).A1.tolist() == [1, 1, 1, 0]
    assert encoder.get_feature_names_out()[4] == "a:b#0"


@pytest.mark.parametrize("cuts", [(3,), (0, 2, 2, 5), (1, 2, 3, 4, 5), (6,)])
def test_partitions_make_no_difference(cuts: tuple[int, ...]) -> None:
    """Categories that only some partitions have, partitions without rows or without values."""
    for options in ({}, {"n_buckets": 8, "interactions": [("city", "hour")]}):
        whole = FrameEncoder(missing="indicator", **options).fit(FRAME)
        lazy = FrameEncoder(missing="indicator", **options).fit(parts(FRAME, *cuts))
        np.testing.assert_array_equal(lazy.get_feature_names_out(), whole.get_feature_names_out())
        encoded = lazy.transform(parts(FRAME, *cuts))
        assert encoded.dtype == encoded.compute().dtype == lazy.dtype_
        assert np.isnan(encoded.shape[0])
        np.testing.assert_allclose(encoded.compute().toarray(), dense(whole.transform(FRAME)))


def test_known_categories_keep_their_order_and_those_without_rows() -> None:
    kind = pd.CategoricalDtype(["small", "large", "huge"])
    frame = pd.DataFrame({"size": pd.Series(["large", "small", "large"], dtype=kind)})
    for data in (frame, dd.from_pandas(frame, npartitions=2)):
        names = FrameEncoder().fit(data).get_feature_names_out()
        assert list(names) == ["size_small", "size_large", "size_huge"]
    binned = FrameEncoder().fit(pd.DataFrame({"age": pd.cut([1, 5, 9], [0, 4, 10])}))
    assert list(binned.get_feature_names_out()) == ["age_(0, 4]", "age_(4, 10]"]


def test_what_is_unknown_in_transform_is_zero() -> None:
    encoder = FrameEncoder(missing="mean").fit(FULL.drop(columns="tags"))
    other = pd.DataFrame({"hour": pd.Categorical([7, 12]), "city": ["Ulm", "Oslo"], "size": [2, 3]})
    actual = dense(encoder.transform(other))  # columns are found by name
    np.testing.assert_array_equal(actual, [[0, 0, 0, 2, 1, 0, 0], [0, 1, 0, 3, 0, 0, 0]])
    as_numbers = other.assign(hour=[7, 12])
    np.testing.assert_array_equal(dense(encoder.transform(as_numbers)), actual)


@pytest.mark.parametrize(
    "options",
    [
        {"min_frequency": 3}, {"min_frequency": 0.15}, {"max_categories": 3},
        {"max_categories": 1}, {"min_frequency": 2, "max_categories": 4}, {"min_frequency": 1},
        {"max_categories": 9}, {"min_frequency": 100},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("unknown", ["ignore", "infrequent_if_exist"])
def test_infrequent_categories_share_a_column_as_in_scikit_learn(
    unknown: str, options: dict[str, Any]
) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "city": rng.choice(
                ["Bonn", "Graz", "Oslo", "Ulm", "Wien"], 40, p=[0.4, 0.3, 0.2, 0.05, 0.05]
            ),
            "hour": pd.Categorical(rng.integers(0, 5, 40)),
        }
    )
    frame.loc[0, "city"] = "U"
    other = pd.DataFrame({"city": ["R", "U", "B"], "hour": pd.Categorical([7, 1, 2])})
    peer = OneHotEncoder(handle_unknown=unknown, **options).fit(frame)
    for data in (frame, dd.from_pandas(frame, npartitions=4)):
        encoder = FrameEncoder(handle_unknown=unknown, **options).fit(data)
        names = [name.removesuffix("_sklearn") for name in peer.get_feature_names_out()]
        assert list(encoder.get_feature_names_out()) == names
        for rows in (frame, other):
            with warnings.catch_warnings(action="ignore"):  # of what is unknown
                expected = peer.transform(rows).toarray()
            np.testing.assert_array_equal(dense(encoder.transform(rows)), expected)


@pytest.mark.parametrize("rare", [1000, 1001])
def test_a_thousand_rare_categories_and_one_share_a_column(rare: int) -> None:
    values = [f"often{k % 3}" for k in range(9)] + [f"rare{k // 2}" for k in range(2 * rare)]
    frame = pd.DataFrame({"a": np.random.default_rng(0).permutation(values)})
    asked = FrameEncoder()
    if rare > 1000:
        asked = FrameEncoder(min_frequency=3, handle_unknown="infrequent_if_exist")
    expected = asked.fit(frame)
    new = pd.DataFrame({"a": ["often1", "rare7", "new", None]})
    for data in (frame, dd.from_pandas(frame, npartitions=5)):
        encoder = FrameEncoder(min_frequency="auto").fit(data)
        assert list(encoder.get_feature_names_out()) == list(expected.get_feature_names_out())
        np.testing.assert_array_equal(dense(encoder.transform(new)), dense(expected.transform(new)))
    strict = FrameEncoder(min_frequency="auto", handle_unknown="error").fit(frame)
    assert strict.n_features_out_ == 3 + rare


def test_linear_models_have_no_coefficient_for_each_rare_category(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = pd.Series([f"word{k}" for k in range(4000)])
    frame = pd.DataFrame({"a": rng.integers(5, size=4000).astype(str), "b": words})
    y = (frame["a"] > "2").to_numpy()
    model = LinearClassifier(random_state=0).fit(frame, y)
    assert model.coef_.shape == (1, 6)
    model.save(tmp_path / "model")
    loaded = dps.load(tmp_path / "model")
    coming = pd.DataFrame({"a": ["1", "3"], "b": ["new", "word7"]})
    np.testing.assert_array_equal(loaded.predict_proba(coming), model.predict_proba(coming))
    assert FMClassifier(max_iter=1).fit(frame, y).encoder_.n_features_out_ == 4005


@pytest.mark.parametrize("missing", ["indicator", "mean"])
def test_hashed_columns_share_their_buckets(missing: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"interactions": [("city", "hour")], "missing": missing}
    apart = FrameEncoder(n_buckets=1 << 20, **options).fit(FRAME)
    shared = FrameEncoder(n_buckets=1 << 20, shared=True, **options).fit(FRAME)
    pieces = of_pieces([FRAME[:2], FRAME[2:]])
    numbers = 1 + (missing == "indicator")
    assert shared.n_features_out_ == numbers + (1 << 20)
    assert list(shared.get_feature_names_out()[[0, -1]]) == ["size", "hashed#1048575"]
    rows = shared.transform(FRAME)
    # Every row stores the same values; a missing category is one of them, a missing list none.
    np.testing.assert_array_equal(np.sort(rows.data), np.sort(apart.transform(FRAME).data))
    again = FrameEncoder(n_buckets=1 << 20, shared=True, **options).fit(pieces).transform(pieces)
    assert abs(again.compute() - rows).nnz == 0
    # The same text in two columns is two values.
    twins = pd.DataFrame({"a": ["x", "y"], "b": ["x", "y"]})
    assert FrameEncoder(n_buckets=1 << 20, shared=True).fit_transform(twins).nnz == 4
    # In one bucket all add up.
    one = FrameEncoder(n_buckets=1, shared=True).fit(twins)
    np.testing.assert_array_equal(dense(one.transform(twins)), [[2.0], [2.0]])
    for columns in (["city", "size", "hour"], ["city", "hour", "size", "tags"], ["hour", "city"]):
        some = FRAME[columns]
        model = LinearClassifier(encoder=clone(shared), alpha=1.0).fit(some, [0, 1] * 3)
        model.save(tmp_path / "model")
        loaded = dps.load(tmp_path / "model")
        np.testing.assert_array_equal(loaded.predict_proba(some), model.predict_proba(some))
    # One hashed column, before a number.
    alone = LinearClassifier(encoder=FrameEncoder(n_buckets=8, shared=True), alpha=1.0)
    alone.fit(FRAME[["city", "size"]], [0, 1] * 3).save(tmp_path / "model")
    assert dps.load(tmp_path / "model").encoder_.n_features_out_ == alone.encoder_.n_features_out_


def test_an_unknown_category_may_be_an_error_that_names_it() -> None:
    frame = pd.DataFrame({"city": ["Bonn", "Oslo", "Bonn"], "size": [1.0, 2.0, 3.0]})
    encoder = FrameEncoder(handle_unknown="error", min_frequency=2).fit(frame)
    assert list(encoder.get_feature_names_out()) == ["city_Bonn", "city_infrequent", "size"]
    np.testing.assert_array_equal(dense(encoder.transform(frame))[:, :2], [[1, 0], [0, 1], [1, 0]])
    kind = pd.CategoricalDtype(["Bonn", "Oslo", "Rom"])  # of which no row has the last
    encoder.transform(frame.astype({"city": kind}))
    lazy = of_pieces([frame, frame.assign(city="Rom")])
    with pytest.raises(ValueError, match="'city' of X in partition 1 holds 'Rom', which it did"):
        encoder.transform(lazy).compute()
    X, y = frame.assign(size=[1.0, 2.0, 3.0]), [1.0, 2.0, 3.0]
    model = LinearRegressor(encoder=encoder).fit(X, y)
    with pytest.raises(ValueError, match="holds 'Rom'"):
        model.predict(X.assign(city="Rom"))


def test_it_is_cloned_pickled_and_put_in_a_pipeline() -> None:
    encoder = FrameEncoder(n_buckets=3, missing="mean", interactions=[("city", "hour")])
    assert clone(encoder).get_params() == encoder.get_params()
    copy = pickle.loads(pickle.dumps(encoder.fit(FRAME)))
    assert (copy.transform(FRAME) != encoder.transform(FRAME)).nnz == 0
    assert encoder.n_features_in_ == 4
    assert list(encoder.feature_names_in_) == list(FRAME.columns)
    pipeline = make_pipeline(encoder, LogisticRegression()).fit(FRAME, [0, 1, 0, 1, 1, 0])
    assert len(pipeline[:-1].get_feature_names_out()) == pipeline[-1].coef_.size
    assert pipeline.predict(FRAME).shape == (6,)


BAD = {
    "dates": (pd.to_datetime(["2001-01-01"]), r"\['c'\].*datetime64.*X\['c'\].dt.month"),
    "arrow dates": (pd.Series(["2001-01-01"]).astype("date32[day][pyarrow]"), "date32.*derive"),
    "durations": (pd.to_timedelta([1]), "timedelta64.*total_seconds"),
    "complex": ([1j], r"columns \['c'\] of X are neither.*complex128"),
    "mixed": (["a", 1], r"column 'c' of X holds strings and objects of the types \['int'\]"),
    "dates as objects": ([date(2001, 1, 1)], r"\['date'\].*pd.to_datetime\(X\['c'\]\)"),
    "dicts": ([{}], r"\['dict'\]"),
    "lists of dicts": ([[{}]], "lists whose items cannot be tokens"),
    "lists and strings": ([["a"], "a"], r"holds lists and objects of the types \['str'\]"),
    "mixed categories": (pd.Categorical([1, "a"]), r"categories of the types \['int', 'str'\]"),
    "infinity": ([1.0, np.inf], "infinity.*row 1 of column 'c'"),
    "nothing": ([None, None], "'c' of X has no value at all: drop it"),
    "no number": ([np.nan, np.nan], "'c' of X has no value at all: drop it"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_columns_are_named(what: str) -> None:
    column, message = BAD[what]
    with pytest.raises(ValueError, match=message):
        FrameEncoder().fit(pd.DataFrame({"c": column}))


@pytest.mark.parametrize("cut", [None, 2])
def test_all_that_is_wrong_with_a_frame_is_said_at_once(cut: int | None) -> None:
    frame = pd.DataFrame(
        {
            "when": pd.to_datetime(["2001-01-01"] * 4),
            "wait": pd.to_timedelta([1, 2, 3, 4]),
            "height": [1.0, np.nan, np.inf, np.nan],
            "width": [1.0, np.nan, 2.0, np.nan],
            "depth": [1.0, np.nan, 2.0, 3.0],
            "note": pd.Series([None] * 4, dtype=object),
            "mark": [np.nan] * 4,
            "phase": [1j] * 4,
            "ok": list("abcd"),
        }
    )
    with dask.config.set({"dataframe.convert-string": False}):
        data = frame if cut is None else parts(frame, cut)
    with pytest.raises(ValueError, match="cannot be encoded, for 6 reasons:") as caught:
        FrameEncoder(missing="error").fit(data)
    message = str(caught.value)
    assert "{place}" not in message
    for said in (
        "['when', 'wait'] of X hold dates or durations",
        'FrameEncoder(dates="parts")',
        "['phase'] of X are neither",
        f"X{'' if cut is None else ' in partition 1'} holds infinity (inf), in row",
        "missing values in 4 rows: 'width' 2, 'depth' 1; fill or drop",
        'encoder=dps.preprocessing.FrameEncoder(missing="mean")',
        "'note' of X has no value at all",
        "'mark' of X has no value at all",
    ):
        assert said in message


@pytest.mark.parametrize("data", ["frame of numbers", "frame of text", "nullable", "dask frame"])
@pytest.mark.parametrize("estimator", [LinearRegressor, MLPRegressor, FMRegressor])
def test_missing_numbers_of_frames_become_the_mean_and_a_column_that_says_so(
    data: str, estimator: Any
) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 2)), columns=["a", "b"])
    y: Any = frame["a"] + frame["b"]
    X: Any = frame.assign(a=frame["a"].where(frame.index % 7 != 0))
    X = X.assign(c=list("abc") * 20) if data == "frame of text" else X
    X = X.convert_dtypes() if data == "nullable" else X
    if data == "dask frame":
        X, y = dd.from_pandas(X, npartitions=3), dd.from_pandas(y, npartitions=3)
    options = {"random_state": 0, "max_iter": 3 if estimator is not LinearRegressor else 100}
    found = estimator(**options).fit(X, y)
    assert "missingindicator_a" in found.encoder_.get_feature_names_out()
    assert "missingindicator_b" not in found.encoder_.get_feature_names_out()
    told = estimator(encoder=FrameEncoder(missing="indicator"), **options).fit(X, y)
    np.testing.assert_array_equal(np.asarray(found.predict(X)), np.asarray(told.predict(X)))


@pytest.mark.parametrize("data", ["frame of text", "dask frame"])
def test_missing_numbers_that_are_refused_have_one_remedy(data: str) -> None:
    frame = pd.DataFrame({"a": [1.0, np.nan, 3.0], "b": [1.0, 2.0, np.nan]})
    X: Any = frame.assign(c=list("abc")) if data == "frame of text" else frame
    X = parts(frame) if data == "dask frame" else X
    y = da.from_array(np.arange(3.0), chunks=3) if data == "dask frame" else np.arange(3.0)
    with pytest.raises(ValueError, match="fill or drop") as caught:
        LinearRegressor(encoder=FrameEncoder(missing="error")).fit(X, y)
    assert 'FrameEncoder(missing="mean")' in str(caught.value)


TIMES = pd.Series(
    pd.to_datetime(["2001-12-31 23:30", "2001-12-31 08:00", None, "2002-01-01 00:00"]), name="when"
)


@pytest.mark.parametrize(
    "make",
    [
        lambda times: times.astype("datetime64[s]"),
        lambda times: times.astype("timestamp[us][pyarrow]"),
        lambda times: times.dt.tz_localize("Asia/Tokyo"),
        lambda times: times.dt.tz_localize("Asia/Tokyo").astype(
            pd.ArrowDtype(pa.timestamp("ns", "Asia/Tokyo"))
        ),
        lambda times: times.dt.to_period("min"),
    ],
    ids=["numpy", "arrow", "zone", "arrow zone", "period"],
)
@pytest.mark.parametrize("cut", [None, 1])
def test_dates_become_their_parts(make: Any, cut: int | None) -> None:
    frame = pd.DataFrame({"n": [1, 2, 3, 4], "when": make(TIMES.copy())})
    data = frame if cut is None else parts(frame, cut)
    encoder = FrameEncoder(dates="parts", missing="indicator").fit(data)
    named = pd.DataFrame(
        (encoder.transform(data) if cut is None else encoder.transform(data).compute()).toarray(),
        columns=encoder.get_feature_names_out(),
    )
    assert list(named) == [
        "n", "when_year_2001", "when_year_2002", "when_year_nan", "when_month_1", "when_month_12",
        "when_month_nan", "when_day_of_week_0", "when_day_of_week_1", "when_day_of_week_nan",
        "when_hour_0", "when_hour_8", "when_hour_23", "when_hour_nan", "when_days",
        "missingindicator_when_days",
    ]  # fmt: skip
    assert named["when_year_2001"].tolist() == [1, 1, 0, 0]
    assert named["when_hour_23"].tolist() == [1, 0, 0, 0]
    assert named["when_month_nan"].tolist() == [0, 0, 1, 0]
    assert named["missingindicator_when_days"].tolist() == [0, 0, 1, 0]
    zone = 9 / 24 if "Tokyo" in str(frame["when"].dtype) else 0
    expected = np.array([11687 + 23.5 / 24, 11687 + 8 / 24, 11688]) - zone
    assert named["when_days"].to_numpy()[[0, 1, 3]] == pytest.approx(expected, abs=2e-3)
    assert encoder.dtype_ == np.float32
    assert list(encoder.feature_names_in_) == ["n", "when"]


def test_durations_are_days_and_dates_of_arrow_have_no_hours() -> None:
    frame = pd.DataFrame(
        {
            "wait": pd.to_timedelta([36, 12], unit="h"),
            "day": pd.Series(["2001-01-01", "2001-02-01"]).astype("date32[day][pyarrow]"),
        }
    )
    encoder = FrameEncoder(dates="parts", interactions=[("day_month", "day_hour")], n_buckets=4)
    encoded = encoder.fit_transform(frame)
    assert encoded[:, 0].toarray().ravel().tolist() == [1.5, 0.5]
    assert [name for name in encoder.get_feature_names_out() if "days" in name] == [
        "wait_days", "day_days",
    ]  # fmt: skip


def test_dates_that_are_none_any_more_or_have_a_name_that_is_taken() -> None:
    frame = pd.DataFrame({"when": TIMES.dropna()})
    encoder = FrameEncoder(dates="parts").fit(frame)
    with pytest.raises(ValueError, match=r"has no \['when_year', .*pandas.to_datetime"):
        encoder.transform(frame.astype("str"))
    with pytest.raises(ValueError, match=r"columns named \['when_year'\]"):
        FrameEncoder(dates="parts").fit(frame.assign(when_year=1))


def test_missing_values_are_counted_by_column() -> None:
    message = "X has missing values in 6 rows: 'size' 1, 'tags' 1; fill or drop"
    for data in (FRAME, parts(FRAME, 2, 4)):
        with pytest.raises(ValueError, match=message):
            FrameEncoder(missing="error").fit(data)
    encoder = FrameEncoder(missing="error").fit(FULL[["size"]])
    message = "X in partition 0 has missing values in 2 rows: 'size' 1"
    with pytest.raises(ValueError, match=message):
        encoder.transform(parts(FRAME[["size"]], 2, 4)).compute()
    for missing in ("mean", "indicator"):
        with pytest.raises(ValueError, match="'c' of X has no value at all"):
            FrameEncoder(missing=missing).fit(pd.DataFrame({"c": [None, np.nan]}))


def test_a_missing_category_is_one_of_its_own() -> None:
    frame = pd.DataFrame({"city": ["b", None, "a", None], "n": [1, 2, 3, 4]})
    for data in (frame, parts(frame, 2)):
        encoder = FrameEncoder().fit(data)
        assert list(encoder.get_feature_names_out()) == ["city_a", "city_b", "city_nan", "n"]
        encoded = encoder.transform(frame).toarray()
        np.testing.assert_array_equal(encoded[:, :3], [[0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 0, 1]])
        hashed = FrameEncoder(n_buckets=4).fit(data)
        assert hashed.get_feature_names_out()[4] == "missingindicator_city"
        np.testing.assert_array_equal(hashed.transform(frame).toarray()[:, 4], [0, 1, 0, 1])
    # One that was never missing is zeros where it is, as any category that no one has seen.
    known = FrameEncoder().fit(frame.dropna())
    assert not known.transform(frame.assign(city=None).iloc[1:2]).toarray()[:, :2].any()


def test_frames_that_do_not_go_together_are_refused() -> None:
    encoder = FrameEncoder().fit(FULL.drop(columns="tags"))
    with pytest.raises(ValueError, match=r"yet now missing:\n- city"):
        encoder.transform(FULL[["size", "hour"]])
    with pytest.raises(ValueError, match=r"unseen at fit time:\n- tags"):
        encoder.transform(FULL)
    for change, message in (
        ({"size": "many"}, "'size' of X holds categories or strings, and held numbers"),
        ({"city": 3}, "'city' of X holds numbers, and held strings"),
        ({"city": pd.Categorical([3] * 6)}, "'city' of X holds numbers, and held strings"),
    ):
        with pytest.raises(ValueError, match=message):
            encoder.transform(FULL.drop(columns="tags").assign(**change))
    for one, other, message in (
        (["x"], [1], "0 holds categories, 1 holds numbers"),
        (
            pd.Categorical(["x"]),
            pd.Categorical([1]),
            "categories of strings, 1 holds .* of numbers",
        ),
    ):
        pieces = [pd.DataFrame({"c": values}) for values in (one, other)]
        frame = of_pieces(pieces)
        with pytest.raises(
            ValueError, match=f"column 'c' of X differs between partitions.*{message}"
        ):
            FrameEncoder().fit(frame)
    nothing = pd.DataFrame({"c": pd.Series([None], dtype=object)})
    with pytest.raises(ValueError, match=r"1 holds categories of strings, 2 holds .* of numbers"):
        FrameEncoder().fit(of_pieces([nothing, *pieces]))
    mixed = pd.DataFrame({"c": pd.Series(["x", "y", "x", 1], dtype=object)})
    with pytest.raises(ValueError, match="'c' of X in partition 1 holds strings and objects"):
        FrameEncoder().fit(parts(mixed, 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_buckets": 0}, "n_buckets.*Got 0"),
        ({"missing": "median"}, "missing.*Got 'median'"),
        ({"dtype": "int8"}, "dtype.*Got 'int8'"),
        ({"interactions": [("city",)]}, "two or more column names. Got \\('city',\\)"),
        ({"interactions": ["city"]}, "Got 'city'"),
        ({"min_frequency": 1.5}, "min_frequency.*Got 1.5"),
        ({"max_categories": 0}, "max_categories.*Got 0"),
        ({"handle_unknown": "warn"}, "handle_unknown.*Got 'warn'"),
        ({"n_buckets": 8, "min_frequency": 2}, "min_frequency=2 has no effect with n_buckets=8"),
        ({"interactions": [("city", "where")]}, "'where', which is no column"),
        (
            {"interactions": [("city", "size")]},
            r"'size' of X holds numbers: .*astype\('category'\)",
        ),
    ],
)
def test_parameters_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FrameEncoder(**options).fit(FULL)


def test_only_frames_with_columns_and_rows_are_encoded() -> None:
    with pytest.raises(TypeError, match="must be a dataframe of pandas or dask, got ndarray"):
        FrameEncoder().fit(np.ones((2, 2)))
    with pytest.raises(ValueError, match="X is a Series"):
        FrameEncoder().fit(FRAME["city"])
    with pytest.raises(ValueError, match=r"several columns named \['a'\]"):
        FrameEncoder().fit(pd.DataFrame([[1, 2]], columns=["a", "a"]))
    with pytest.raises(ValueError, match="0 sample"):
        FrameEncoder().fit(FULL[:0])
    with pytest.raises(ValueError, match="0 feature"):
        FrameEncoder().fit(FULL[[]])
    assert FrameEncoder().fit(FULL).transform(FULL[:0]).shape[0] == 0
    with pytest.raises(
        ValueError, match=r"2,147,483,649 encoded columns, up to .* lower n_buckets"
    ):
        FrameEncoder(n_buckets=1 << 30).fit(pd.DataFrame({"a": ["x"], "b": ["y"], "c": [1]}))
