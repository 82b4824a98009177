"""``alpha="cv"`` finds the strength that serves held-out rows, wherever the rows are."""

from __future__ import annotations

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from distributed import Client, LocalCluster
from sklearn.base import clone
from sklearn.linear_model import LassoCV, RidgeCV
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler
from versions import SKLEARN

import dps

RNG = np.random.default_rng(0)
ROWS = 400
X = RNG.normal(size=(ROWS, 60)) * np.geomspace(0.01, 100, 60)
Z = StandardScaler().fit_transform(X)
NOISY = Z[:, :10] @ RNG.normal(size=10) + 8 * RNG.normal(size=ROWS)
CLEAR = Z @ RNG.normal(size=60) + 0.01 * RNG.normal(size=ROWS)
Y = (Z[:, :10] @ RNG.normal(size=10) + 2 * RNG.logistic(size=ROWS) > 0).astype(int)


def regressor(**options: Any) -> dps.LinearRegressor:
    return dps.LinearRegressor(alpha="cv", random_state=0, **options)


def strengths(model: Any) -> Any:
    """Those that were tried, as multiples of one over the rows."""
    return model.alpha_path_[:, 0] * ROWS


def test_noise_asks_for_a_strong_penalty_and_its_absence_for_a_weak_one() -> None:
    noisy, clear = regressor().fit(X, NOISY), regressor().fit(X, CLEAR)
    peers = [RidgeCV(np.geomspace(1e-6, 1e6, 49)).fit(Z, y) for y in (NOISY, CLEAR)]
    assert clear.alpha_ * ROWS <= 0.1 < 10 <= noisy.alpha_ * ROWS
    assert abs(np.log10(noisy.alpha_ * ROWS / peers[0].alpha_)) <= 1.0
    assert peers[1].alpha_ <= 0.1
    for model in (noisy, clear):
        assert model.standardize_
        path = model.alpha_path_[model.alpha_path_[:, 2] == 1]
        # Of all that lose less than 1% more than the best, it is the nearest to "auto".
        good = path[path[:, 1] <= 1.01 * path[:, 1].min(), 0]
        assert model.alpha_ == good[np.abs(np.log10(good * ROWS)).argmin()]
        assert (np.diff(path[:, 0]) < 0).all()
        assert 1.0 in strengths(model).round(9)
        # The model is that of all rows at that strength.
        same = (
            clone(model).set_params(alpha=model.alpha_).fit(X, NOISY if model is noisy else CLEAR)
        )
        np.testing.assert_array_equal(model.coef_, same.coef_)
        assert not hasattr(same, "alpha_path_")


def test_l1_is_that_of_lasso_cv() -> None:
    model = regressor(penalty="l1").fit(X, NOISY)
    peer = LassoCV(**{"alphas" if SKLEARN >= (1, 7) else "n_alphas": 25}).fit(Z, NOISY)
    assert abs(np.log10(model.alpha_ / peer.alpha_)) <= 1.0
    assert 5 <= (model.coef_ == 0).sum() < 60


def containers(kind: str) -> tuple[Any, Any]:
    words = np.where(NOISY > 0, "up", "down")
    frame = pd.DataFrame(X, columns=[f"x{i}" for i in range(60)]).assign(word=words)
    return {
        "csr": lambda: (scipy.sparse.csr_array(Z), Y),
        "frame": lambda: (frame, Y),
        "chunks": lambda: (da.from_array(X, chunks=(90, 60)), da.from_array(Y, chunks=90)),
        "partitions": lambda: (
            dd.from_pandas(frame, npartitions=4), dd.from_pandas(pd.Series(Y), npartitions=4)
        ),
        "list": lambda: ([X[:100], X[100:]], [Y[:100], Y[100:]]),
    }[kind]()  # fmt: skip


@pytest.mark.parametrize("kind", ["csr", "frame", "chunks", "partitions", "list"])
def test_rows_may_be_anywhere(kind: str) -> None:
    data, labels = containers(kind)
    model = dps.LinearClassifier(alpha="cv", random_state=0)
    if kind == "list":
        from dask import delayed

        data, labels = [delayed(part) for part in data], [delayed(part) for part in labels]
    model.fit(data, labels)
    assert len(model.alpha_path_) >= 3
    assert np.isfinite(model.alpha_path_).all()
    assert model.alpha_ > 1 / ROWS


