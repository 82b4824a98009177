"""Dataframes of strings, categories and gaps train as the matrix that they are encoded to."""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from conditions import until
from configure import configure
from distributed import Client, LocalCluster
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import OneHotEncoder

from dps import LinearClassifier, LinearRegressor
from dps.cluster.dask import DaskCluster
from dps.preprocessing import FrameEncoder

ROWS = 300
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "city": RNG.choice(["Bonn", "Oslo", "Rome"], ROWS),
        "hour": pd.Categorical(RNG.integers(0, 24, ROWS)),
        "size": RNG.integers(0, 50, ROWS),
    },
    index=np.arange(1000, 1000 + ROWS),
)
SIGNAL = (FRAME["city"] == "Oslo") * 2 + FRAME["hour"].astype(int) / 12 + FRAME["size"] / 25
Y = (SIGNAL + RNG.logistic(size=ROWS) > 2.5).astype(int)
T = SIGNAL + RNG.normal(size=ROWS)
HAND_MADE = scipy.sparse.hstack(
    [OneHotEncoder().fit_transform(FRAME[["city", "hour"]]), FRAME[["size"]].to_numpy()]
).astype(np.float32, copy=False)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def lazy(values: Any, npartitions: int = 3) -> Any:
    """As read from files: no one knows the categories."""
    frame = dd.from_pandas(values, npartitions=npartitions)
    if "hour" in getattr(values, "columns", ()):
        frame["hour"] = frame["hour"].astype(int).astype("category")
    return frame


@pytest.mark.parametrize("kind", [LinearClassifier, LinearRegressor])
def test_a_frame_trains_as_the_matrix_made_by_hand(kind: Any) -> None:
    y = Y if kind is LinearClassifier else T
    by_hand = kind(random_state=0).fit(scipy.sparse.csr_matrix(HAND_MADE), y)
    model = kind(random_state=0, standardize=False).fit(FRAME, y)
    np.testing.assert_array_equal(model.coef_, by_hand.coef_)
    np.testing.assert_array_equal(model.intercept_, by_hand.intercept_)
    np.testing.assert_array_equal(model.predict(FRAME), by_hand.predict(HAND_MADE))
    assert model.score(FRAME, y) == by_hand.score(HAND_MADE, y)
    assert model.n_features_in_ == 3
    assert list(model.feature_names_in_) == ["city", "hour", "size"]
    assert model.coef_.shape[-1] == 28


@pytest.mark.parametrize("where", ["threads", "cluster", "cluster, in memory"])
def test_partitions_train_as_one_frame(where: str, client: Client) -> None:
    expected = LinearClassifier(random_state=0).fit(FRAME, Y)
    X, y = lazy(FRAME), lazy(Y)
    if where == "cluster, in memory":
        X, y = client.persist([X, y])
    model = LinearClassifier(random_state=0, client=None if where == "threads" else client)
    model.fit(X, y)
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-3, atol=1e-4)
    if where == "cluster, in memory":
        X, y = lazy(FRAME), lazy(Y)
    for function in ("predict", "predict_proba", "decision_function"):
        predicted = getattr(model, function)(X)
        local = getattr(model, function)(FRAME)
        computed = predicted.compute(scheduler="synchronous")
        np.testing.assert_array_equal(computed, local)
        assert (computed.index == FRAME.index).all()
        assert predicted.divisions == X.divisions
        assert np.all(computed.dtypes == predicted.dtypes)
    assert model.score(X, y) == pytest.approx(model.score(FRAME, Y))


