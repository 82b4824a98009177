"""Unusual but lawful input trains and scores as plain input does; unlawful input says so."""

from __future__ import annotations

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, Future, LocalCluster

import dps
from dps.data.collections.alignment import partitions_of

ROWS = 120
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 4))
Y = (X[:, 0] + RNG.logistic(size=ROWS) > 0).astype(int)
T = X @ np.array([1.0, 2.0, 0.0, 1.0]) + RNG.normal(size=ROWS)
WEIGHT = RNG.random(ROWS)
FRAME = pd.DataFrame(X, columns=list("abcd"))
BLOCKS, LABELS, TARGETS, WEIGHTS = (
    da.from_array(values, chunks=(40, *values.shape[1:])) for values in (X, Y, T, WEIGHT)
)


def unknown(array: Any) -> Any:
    """The same blocks with lengths that no one knows."""
    return array.map_blocks(
        lambda block: block, chunks=((np.nan,) * array.numblocks[0], *array.chunks[1:])
    )


def classifier(**options: Any) -> dps.LinearClassifier:
    return dps.LinearClassifier(
        **{"max_iter": 3, "tol": None, "shuffle": False, "n_replicas": 1, **options}
    )


def regressor(**options: Any) -> dps.LinearRegressor:
    return dps.LinearRegressor(max_iter=3, tol=None, shuffle=False, n_replicas=1, **options)


@pytest.mark.parametrize("dtype", ["Float64", "float64[pyarrow]"])
def test_nullable_columns_without_gaps_train_as_numpy_columns(dtype: str) -> None:
    frame = dd.from_pandas(FRAME.astype(dtype), npartitions=3)
    model = classifier().fit(frame, LABELS)
    np.testing.assert_allclose(model.coef_, classifier().fit(FRAME, Y).coef_)
    lazy = model.decision_function(frame)
    assert lazy.dtype == lazy.compute().dtype == np.float64
    np.testing.assert_allclose(lazy.compute(), model.decision_function(FRAME))


@pytest.mark.parametrize("dtype", ["Float64", "Int64", "boolean", "float64[pyarrow]"])
def test_gaps_of_nullable_columns_are_found_and_encoded(dtype: str) -> None:
    frame = (FRAME > 0).astype("int64").astype(dtype)
    frame.loc[50, "b"] = pd.NA
    model = classifier().fit(data := dd.from_pandas(frame, npartitions=3), LABELS)
    assert "missingindicator_b" in model.encoder_.get_feature_names_out()
    full = classifier().fit(dd.from_pandas(frame.ffill(), npartitions=3), LABELS)
    message = "holds NaN, in row 10 of column 'b'"
    with pytest.raises(ValueError, match=f"X in partition 1 {message}"):
        full.partial_fit(data, LABELS)
    with pytest.warns(UserWarning, match=r"none in the training rows: 'b' 1 of \d+ rows"):
        full.predict(data).compute()


@pytest.mark.parametrize("dtype", ["float16", ">f8", ">f4"])
def test_floats_that_no_kernel_reads_are_trained_in_float64(dtype: str) -> None:
    expected = classifier().fit(X.astype(dtype).astype(np.float64), Y).coef_
    for data, labels in ((X, Y), (BLOCKS, LABELS)):
        model = classifier().fit(data.astype(dtype), labels)
        assert model.coef_.dtype == np.float64
        np.testing.assert_allclose(model.coef_, expected)


def test_predictions_of_a_float32_model_have_the_dtype_they_announce() -> None:
    arrays = classifier().fit(X.astype(np.float32), Y)
    frames = classifier().fit(FRAME.astype(np.float32), Y)
    for kind in (np.float32, np.float64, np.int64):
        for model, data, local in (
            (arrays, BLOCKS.astype(kind), X.astype(kind)),
            (frames, dd.from_pandas(FRAME.astype(kind), npartitions=3), FRAME.astype(kind)),
        ):
            lazy = model.decision_function(data)
            expected = model.decision_function(local)
            assert lazy.dtype == lazy.compute().dtype == expected.dtype
            np.testing.assert_allclose(lazy.compute(), expected, rtol=1e-5, atol=1e-6)


def test_continuous_labels_are_refused_wherever_they_lie() -> None:
    for data, labels in ((X, T), (BLOCKS, TARGETS)):
        with pytest.raises(ValueError, match="row 0: that is no label but a continuous number"):
            classifier().fit(data, labels)
    assert classifier().fit(BLOCKS, LABELS * 1.0).classes_.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("gap", [None, np.nan, pd.NA, pd.NaT])
