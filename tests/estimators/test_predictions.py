"""Predictions of each container: lazy, of the right form, and with one model in the graph."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from distributed import Client

from dps import LinearClassifier, LinearRegressor

ROWS, FEATURES = 60, 5
METHODS = ["predict", "predict_proba", "decision_function"]
NAMES = [f"f{number}" for number in range(FEATURES)]
INDEX = pd.date_range("2026-01-01", periods=ROWS, name="day")


def data() -> tuple[Any, Any]:
    X = np.random.default_rng(0).normal(size=(ROWS, FEATURES)).round(2)
    return X, np.array(["late", "on time"])[(X[:, 0] > 0).astype(int)]


def classifier(columns: bool = False) -> LinearClassifier:
    X, y = data()
    return LinearClassifier(max_iter=50).fit(pd.DataFrame(X, columns=NAMES) if columns else X, y)


def assert_same(actual: Any, expected: Any) -> None:
    """Labels are equal; numbers are up to the order of a sum, which a block's form decides."""
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)
    else:
        np.testing.assert_array_equal(actual, expected)


def sparse_blocks(X: Any) -> Any:
    return X.map_blocks(scipy.sparse.csr_array, meta=scipy.sparse.csr_array((0, 0)))


@pytest.mark.parametrize("method", METHODS)
def test_of_arrays_and_of_blocks_of_any_kind(method: str) -> None:
    X, _ = data()
    predict = getattr(classifier(), method)
    expected = predict(X)
    assert isinstance(expected, np.ndarray)
    assert_same(predict(scipy.sparse.csr_matrix(X)), expected)
    blocks = da.from_array(X, chunks=((10, 30, 20), (2, 3)))
    unknown = blocks.rechunk({1: -1}).map_blocks(np.asarray)
    unknown._chunks = ((np.nan,) * 3, unknown.chunks[1])
    for given in (blocks, sparse_blocks(blocks.rechunk({1: -1})), unknown):
        predicted = predict(given)
        assert isinstance(predicted, da.Array)
        assert predicted.dtype == predicted._meta.dtype == expected.dtype
        assert predicted.ndim == predicted._meta.ndim == expected.ndim
        np.testing.assert_equal(predicted.chunks[0], given.chunks[0])
        assert predicted.shape[1:] == expected.shape[1:]
        assert_same(predicted.compute(scheduler="sync"), expected)


@pytest.mark.parametrize("method", [*METHODS, "predict_log_proba"])
def test_of_lists_are_lists(method: str) -> None:
    X, _ = data()
    predict = getattr(classifier(), method)
    predicted = predict([dask.delayed(X[:20]), dask.delayed(scipy.sparse.csr_array(X[20:]))])
    assert_same(np.concatenate(dask.compute(*predicted, scheduler="sync")), predict(X))