def test_fits_that_are_compared_stay_in_this_process() -> None:
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster),
    ):
        blocks = da.from_array(X, chunks=(100, 60))
        model = regressor(n_replicas=2).fit(blocks, NOISY)
        assert {rank.worker for rank in model.plan_.ranks} == set(cluster.scheduler.workers)
    alone = regressor().fit(X, NOISY)
    np.testing.assert_allclose(model.alpha_path_, alone.alpha_path_, rtol=0.05)


@pytest.mark.parametrize(
    "options",
    [{"early_stopping": True}, {"mode": "async"},
     {"optimizer": "adam", "learning_rate": 0.05, "tol": 1e-6},
     {"loss": "huber"}, {"warm_start": True}, {"fit_intercept": False}],
)  # fmt: skip
def test_other_parameters_are_those_of_the_fit(options: dict[str, Any]) -> None:
    model = regressor(**{"tol": 1e-3, **options}).fit(X, NOISY)
    assert model.alpha_ in model.alpha_path_[:, 0]
    # A fit that stops early needs less of a penalty.
    assert model.alpha_ * ROWS >= 3 or model.early_stopping


def test_weights_several_targets_rare_classes_and_given_rows() -> None:
    weight = RNG.integers(0, 3, ROWS).astype(float)
    weighted = regressor().fit(X, NOISY, weight)
    assert weighted.alpha_ * weight.sum() >= 3
    several = regressor().fit(X, np.c_[NOISY, CLEAR])
    assert several.coef_.shape == (2, 60)
    rare = np.where(np.arange(ROWS) == 7, 2, Y)
    model = dps.LinearClassifier(alpha="cv", class_weight="balanced", random_state=0)
    assert model.fit(X, rare).classes_.tolist() == [0, 1, 2]
    given = regressor().fit(X[:200], NOISY[:200], X_val=X[200:], y_val=NOISY[200:])
    best = dps.LinearRegressor(alpha=given.alpha_, tol=1e-2).fit(X[:200], NOISY[:200])
    missed = np.mean((best.predict(X[200:]) - NOISY[200:]) ** 2) / 2
    assert given.alpha_path_[given.alpha_path_[:, 0] == given.alpha_, 1] == pytest.approx(
        missed, rel=1e-3
    )


def test_what_was_seen_is_saved(tmp_path: Any) -> None:
    model = regressor().fit(X, NOISY)
    model.save(tmp_path / "model")
    loaded = dps.load(tmp_path / "model")
    assert (loaded.alpha, loaded.alpha_) == ("cv", model.alpha_)
    assert loaded.standardize_ is model.standardize_ is True
    np.testing.assert_array_equal(loaded.alpha_path_, model.alpha_path_)


def test_what_has_no_rows_or_no_penalty_to_choose_is_refused() -> None:
    with pytest.raises(ValueError, match=r"alpha='cv' chooses .* partial_fit sees a part"):
        regressor().partial_fit(X, NOISY)
    with pytest.raises(ValueError, match=r"alpha='cv' chooses .* penalty=None has none"):
        regressor(penalty=None).fit(X, NOISY)
    with pytest.raises(ValueError, match="holds 20% of the rows out, and there are 9: give X_val"):
        regressor().fit(X[:9], NOISY[:9])
    with pytest.raises(ValueError, match="'alpha' parameter"):
        dps.LinearRegressor(alpha="best").fit(X, NOISY)


def images(rows: int) -> tuple[Any, Any]:
    """Columns in the same units, of which those that say nothing hardly vary."""
    rng = np.random.default_rng(1)
    values = rng.normal(size=(rows, 60)) * np.where(np.arange(60) < 6, 1.0, 0.02)
    return values, (values[:, :6].sum(axis=1) + rng.logistic(size=rows) > 0).astype(int)