def test_only_encoded_partitions_stay_in_memory(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, looked = DaskCluster.launch, []

    def names(dask_worker: Any) -> list[str]:
        kept = (v if isinstance(v, tuple) else [v] for v in dask_worker.data.values())
        return [type(value).__name__ for values in kept for value in values]

    def held() -> Counter[str]:
        return Counter(name for found in client.run(names).values() for name in found)

    def looking(self: Any, *args: Any) -> Any:
        until(  # workers hear of it a moment later
            lambda: held()["DataFrame"] + held()["ReadFrame"] == 0 and held()["Series"] == 3,
            "what was encoded is given back",
        )
        looked.append(held()["csr_matrix"])
        return launch(self, *args)

    monkeypatch.setattr(DaskCluster, "launch", looking)
    LinearClassifier(client=client).fit(lazy(FRAME), lazy(Y))
    assert looked == [3]
    until(lambda: not client.cluster.scheduler.tasks, "everything is given back")


def test_frames_of_plain_numbers_are_trained_on_as_they_are() -> None:
    frame = pd.DataFrame({"a": SIGNAL, "b": FRAME["size"]})
    model = LinearClassifier(random_state=0).fit(frame, Y)
    same = LinearClassifier(random_state=0).fit(frame.to_numpy(), Y)
    assert model.encoder_ is None
    np.testing.assert_array_equal(model.coef_, same.coef_)
    assert LinearClassifier().fit(FRAME, Y).fit(frame, Y).encoder_ is None
    sparse = LinearClassifier(random_state=0, encoder=FrameEncoder()).fit(frame, Y)
    assert sparse.encoder_ is not None
    np.testing.assert_allclose(sparse.coef_, model.coef_, rtol=1e-2)


def test_an_encoder_that_is_given_is_cloned_and_searched(client: Client) -> None:
    gaps = FRAME.assign(size=FRAME["size"].where(FRAME["size"] > 3))
    encoder = FrameEncoder(missing="indicator", interactions=[("city", "hour")], n_buckets=32)
    model = LinearClassifier(encoder=encoder, random_state=0).fit(gaps, Y)
    assert not hasattr(encoder, "feature_names_in_")
    assert model.coef_.shape == (1, 3 * 32 + 2)
    there = LinearClassifier(encoder=encoder, random_state=0, client=client)
    there.fit(lazy(gaps), lazy(Y))
    np.testing.assert_allclose(there.coef_, model.coef_, rtol=1e-3, atol=1e-4)
    search = GridSearchCV(model, {"encoder__n_buckets": [None, 8]}, cv=2).fit(gaps, Y)
    assert search.best_estimator_.encoder_.n_buckets in (None, 8)
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.predict(gaps), model.predict(gaps))


def test_wide_interactions_beside_numbers_are_trained_by_lbfgs() -> None:
    """Stochastic steps, the default for wide rows of text, want features that are alike."""
    frame = pd.concat([FRAME] * 4, ignore_index=True).assign(far=lambda rows: rows["size"] * 1e3)
    y = np.tile(Y, 4)
    plain = LinearClassifier(random_state=0).fit(frame, y)
    crossed = LinearClassifier(
        random_state=0, encoder=FrameEncoder(interactions=[("city", "hour")])
    )
    assert crossed.fit(frame, y).coef_.size > 1 << 16
    assert crossed.loss_ < plain.loss_


def test_columns_are_found_by_name() -> None:
    model = LinearClassifier(random_state=0).fit(FRAME, Y)
    expected = model.predict(FRAME)
    np.testing.assert_array_equal(model.predict(FRAME[["size", "city", "hour"]]), expected)
    other = lazy(FRAME)[["hour", "size", "city"]]
    np.testing.assert_array_equal(model.predict(other).compute(), expected)
    for frame, message in (
        (FRAME.drop(columns="hour"), r"yet now missing:\n- hour"),
        (FRAME.assign(wind=1), r"unseen at fit time:\n- wind"),
    ):
        for X in (frame, dd.from_pandas(frame, npartitions=2)):
            with pytest.raises(ValueError, match=message):
                model.predict(X)
    with pytest.raises(TypeError, match="must be a dataframe of pandas or dask, got ndarray"):
        model.predict(np.ones((2, 3)))


