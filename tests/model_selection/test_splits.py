"""Folds and splits of rows that users ask for, of data of Dask: scikit-learn's, where rows lie."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import sklearn.model_selection
from distributed import Client
from hypothesis import given, strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.model_selection import GroupKFold, PredefinedSplit, ShuffleSplit, TimeSeriesSplit

from dps import LinearRegressor
from dps.model_selection import GridSearchCV, cross_val_score, train_test_split
from dps.model_selection.splits import RowSplits

RNG = np.random.default_rng(0)
ROWS, CHUNKS = 240, (100, 0, 90, 50)
X = RNG.normal(size=(ROWS, 3))
Y = X @ [1.0, 2.0, 0.0] + RNG.normal(size=ROWS)
WEIGHT = RNG.integers(0, 3, ROWS).astype(float)
MODEL = LinearRegressor(tol=1e-9, alpha=1.0)


def lazy(values: Any, kind: str = "array") -> Any:
    if kind == "array":
        return da.from_array(values, chunks=(CHUNKS, *values.shape[1:]))
    pieces = np.split(values, np.cumsum(CHUNKS)[:-1])
    if kind == "list":
        return [dask.delayed(piece) for piece in pieces]
    make = pd.DataFrame if values.ndim > 1 else pd.Series
    return dd.from_delayed([dask.delayed(make)(piece) for piece in pieces], meta=make(values[:0]))


CV = {
    "predefined": PredefinedSplit(RNG.integers(-1, 3, ROWS)),
    "time": TimeSeriesSplit(3),
    "shuffled": ShuffleSplit(3, test_size=0.2, random_state=0),
    "pairs": [(np.arange(100), np.arange(120, 200)), (np.arange(50, 240), [0, 7, 3])],
    "masks": [(np.arange(ROWS) % 2 == 0, np.arange(ROWS) % 2 == 1)],
}


@pytest.mark.parametrize(
    ("cv", "kind"), [*zip(CV.values(), ["array", "frame", "list", "array", "frame"], strict=True)]
)
def test_folds_are_those_that_were_given(cv: Any, kind: str) -> None:
    pairs = cv if isinstance(cv, list) else [*cv.split(X)]
    expected = [
        MODEL.fit(X[train], Y[train], WEIGHT[train]).score(X[test], Y[test], WEIGHT[test])
        for train, test in pairs
    ]
    given = lazy(X, kind), lazy(Y, kind)
    params = {"sample_weight": lazy(WEIGHT, kind)}
    assert_allclose(cross_val_score(MODEL, *given, cv=cv, params=params), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "named"), [("array", True), ("frame", False), ("list", True), ("local", False)]
)
def test_rows_of_a_group_stay_together(kind: str, named: bool) -> None:
    numbers = RNG.integers(0, 9, ROWS)
    groups = np.array([f"group {number}" for number in numbers]) if named else numbers
    cv = GroupKFold(3)
    expected = [
        MODEL.fit(X[train], Y[train]).score(X[test], Y[test])
        for train, test in cv.split(X, groups=groups)
    ]
    of_rows = groups if kind == "local" else lazy(groups, kind)
    data = (lazy(X), lazy(Y)) if kind == "local" else (lazy(X, kind), lazy(Y, kind))
    assert_allclose(cross_val_score(MODEL, *data, cv=cv, groups=of_rows), expected, rtol=1e-6)
    search = GridSearchCV(MODEL, {"alpha": [1.0]}, cv=cv).fit(*data, groups=of_rows)
    assert_allclose(search.best_score_, np.mean(expected), rtol=1e-6)


def test_groups_that_do_not_go_with_the_rows_or_the_splitter_are_refused() -> None:
    data = lazy(X), lazy(Y)
    with pytest.raises(ValueError, match=r"groups has the shape \(7,\), and X has 240 rows"):
        cross_val_score(MODEL, *data, cv=GroupKFold(2), groups=np.arange(7))
    with pytest.raises(ValueError, match="groups has no effect with cv=PartitionKFold"):
        cross_val_score(MODEL, *data, groups=np.arange(ROWS))
    with pytest.raises(ValueError, match="GroupKFold with groups="):
        cross_val_score(MODEL, *data, cv=GroupKFold(2))


def test_a_search_is_fitted_to_all_rows_in_the_end(client: Client) -> None:
    model = LinearRegressor(tol=1e-9, client=client)
    search = GridSearchCV(model, {"alpha": [1e-3, 10.0]}, cv=iter([(range(50), range(50, 90))]))
    search.fit(lazy(X), lazy(Y))
    assert search.n_splits_ == 1
    assert search.best_estimator_.plan_.rows == ROWS


@pytest.mark.parametrize(
    ("cv", "message"),
    [
        ([([0, 1], [1, 2])], "trains on row 1 and scores on it"),
        ([([0, ROWS], [1])], "has row 240, X has rows 0 to 239"),
        ([([0, 0], [1])], "has a row twice"),
        ([([0.5], [1])], "must be two vectors of row numbers"),
        ([([], [1])], "must be two vectors of row numbers"),
        ([([True], [1])], "is a mask of 1 rows, X has 240"),
        ([], "holds no pairs"),
        ("all", "cannot split|holds no pairs"),
        (3.5, "cannot split rows by their numbers"),
    ],
)
def test_splits_of_other_rows_are_refused(cv: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cross_val_score(MODEL, lazy(X), lazy(Y), cv=cv)


def test_splits_that_cut_rows_into_crumbs_are_refused() -> None:
    pairs = [*ShuffleSplit(40, test_size=0.5, random_state=0).split(np.empty(300))]
    with pytest.raises(ValueError, match="up to 256 are sensible"):
        RowSplits.of(pairs, 300)


SIZES = [
    {}, {"test_size": 0.3}, {"train_size": 0.5}, {"test_size": 0.1, "train_size": 0.2},
    {"test_size": 7}, {"train_size": 11, "test_size": 100},
]  # fmt: skip


@given(
    sizes=st.sampled_from(SIZES), seed=st.integers(0, 2**31 - 1), stratified=st.booleans(),
    chunks=st.lists(st.integers(0, 90), min_size=1, max_size=5),
)  # fmt: skip
def test_each_row_goes_to_one_side_and_as_many_as_scikit_learn_gives(
    sizes: Any, seed: int, stratified: bool, chunks: list[int]
) -> None:
    cut = (*chunks, ROWS - min(ROWS, sum(chunks)) + 120)
    n = sum(cut)
    numbers, labels = np.arange(n), np.arange(n) % 3 == 0
    y = da.from_array(labels, chunks=(cut,))
    options = {"random_state": seed, **sizes}
    table = da.from_array(np.stack([numbers, numbers], axis=1), chunks=(cut, 1))
    parts = train_test_split(
        da.from_array(numbers, chunks=(cut,)), table, **options, stratify=y if stratified else None
    )
    expected = sklearn.model_selection.train_test_split(numbers, **options)
    known = [part.shape[0] for part in parts]
    train, test, *both = dask.compute(*parts)
    assert known == [len(train), len(test)] * 2 == [*map(len, expected)] * 2
    assert len({*train} | {*test}) == len(train) + len(test)
    for side, rows in zip((train, test), both, strict=True):
        assert_array_equal(rows, np.stack([side, side], axis=1))
        if stratified:
            share = len(side) / n
            assert abs(labels[side].sum() - labels.sum() * share) <= 2 * len(cut)


@pytest.mark.parametrize("kind", ["frame", "list", "unknown", "sparse"])
def test_where_lengths_are_unknown_each_partition_gives_its_share(kind: str) -> None:
    big = np.arange(6000)
    chunks = 2000
    numbers = np.stack([big, big], axis=1)
    made: Any = da.from_array(numbers, chunks=(chunks, 2))
    if kind == "frame":
        made = dd.from_pandas(pd.DataFrame(numbers, columns=["a", "b"]), npartitions=3)
    elif kind == "list":
        made = list(made.to_delayed().ravel())
    elif kind == "sparse":
        made = made.map_blocks(scipy.sparse.csr_array, meta=scipy.sparse.csr_array((1, 1)))
    else:
        made = made[made[:, 0] >= 0]
    train, test = train_test_split(made, test_size=0.2, random_state=1)
    sides = []
    for side in (train, test):
        parts = dask.compute(*side) if kind == "list" else [side.compute()]
        whole = [part.toarray() if hasattr(part, "toarray") else np.asarray(part) for part in parts]
        sides.append(np.concatenate(whole)[:, 0])
    assert sorted(np.concatenate(sides)) == big.tolist()
    assert abs(len(sides[1]) - 1200) <= 3
    assert type(train) is type(made)
    again = train_test_split(made, test_size=0.2, random_state=1)[1]
    if kind == "frame":
        assert_array_equal(again.compute(), test.compute())
        assert test.npartitions == 3


@pytest.mark.parametrize("kind", ["array", "frame", "list"])
@pytest.mark.parametrize("sizes", [{"test_size": 60}, {}, {"train_size": 120, "test_size": 0.1}])
def test_without_shuffling_the_last_rows_are_scored_on(kind: str, sizes: Any) -> None:
    """For all containers beside an array, whose lengths of partitions are known."""
    expected = sklearn.model_selection.train_test_split(X, Y, shuffle=False, **sizes)
    found = train_test_split(lazy(X), lazy(Y, kind), shuffle=False, **sizes)
    for side, rows in zip(found, expected, strict=True):
        made = np.concatenate(dask.compute(*side)) if isinstance(side, list) else side
        assert_array_equal(made, rows)


class Balanced:
    """A splitter of someone's own, which reads labels."""

    def split(self, X: Any, y: Any, groups: Any = None) -> Any:
        places = np.argsort(y, kind="stable")
        for fold in range(2):
            yield np.sort(places[1 - fold :: 2]), np.sort(places[fold::2])

    def get_n_splits(self, *given: Any) -> int:
        return 2