@pytest.mark.parametrize("units", [1.0, 1e-6, 1e6])
def test_columns_in_the_same_units_are_not_standardized(units: float) -> None:
    values, labels = images(3000)
    new, of_new = values[300:] * units, labels[300:]
    values, labels = values[:300] * units, labels[:300]
    model = dps.LinearClassifier(alpha="cv", random_state=0).fit(values, labels)
    assert not model.standardize_
    assert {*model.alpha_path_[:, 2]} == {0.0, 1.0}
    same = clone(model).set_params(alpha=model.alpha_, standardize=False).fit(values, labels)
    np.testing.assert_array_equal(same.coef_, model.coef_)
    kinds = ("auto", True, False)
    before = [
        dps.LinearClassifier(alpha=1 / 300, standardize=kind).fit(values, labels) for kind in kinds
    ]
    np.testing.assert_array_equal(before[0].coef_, before[1].coef_)
    losses = [log_loss(of_new, one.predict_proba(new)) for one in (model, *before)]
    assert losses[0] < 0.95 * losses[1]
    asked = dps.LinearClassifier(alpha="cv", standardize=True, random_state=0).fit(values, labels)
    assert asked.standardize_
    assert {*asked.alpha_path_[:, 2]} == {1.0}


def test_auto_stays_where_nothing_is_gained_for_certain() -> None:
    rng = np.random.default_rng(2)
    for rows in (12, 40, 4000):
        values = rng.normal(size=(rows, 3))
        target = values @ [1.0, -2.0, 0.5] + rng.normal(size=rows)
        classifier = dps.LinearClassifier(alpha="cv", random_state=0)
        for model, y in ((regressor(), target), (classifier, target > 0)):
            model.fit(values, y)
            assert np.isfinite(model.alpha_path_).all()
            assert 1 / rows in model.alpha_path_[:, 0]
            kept = model.alpha_ == pytest.approx(1 / rows) and model.standardize_
            assert kept or rows < 4000


def test_what_exact_predictions_lose_does_not_count() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=(80, 40))
    counts = rng.poisson(np.exp(4 + 0.02 * values[:, 0]))  # the best model loses -165 a row
    model = regressor(loss="poisson").fit(values, counts)
    assert model.alpha_ * 80 >= 10


def test_numbers_of_encoded_frames_are_as_standardize_says() -> None:
    rng = np.random.default_rng(4)
    frame = pd.DataFrame({"large": 1e4 * rng.normal(size=300), "word": rng.choice(["a", "b"], 300)})
    y = frame["large"] / 1e4 + rng.normal(size=300)
    for flag, units in ((True, 1.0), (False, 1e8)):
        model = regressor(standardize=flag).fit(frame, y)
        assert model.standardize_ is flag
        path = model.alpha_path_
        strong = regressor().set_params(alpha=units, standardize=flag).fit(frame, y)
        assert np.var(strong.predict(frame)) < 0.5 * np.var(y)  # a strength of these units
        assert np.ptp(path[:, 1]) < 0.2 * path[0, 1] or path[0, 0] > units / 100


def test_labels_that_few_rows_have_and_rows_without_weight() -> None:
    rng = np.random.default_rng(5)
    values = rng.normal(size=(160_000, 28)).astype(np.float32)  # a part is looked at
    labels = (values[:, 0] + rng.logistic(size=len(values)) > 0).astype(int)
    rare = rng.permutation(len(labels))[:6]
    labels[rare] = np.arange(2, 8)
    options = {"alpha": "cv", "random_state": 0, "tol": 1e-2}
    weights = {label: 1.0 + label for label in range(8)}
    model = dps.LinearClassifier(class_weight=weights, **options).fit(values, labels)
    assert model.classes_.tolist() == list(range(8))
    assert np.isfinite(model.alpha_path_).all()

    weight = (np.arange(ROWS) % 3 > 0).astype(float)
    some = weight > 0
    wrong = np.where(some, NOISY, 1e6)
    there, all_rows = regressor().fit(X[some], NOISY[some]), regressor().fit(X, wrong, weight)
    np.testing.assert_allclose(all_rows.alpha_path_[:, 1:], there.alpha_path_[:, 1:], rtol=1e-3)
    with pytest.raises(ValueError, match="holds 20% of the rows out, and there are 3: give X_val"):
        regressor().fit(X, NOISY, np.where(np.arange(ROWS) < 3, 1.0, 0.0))


def test_a_fit_with_a_number_keeps_no_path_of_an_earlier_one() -> None:
    model = dps.LinearRegressor(alpha="cv").fit(X, X[:, -1])
    assert hasattr(model, "alpha_path_")
    assert not hasattr(model.set_params(alpha=0.1).fit(X, X[:, -1]), "alpha_path_")