def test_later_parts_keep_the_first_encoder(client: Client) -> None:
    """A category that comes later is ignored, as the coefficients have no place for it."""
    first, second = FRAME[FRAME["city"] != "Rome"], FRAME[FRAME["city"] == "Rome"]
    model = LinearClassifier(random_state=0, client=client)
    model.partial_fit(lazy(first), lazy(Y[first.index]), classes=[0, 1])
    names = list(model.encoder_.get_feature_names_out())
    for X, y in ((second, Y[second.index]), (lazy(second, 2), lazy(Y[second.index], 2))):
        model.partial_fit(X[["size", "hour", "city"]], y)
        assert list(model.encoder_.get_feature_names_out()) == names
    warm = LinearClassifier(warm_start=True).fit(first, Y[first.index]).fit(FRAME, Y)
    assert list(warm.encoder_.get_feature_names_out()) == names
    line = LinearRegressor().partial_fit(FRAME, T)
    with pytest.raises(TypeError, match="must be a dataframe"):
        line.partial_fit(HAND_MADE, T)
    plain = LinearRegressor().partial_fit(FRAME[["size"]], T)
    with pytest.raises(ValueError, match=r"columns \['size'\] of X hold no numbers"):
        plain.partial_fit(FRAME[["city"]].set_axis(["size"], axis=1), T)


def test_coefficients_have_names() -> None:
    model = LinearClassifier(random_state=0).fit(FRAME, Y)
    named = model.coefficients()
    assert named["city_Oslo"] == model.coef_[0, 1]
    assert named["city_Oslo"] > named["city_Bonn"]
    assert named.index[-1] == "size"
    several = LinearClassifier(random_state=0).fit(FRAME, np.where(FRAME["size"] > 40, "far", Y))
    assert several.coefficients().loc["size", "far"] == several.coef_[2, -1]
    assert several.coefficients().shape == (28, 3)
    numbers = FRAME[["size"]]
    assert list(LinearRegressor().fit(numbers, T).coefficients().index) == ["size"]
    assert list(LinearRegressor().fit(numbers.to_numpy(), T).coefficients().index) == ["x0"]


def test_what_cannot_be_encoded_is_refused_before_data_moves(client: Client) -> None:
    dates = FRAME.assign(day=pd.Timestamp("2001-01-01"))
    for X, y in ((dates, Y), (lazy(dates), lazy(Y))):
        with pytest.raises(ValueError, match=r"\['day'\].*X\['day'\].dt.month"):
            LinearClassifier(client=client).fit(X, y)
    twice = pd.concat([FRAME, FRAME["city"]], axis=1)
    with pytest.raises(ValueError, match=r"several columns named \['city'\]"):
        LinearClassifier().fit(twice, Y)
    with pytest.raises(TypeError, match="encodes dataframes, and X is of the type ndarray"):
        LinearClassifier(encoder=FrameEncoder()).fit(np.ones((ROWS, 2)), Y)
    with pytest.raises(ValueError, match=r"'encoder' parameter.*Got 'onehot'"):
        LinearClassifier(encoder="onehot").fit(FRAME, Y)


def test_what_is_wrong_in_a_partition_is_said(client: Client) -> None:
    gaps = FRAME.assign(size=FRAME["size"].where(FRAME.index < 1200))
    for X, y in ((gaps, Y), (lazy(gaps), lazy(Y))):
        with pytest.raises(ValueError, match="X has missing values in 300 rows: 'size' 100"):
            LinearClassifier(client=client, encoder=FrameEncoder(missing="error")).fit(X, y)
    far = FRAME.assign(size=np.where(FRAME.index == 1150, np.inf, 1.0))
    with pytest.raises(
        ValueError, match=r"X in partition 1 holds infinity.*row 50 of column 'size'"
    ):
        LinearClassifier(client=client).fit(lazy(far), lazy(Y))
    cut = da.from_array(Y.to_numpy(), chunks=((150, 50, 100),))
    with pytest.raises(ValueError, match="y in partition 0 has 150 rows, X has 100"):
        LinearClassifier(client=client).fit(lazy(FRAME), cut)


def delayed(values: Any) -> list[Any]:
    return [dask.delayed(values[start : start + 100]) for start in range(0, ROWS, 100)]