@pytest.mark.parametrize("bad", [-np.inf, np.inf])
def test_of_values_that_are_not_finite_are_none(bad: float) -> None:
    X, _ = data()
    model, frames = classifier(), classifier(columns=True)
    X[25, 3] = bad
    frame = pd.DataFrame(X, columns=NAMES)
    with pytest.raises(ValueError, match=r"X holds inf.*in row 25"):
        model.predict(X)
    blocks = da.from_array(X, chunks=(20, -1))
    for predicted, message in (
        (model.predict(blocks), "X in partition 1 holds inf.*in row 5"),
        (model.predict(sparse_blocks(blocks)), "X in partition 1 holds inf.*in row 5"),
        (model.predict_proba([dask.delayed(X[20:])]), "X in partition 0 holds .* in row 5"),
        (
            frames.predict(dd.from_pandas(frame.astype("Float64"), npartitions=3)),
            "X in the partition with the index from 20 to 39 holds .* row 5 of column 'f3'",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            dask.compute(predicted, scheduler="sync")


@pytest.mark.parametrize("method", METHODS)
def test_of_dataframes_keep_index_and_divisions(method: str) -> None:
    frame = pd.DataFrame(data()[0], columns=NAMES, index=INDEX)
    model = classifier(columns=True)
    expected = getattr(model, method)(frame)
    assert isinstance(expected, np.ndarray)
    known = dd.from_pandas(frame, npartitions=3)
    for given in (known, known.clear_divisions()):
        predicted = getattr(model, method)(given)
        assert predicted.divisions == given.divisions
        computed = predicted.compute(scheduler="sync")
        pd.testing.assert_index_equal(computed.index, INDEX, exact="equiv")
        assert_same(computed.to_numpy(), expected)
        kind = pd.testing.assert_frame_equal if computed.ndim == 2 else (
            pd.testing.assert_series_equal
        )  # fmt: skip
        kind(computed.iloc[:0], predicted._meta, check_freq=False)
        if method == "predict_proba":
            assert list(predicted.columns) == ["late", "on time"]


# Of Dask's own calls.
@pytest.mark.filterwarnings("ignore:The inplace keyword in DataFrame")
def test_predictions_are_parquet_at_once(tmp_path: Path) -> None:
    frame = pd.DataFrame(data()[0], columns=NAMES)
    model = classifier(columns=True)
    dd.from_pandas(frame, npartitions=3).to_parquet(tmp_path / "in")
    given = dd.read_parquet(tmp_path / "in")
    late = model.predict_proba(given)["late"]
    given.assign(status=model.predict(given), late=late).to_parquet(tmp_path / "out")
    read = pd.read_parquet(tmp_path / "out")
    assert read["status"].tolist() == model.predict(frame).tolist()
    assert_same(read["late"], model.predict_proba(frame)[:, 0])


def test_predictions_go_on_in_blocks() -> None:
    X, _ = data()
    model = classifier()
    late = model.predict_proba(da.from_array(X, chunks=(20, -1))).map_blocks(
        lambda block: block[:, 0] > 0.5, dtype=bool, drop_axis=1
    )
    assert late.sum().compute(scheduler="sync") == (model.predict(X) == "late").sum()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("container", ["array", "dataframe"])
def test_the_model_is_once_in_the_graph(container: str, method: str) -> None:
    features = 3000
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(20, features)), columns=[f"f{n}" for n in range(features)])
    model = LinearClassifier(max_iter=2, tol=None).fit(X, np.arange(20) % 2)
    if container == "array":
        model = LinearClassifier(max_iter=2, tol=None).fit(X.to_numpy(), np.arange(20) % 2)
        given = da.zeros((40, features), chunks=(4, -1))
    else:
        given = dd.from_map(pd.DataFrame, [X.iloc[:0]] * 10, meta=X.iloc[:0])
    predicted = getattr(model, method)(given)
    for lazy in (predicted, *dask.optimize(predicted)):
        tasks = [pickle.dumps(task) for task in dict(lazy.dask).values()]
        assert len(tasks) > 10
        assert sum(model.coef_.tobytes() in task for task in tasks) == 1


@pytest.mark.parametrize("kind", [LinearClassifier, LinearRegressor])
def test_a_score_takes_a_few_numbers_of_each_partition(
    kind: Any, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, _ = data()
    target = (X[:, 0] > 0).astype(int)
    given = da.from_array(X, chunks=(20, -1)), da.from_array(target, chunks=20)
    model = kind(client=client).fit(*given)
    expected = model.score(X, target)
    gathered = []
    gather = client.gather
    monkeypatch.setattr(
        client, "gather", lambda *args, **how: gathered.append(gather(*args, **how)) or gathered[-1]
    )
    assert model.score(*given) == pytest.approx(expected)
    (sums,) = gathered
    assert len(sums) == 3
    assert all(np.size(value) == 1 for values, _ in sums for value in values)
    assert {len(values) for values, _ in sums} <= {2, 5}