def test_auto_looks_at_held_out_rows_where_parameters_are_many() -> None:
    """Elsewhere it is one over the rows, without a look."""
    rng = np.random.default_rng(6)
    values = rng.normal(size=(600, 300))
    score = values[:, :5].sum(axis=1) + 3 * rng.logistic(size=600)
    options = {"random_state": 0, "alpha": "auto"}
    for model, y in (
        (dps.LinearClassifier(**options), score > 0), (dps.LinearRegressor(**options), score),
        (dps.LinearClassifier(**options), np.digitize(score, [-3, 3])),
    ):  # fmt: skip
        model.fit(values[:400], y[:400])
        assert model.alpha_ * 400 >= 10
        assert model.alpha_path_.shape[1] == 3
        fixed = clone(model).set_params(alpha=1 / 400).fit(values[:400], y[:400])
        if hasattr(model, "classes_"):
            lost = [log_loss(y[400:], one.predict_proba(values[400:])) for one in (model, fixed)]
        else:
            lost = [-one.score(values[400:], y[400:]) for one in (model, fixed)]
        assert lost[0] < lost[1]
        for rows, columns in ((90, 60), (400, 10)):
            model.fit(values[:rows, :columns], y[:rows])
            assert model.alpha_ == 1 / rows
            assert not hasattr(model, "alpha_path_")
    # Of many columns of y each has a model of its own.
    several = dps.LinearRegressor().fit(values[:400, :30], rng.normal(size=(400, 50)))
    assert several.alpha_ == 1 / 400
    for options in ({"penalty": None}, {"loss": dps.losses.Huber(1.0)}):
        model = dps.LinearRegressor(**options).fit(values, score)
        assert (model.alpha_ == 0) == ("penalty" in options)
    assert dps.LinearRegressor().partial_fit(values, score).alpha_ == 1 / 600


def test_auto_is_as_before_where_no_rows_can_be_held_out() -> None:
    weight = np.zeros(ROWS)
    weight[:3] = 1.0
    assert dps.LinearRegressor().fit(X, NOISY, weight).alpha_ == pytest.approx(1 / 3)
    # All rows that are looked at have the same label.
    wide, labels = np.ones((100, 50_000), np.float32), np.zeros(100, int)
    labels[50] = 1
    assert dps.LinearClassifier(max_iter=1).fit(wide, labels).alpha_ == 1 / 100


def test_rows_that_are_held_out_are_not_trained_on() -> None:
    rng = np.random.default_rng(7)
    rows, stored = 3000, 800  # so that a sample is looked at
    columns = rng.integers(0, 100_000, rows * stored)
    values = np.ones(rows * stored, np.float32)
    starts = np.arange(0, rows * stored + 1, stored)
    noise = scipy.sparse.csr_array((values, columns, starts), (rows, 100_000))
    model = dps.LinearClassifier(random_state=0).fit(noise, rng.integers(0, 2, rows))
    assert model.alpha_path_[:, 1].min() > 0.99 * np.log(2)


def test_networks_decay_less_where_few_labels_are_clean() -> None:
    """The decay that few rows suggest stays where rows are noisy, and for regressions."""
    rng = np.random.default_rng(8)
    radius, labels = 3 * np.sqrt(rng.random(900)), rng.integers(0, 11, 900)
    angle = 1.5 * radius + 2 * np.pi * labels / 11
    plane = np.c_[radius * np.cos(angle), radius * np.sin(angle)] + 0.05 * rng.normal(size=(900, 2))
    spiral = plane @ rng.normal(size=(2, 10)) + 0.02 * rng.normal(size=(900, 10))
    trained, new = slice(0, 700), slice(700, None)
    kept = 300 / round(0.85 * 700)
    model = dps.MLPClassifier(random_state=0).fit(spiral[trained], labels[trained])
    assert 0.02 <= model.alpha_ < 0.3 * kept
    assert model.alpha_path_[0, 0] == pytest.approx(kept)
    assert log_loss(labels[new], model.predict_proba(spiral[new])) < 0.2

    noisy = rng.random(900) < 1 / (1 + np.exp(-spiral[:, 0]))
    model.fit(spiral[trained], noisy[trained])
    assert model.alpha_ == pytest.approx(kept)
    number = dps.MLPRegressor(random_state=0, max_iter=2).fit(spiral, angle)
    assert number.alpha_ == 0.02
    assert not hasattr(number, "alpha_path_")