def test_a_list_of_frames_is_told_how_it_can_be_encoded() -> None:
    X, y = delayed(FRAME), delayed(Y)
    with pytest.raises(ValueError, match=r"\['city', 'hour'\] of X hold no numbers.*from_delayed"):
        LinearClassifier().fit(X, y)
    with pytest.raises(TypeError, match=r"type list: give dask\.dataframe\.from_delayed\(X\)"):
        LinearClassifier(encoder=FrameEncoder()).fit(X, y)
    model = LinearClassifier().fit(dd.from_delayed(X), y)
    for act in (lambda: model.predict(X), lambda: model.partial_fit(X, y)):
        with pytest.raises(TypeError, match=r"got list: dask\.dataframe\.from_delayed\(X\)"):
            act()
    with pytest.raises(TypeError, match="must be a dataframe of pandas or dask, got Delayed"):
        model.predict(X[0])
    with pytest.raises(ValueError, match=r"X is a Series: X.to_frame\(\)"):
        model.predict(dd.from_delayed(X)["city"])


def test_a_model_of_numbers_says_which_columns_are_none() -> None:
    numbers = FRAME[["size"]].assign(city=1.0)
    model, strings = LinearClassifier().fit(numbers, Y), FRAME[["size", "city"]]
    message = r"columns \['city'\] of X hold no numbers.* trained on numbers"
    lying = dd.from_delayed(delayed(strings), meta=numbers[:0], verify_meta=False)
    for act in (
        lambda: model.predict(strings),
        lambda: model.predict(lazy(strings)),
        lambda: model.partial_fit(strings, Y),
        lambda: model.partial_fit(lazy(strings), lazy(Y)),
        lambda: dask.compute(*model.predict(delayed(strings))),
        lambda: model.predict(lying).compute(scheduler="sync"),
    ):
        with pytest.raises(ValueError, match=message):
            act()


def test_what_is_wrong_with_later_partitions_has_a_place(client: Client) -> None:
    strict = {"encoder": FrameEncoder(missing="error"), "random_state": 0}
    model = LinearClassifier(client=client, **strict).fit(lazy(FRAME), lazy(Y))
    gaps = lazy(FRAME.assign(size=FRAME["size"].where(FRAME.index != 1250)))
    message = "missing values in 100 rows: 'size' 1"
    for estimator in (model, LinearClassifier(**strict).fit(FRAME, Y)):
        with pytest.raises(ValueError, match=f"X in partition 2 has {message}"):
            estimator.partial_fit(gaps, lazy(Y))
    where = f"X in the partition with the index from 1200 to 1299 has {message}"
    # A number would count computed partitions: a part of all, or several that are read as one.
    for predicted in (model.predict(gaps), model.predict(gaps).partitions[2]):
        with pytest.raises(ValueError, match=where):
            predicted.compute(scheduler="sync")


def test_numbers_that_are_missing_later_only_become_the_mean_with_a_warning() -> None:
    model = LinearClassifier(random_state=0).fit(FRAME, Y)
    gaps = FRAME.assign(size=FRAME["size"].where(FRAME.index % 100 != 50))
    filled = FRAME.assign(size=gaps["size"].fillna(FRAME["size"].mean()))
    with pytest.warns(UserWarning, match="had none in the training rows: 'size' 3 of 300 rows"):
        found = model.predict_proba(gaps)
    np.testing.assert_allclose(found, model.predict_proba(filled), rtol=1e-6)
    with pytest.warns(UserWarning, match="X in the partition with the index .* 'size' 1 of 100"):
        np.testing.assert_array_equal(
            model.predict_proba(lazy(gaps)).compute(scheduler="sync"), found
        )


def test_partitions_that_are_not_what_the_frame_announces(client: Client) -> None:
    twice = pd.concat([FRAME, FRAME["city"]], axis=1)
    for odd, message in (
        (twice, "X in partition 1 has several columns named 'city'"),
        (FRAME.to_numpy(), "X in partition 1 is a ndarray, and not a dataframe"),
        (FRAME.drop(columns="hour"), "X in partition 1 has no column 'hour'"),
    ):
        parts = [dask.delayed(FRAME), dask.delayed(odd)]
        X = dd.from_delayed(parts, meta=FRAME[:0], verify_meta=False)
        for where in (None, client):
            with pytest.raises(ValueError, match=message):
                LinearClassifier(client=where).fit(X, [dask.delayed(Y)] * 2)