@pytest.mark.parametrize("kind", ["array", "frame"])
def test_a_splitter_of_ones_own_may_read_labels(kind: str) -> None:
    expected = sklearn.model_selection.cross_val_score(MODEL, X, Y, cv=Balanced())
    found = cross_val_score(MODEL, lazy(X, kind), lazy(Y, kind), cv=Balanced())
    assert_allclose(found, expected, rtol=1e-6)


def test_what_cannot_be_split_is_said() -> None:
    frame = lazy(X, "frame")
    with pytest.raises(ValueError, match="known lengths"):
        train_test_split(frame, test_size=10)
    with pytest.raises(ValueError, match="known lengths"):
        train_test_split(frame, shuffle=False)
    with pytest.raises(TypeError, match="array 1 is of the type ndarray"):
        train_test_split(lazy(X), Y)
    with pytest.raises(ValueError, match="array 1 has partitions of"):
        train_test_split(lazy(X), da.from_array(Y, chunks=(90, 0, 100, 50)))
    with pytest.raises(ValueError, match="array 1 has 2 partitions, array 0 has 4"):
        train_test_split(frame, dd.from_pandas(pd.Series(Y), npartitions=2))
    with pytest.raises(ValueError, match="test_size=2"):
        train_test_split(lazy(X), test_size=2.0)
