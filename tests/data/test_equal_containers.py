"""The same rows give the same model in every container and dtype, or are refused alike."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
from sklearn.pipeline import make_pipeline

import dps
from dps.model_selection import train_test_split
from dps.preprocessing import FrameEncoder

RNG = np.random.default_rng(0)
ROWS, NAMES = 120, ["a", "b", "c"]
NUMBERS = RNG.normal(size=(ROWS, 3))
WHOLE = RNG.integers(0, 5, (ROWS, 3))
TARGETS = RNG.normal(size=ROWS)
VALUES: dict[str, Any] = {
    "float64": NUMBERS,
    "float32": NUMBERS.astype(np.float32),
    "int64": WHOLE,
    "int8": WHOLE.astype(np.int8),
    "uint64": WHOLE.astype(np.uint64),
    "bool": WHOLE > 2,
    "objects": NUMBERS.astype(object),
    "text": np.full((ROWS, 3), "x", object),
}


def frame(values: Any) -> pd.DataFrame:
    return pd.DataFrame(values, columns=NAMES)


def columns(values: Any) -> dict[str, list[Any]]:
    return dict(zip(NAMES, values.T.tolist(), strict=True))


CONTAINERS: dict[str, Callable[[Any], Any]] = {
    "nested lists": lambda values: values.tolist(),
    "columns first": np.asfortranarray,
    "masked": np.ma.masked_array,
    "csr": scipy.sparse.csr_array,
    "pandas": frame,
    "pandas nullable": lambda values: frame(values).convert_dtypes(),
    "pandas of arrow": lambda values: frame(values).convert_dtypes(dtype_backend="pyarrow"),
    "pyarrow": lambda values: pa.table(columns(values)),
    "dask array": lambda values: da.from_array(values, chunks=(40, 3)),
    "dask frame": lambda values: dd.from_pandas(frame(values), npartitions=3),
    "dask nullable": lambda values: dd.from_pandas(frame(values).convert_dtypes(), npartitions=3),
    "delayed": lambda values: [dask.delayed(values[at : at + 40]) for at in (0, 40, 80)],
}
if find_spec("polars"):
    import polars

    CONTAINERS["polars"] = lambda values: polars.DataFrame(columns(values))


def coefficients(X: Any) -> Any:
    of_dask = (isinstance(X, list) and hasattr(X[0], "key")) or dask.is_dask_collection(X)
    y = da.from_array(TARGETS, chunks=40) if of_dask else TARGETS
    model = dps.LinearRegressor(standardize=False, alpha=1e-2).fit(X, y)
    return np.append(model.coef_, model.intercept_)


@pytest.mark.parametrize("dtype", [*VALUES][:-1])
def test_coefficients_are_those_of_numpy(dtype: str) -> None:
    expected = coefficients(VALUES[dtype])
    for name, made in CONTAINERS.items():
        if dtype == "objects" and name in ("csr", "dask frame", "dask nullable"):
            continue  # SciPy and Dask do not keep objects: the frames hold text
        found = coefficients(made(VALUES[dtype]))
        np.testing.assert_allclose(found, expected, atol=1e-6 * abs(expected).max(), err_msg=name)


@pytest.mark.parametrize("name", ["columns first", "dask array", "delayed"])
def test_text_in_arrays_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"encode or convert it|could not convert string"):
        coefficients(CONTAINERS[name](VALUES["text"]))


def gaps() -> dict[str, Any]:
    """Booleans of which one is missing, beside numbers."""
    flags = [None, *(NUMBERS[1:, 0] > 0).tolist()]
    plain = {"flag": flags, "x": NUMBERS[:, 1]}
    nullable = pd.DataFrame(plain).astype({"flag": "boolean"})
    found = {
        "nullable": nullable,
        "objects": pd.DataFrame(plain).astype({"flag": object}),
        "arrow": nullable.convert_dtypes(dtype_backend="pyarrow"),
        "pyarrow": pa.table(plain),
    }
    if find_spec("polars"):
        found["polars"] = polars.DataFrame(plain)
    return found


def test_booleans_with_a_gap_are_the_same_in_every_table() -> None:
    y = (TARGETS > 0).astype(int)
    fitted = {name: dps.LinearClassifier().fit(X, y) for name, X in gaps().items()}
    for name, X in gaps().items():
        np.testing.assert_allclose(fitted[name].coef_, fitted["nullable"].coef_, err_msg=name)
        assert fitted["nullable"].score(X, y) == fitted[name].score(X, y)


def test_whole_numbers_with_a_gap_keep_their_digits() -> None:
    """As labels: two large ones are two classes."""
    y = [None, *(2**53 + np.arange(ROWS - 1) % 2).tolist()]
    for given in [pa.array(y), *([polars.Series(y)] if find_spec("polars") else [])]:
        with pytest.raises(ValueError, match=r"missing|NaN|NA"):
            dps.LinearClassifier().fit(NUMBERS, given)
        assert len(dps.LinearClassifier().fit(NUMBERS[1:], given[1:]).classes_) == 2


LABELS: dict[str, Any] = {
    "whole numbers": np.array([0, 3], object),
    "booleans": np.array([False, True], object),
    "both": np.array([True, 2], object),
    "strings of NumPy": np.array(["n", "y"], np.dtypes.StringDType()),
}


@pytest.mark.parametrize("kind", [*LABELS])
def test_labels_among_objects_are_fitted_scored_and_saved(kind: str) -> None:
    y = LABELS[kind][(TARGETS > 0).astype(int)]
    X, lazy = CONTAINERS["dask array"](NUMBERS), da.from_array(y, chunks=40)
    local, there = dps.LinearClassifier().fit(NUMBERS, y), dps.LinearClassifier().fit(X, lazy)
    assert local.classes_.tolist() == there.classes_.tolist() == LABELS[kind].tolist()
    assert local.score(NUMBERS, y) == there.score(X, lazy) > 0.5
    there.save("memory://labels")
    assert dps.load("memory://labels").score(NUMBERS, y) == local.score(NUMBERS, y)


def test_labels_beyond_64_bits_are_refused() -> None:
    y = np.array([1, 2**70], object)[(TARGETS > 0).astype(int)]
    X = CONTAINERS["dask array"](NUMBERS)
    for data in [(NUMBERS, y), (X, da.from_array(y, chunks=40))]:
        with pytest.raises(ValueError, match=r"holds 1180591620717411303424, .* as strings"):
            dps.LinearClassifier().fit(*data)


def test_one_weight_for_all_rows_is_none() -> None:
    y = (TARGETS > 0).astype(int)
    X, lazy = CONTAINERS["dask array"](NUMBERS), da.from_array(y, chunks=40)
    plain = dps.LinearClassifier().fit(X, lazy)
    weighed = dps.LinearClassifier().fit(X, lazy, sample_weight=2.0)
    np.testing.assert_array_equal(weighed.coef_, plain.coef_)
    assert weighed.score(X, lazy, sample_weight=0.5) == plain.score(X, lazy)
    with pytest.raises(ValueError, match="sample_weight must be above 0 and finite, got 0"):
        weighed.fit(X, lazy, sample_weight=0)


def test_encoders_and_splits_take_tables() -> None:
    text = np.where(NUMBERS[:, 0] > 0, "p", "q")
    y = (NUMBERS[:, 0] > 0).astype(int)
    tables = [pa.table({"x": NUMBERS[:, 1], "text": text})]
    if find_spec("polars"):
        tables.append(polars.DataFrame({"x": NUMBERS[:, 1], "text": text}))
        with pytest.raises(TypeError, match=r"give its \.collect\(\)"):
            dps.LinearClassifier().fit(tables[-1].lazy(), y)
    for table in tables:
        model = make_pipeline(FrameEncoder(), dps.LinearClassifier()).fit(table, y)
        assert model.score(table, y) == 1.0
        assert all(isinstance(part, type(table)) for part in train_test_split(table))


ARRAYS: dict[str, Any] = {
    "complex": lambda block: block + 5j,
    "text": lambda block: block.astype(str),
}
FRAMES: dict[str, Any] = {
    "array": lambda part: part.to_numpy(),
    "matrix": lambda part: scipy.sparse.csr_array(part.to_numpy()),
    "nothing": lambda part: None,
    "column": lambda part: part["a"],
}


@pytest.mark.parametrize("kind", [dps.LinearClassifier, dps.MLPClassifier])
@pytest.mark.parametrize("method", ["predict", "predict_proba"])
def test_blocks_that_are_not_as_promised_are_refused(kind: Any, method: str) -> None:
    y = (NUMBERS[:, 0] > 0).astype(int)
    X = da.from_array(NUMBERS, chunks=(40, 3))
    model = kind(max_iter=2, tol=None).fit(NUMBERS, y)
    for made in ARRAYS.values():
        with pytest.raises(ValueError, match=r"X in partition \d has dtype .*encode or conv"):
            getattr(model, method)(X.map_blocks(made, dtype=float)).compute()
    F = dd.from_pandas(frame(NUMBERS), npartitions=3)
    model = kind(max_iter=2, tol=None).fit(frame(NUMBERS), y)
    for made in FRAMES.values():
        odd = F.map_partitions(made, meta=F._meta, enforce_metadata=False)
        with pytest.raises(ValueError, match="where Dask was promised a dataframe"):
            getattr(model, method)(odd).compute()