def test_an_empty_partition_may_be_anything(client: Client) -> None:
    expected = LinearClassifier(random_state=0).fit(FRAME, Y)
    empty = (FRAME.iloc[:0].astype(float), pd.DataFrame(), FRAME.iloc[:0].astype("datetime64[ns]"))
    parts = [dask.delayed(part) for part in (empty[0], FRAME[:100], *empty[1:], FRAME[100:])]
    X = dd.from_delayed(parts, meta=FRAME[:0], verify_meta=False)
    y = [dask.delayed(Y[start:stop]) for start, stop in
         ((0, 0), (0, 100), (0, 0), (0, 0), (100, ROWS))]  # fmt: skip
    for where in (None, client):
        model = LinearClassifier(random_state=0, client=where).fit(X, y)
        np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-3, atol=1e-4)
        assert model.score(X, y) == pytest.approx(expected.score(FRAME, Y))
        assert model.partial_fit(X, y).history_[0]["rows"] == ROWS


@pytest.mark.parametrize("cache", ["memory", "disk", None])
def test_dates_are_encoded_on_the_way(cache: Any, client: Client) -> None:
    hours = pd.date_range("2001-01-01", periods=ROWS, freq="7h").as_unit("ns")
    frame = FRAME[["city"]].assign(when=hours)
    y = (hours.hour > 17).astype(int)
    data = dd.from_pandas(frame, npartitions=3), da.from_array(np.asarray(y), chunks=ROWS // 3)
    configure(cache=cache)
    model = LinearClassifier(client=client)
    with pytest.raises(ValueError, match=r"\['when'\] of X hold dates.*FrameEncoder\(dates="):
        model.fit(*data)
    model.set_params(encoder=FrameEncoder(dates="parts")).fit(*data)
    named = model.coefficients()
    assert min(named[f"when_hour_{hour}"] for hour in range(18, 24)) > named["when_hour_17"]
    assert "when_day_of_week_6" in named
    assert model.score(*data) == model.score(frame, y) == 1.0


def test_a_score_that_fails_leaves_nothing(client: Client) -> None:
    model = LinearClassifier(client=client).fit(lazy(FRAME), lazy(Y))
    with pytest.raises(
        ValueError, match="y_true in partition 1 has 99 rows, y_pred has 100"
    ) as caught:
        model.score(lazy(FRAME), [dask.delayed(Y[:n]) for n in (100, 99, 100)])
    deadline = time.monotonic() + 10
    while client.cluster.scheduler.tasks:
        assert time.monotonic() < deadline, caught
        time.sleep(0.02)


@pytest.mark.filterwarnings("ignore:The inplace keyword:DeprecationWarning")  # Dask's
def test_files_of_many_row_groups_are_cut_as_the_user_sees_them(tmp_path: Any) -> None:
    """Dask reads row groups together where few columns are wanted: of y other ones than of X."""
    path = tmp_path / "rows.parquet"
    FRAME.assign(y=Y, hour=FRAME["hour"].astype(int), unused=0.0, more="x").to_parquet(
        path, row_group_size=30, index=False
    )
    frame = dd.read_parquet(path, split_row_groups=True)
    X = frame[["city", "size"]].assign(hour=frame["hour"].astype("category"))
    model = LinearClassifier(random_state=0).fit(X, frame["y"])
    expected = LinearClassifier(random_state=0).fit(FRAME[["city", "size", "hour"]], Y)
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-3, atol=1e-4)
    model.predict_proba(X).rename(columns=str).to_parquet(tmp_path / "out")
    assert len(pd.read_parquet(tmp_path / "out")) == ROWS


@pytest.mark.parametrize("library", ["pyarrow", "polars"])
def test_tables_of_other_libraries_are_taken_as_pandas_has_them(library: str) -> None:
    made = pytest.importorskip(library)
    plain = FRAME[["city", "size"]].astype({"city": str})
    of = made.Table.from_pandas if library == "pyarrow" else made.from_pandas
    X = of(plain)
    y = made.array(Y) if library == "pyarrow" else made.from_pandas(Y)
    ours, theirs = (LinearClassifier(random_state=0).fit(*data) for data in ((X, y), (plain, Y)))
    np.testing.assert_array_equal(ours.coef_, theirs.coef_)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(plain))
    assert ours.score(X, y) == theirs.score(plain, Y)