def test_a_missing_label_is_found(gap: Any) -> None:
    labels = np.array(["no", "yes"], dtype=object)[Y]
    labels[45] = gap
    with pytest.raises(ValueError, match="y in partition 1 holds a missing label, in row 5"):
        classifier().fit(BLOCKS, da.from_array(labels, chunks=40))


@pytest.mark.parametrize("dtype", ["object", "str", "category", "string[pyarrow]"])
def test_labels_of_any_column_type_score_as_locally(dtype: str) -> None:
    labels = pd.Series(np.array(["no", "yes"])[Y]).astype(dtype)
    frame, lazy = dd.from_pandas(FRAME, npartitions=3), dd.from_pandas(labels, npartitions=3)
    model = classifier().fit(frame, lazy)
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.score(frame, lazy) == pytest.approx(model.score(FRAME, labels.astype(object)))


def test_scores_take_any_mixture_of_known_unknown_and_local() -> None:
    model, line = classifier().fit(X, Y), regressor().fit(X, T)
    expected = model.score(X, Y, WEIGHT)
    for data, labels, weight in (
        (unknown(BLOCKS), LABELS, WEIGHTS), (BLOCKS, unknown(LABELS), WEIGHTS),
        (BLOCKS, Y, WEIGHT), (BLOCKS, Y.tolist(), WEIGHT.tolist()),
    ):  # fmt: skip
        assert model.score(data, labels, weight) == pytest.approx(expected)
    far = 1e6  # where a difference of squares would lose its digits
    line.intercept_ = line.intercept_ + far
    assert line.score(BLOCKS, TARGETS + far, WEIGHTS) == pytest.approx(
        line.score(X, T + far, WEIGHT), rel=1e-9
    )


def test_a_constant_target_scores_as_in_scikit_learn() -> None:
    model = regressor().fit(X, T)
    assert model.score(BLOCKS, da.ones(ROWS, chunks=40)) == model.score(X, np.ones(ROWS)) == 0.0


def test_scores_are_computed_by_the_client_that_was_given() -> None:
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        data, labels = client.persist([BLOCKS, LABELS])
        model = classifier(client=client).fit(data, labels)
        assert model.score(data, labels) == pytest.approx(model.score(X, Y))


def test_a_class_without_weight_is_balanced_as_if_absent() -> None:
    labels = np.where(np.arange(ROWS) < 20, 2, Y)
    weight = (labels != 2) * 1.0
    plain = {"standardize": False}  # by how much numbers vary does not depend on classes
    model = classifier(class_weight="balanced", **plain).fit(X, labels, weight)
    assert np.isfinite(model.coef_).all()
    counts = np.bincount(Y[20:])
    by_row = np.where(labels == 2, 0.0, len(Y[20:]) / (2 * counts[labels % 2]))
    np.testing.assert_allclose(model.coef_, classifier(**plain).fit(X, labels, by_row).coef_)


@pytest.mark.parametrize("factor", [-1.0, np.nan, np.inf])
def test_class_weights_are_finite_and_not_negative(factor: float) -> None:
    with pytest.raises(ValueError, match=r"class_weight.*not negative. Got \{0: "):
        classifier(class_weight={0: factor}).fit(X, Y)


def test_a_start_that_does_not_fit_the_data_is_refused() -> None:
    model = classifier(warm_start=True).fit(X, Y)
    with pytest.raises(ValueError, match=r"parameters was 5 and is now 4"):
        model.fit(X[:, :3], Y)
    with pytest.raises(ValueError, match=r"the fit before, or `classes`, differ in their"):
        classifier(warm_start=True).fit(X, Y).fit(X, np.array(["no", "yes"])[Y])
    with pytest.raises(
        ValueError,
        match="parameters was 5 and is now 4",
    ):
        classifier().fit(X, Y).set_params(fit_intercept=False).partial_fit(X, Y)


def test_local_weights_and_targets_name_the_row() -> None:
    bad = np.where(np.arange(ROWS) == 11, np.nan, 1.0)
    with pytest.raises(ValueError, match="sample_weight holds NaN, in row 11"):
        classifier().fit(X, Y, bad)
    with pytest.raises(ValueError, match="y holds NaN, in row 11"):
        regressor().fit(X, bad)


def test_what_lies_in_memory_is_found_behind_a_concatenation() -> None:
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        halves = [client.persist((BLOCKS[at], LABELS[at])) for at in (slice(80), slice(80, None))]
        joined = [da.concatenate(parts) for parts in zip(*halves, strict=True)]
        parts = partitions_of(*joined, None)
        assert all(isinstance(value, Future) for part in parts for value in (part.X, part.y))
        model = classifier().fit(*joined)
    np.testing.assert_array_equal(model.coef_, classifier().fit(BLOCKS, LABELS).coef_)
