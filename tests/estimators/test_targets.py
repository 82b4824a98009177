"""Targets in any units, rare events, and streams that drift."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
from cases import slow
from sklearn.datasets import load_diabetes
from sklearn.metrics import log_loss

import dps
from dps import FMRegressor, LinearClassifier, LinearRegressor, MLPRegressor
from dps.data.survey.spread import merged
from dps.losses import (
    EpsilonInsensitive,
    Gamma,
    Hinge,
    Huber,
    LogLoss,
    ModifiedHuber,
    Poisson,
    Quantile,
    SquaredError,
    SquaredHinge,
)
from dps.losses.classification import Multilabel, OneVsRest, Softmax
from dps.losses.constants import best_constant, loss_of_mean

MODELS = {
    "network": MLPRegressor(random_state=0, max_iter=20),
    "network by L-BFGS": MLPRegressor(optimizer="lbfgs", random_state=0, max_iter=20, tol=None),
    "network by momentum": MLPRegressor(optimizer="momentum", random_state=0, max_iter=20),
    "network in async": MLPRegressor(mode="async", random_state=0, max_iter=20),
    "machine": FMRegressor(random_state=0),
    "machine with layers": FMRegressor(hidden_layer_sizes=(16,), random_state=0),
}


def numbers(rows=1500):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 3))
    return X, X @ [1.0, -2.0, 0.5] + 0.1 * rng.normal(size=rows)


@pytest.mark.parametrize(
    "name",
    [
        "network",
        "machine",
        *slow(*(name for name in MODELS if " " in name)),
    ],
)
def test_r2_depends_on_neither_unit_nor_offset_of_y(name):
    X, y = numbers()
    model = MODELS[name]
    score = model.fit(X, y).score(X, y)
    assert score > (0.5 if "momentum" in name else 0.97)
    for scaled in (1e-7 * y, 1e7 * y, y + 1e9):
        assert model.fit(X, scaled).score(X, scaled) == pytest.approx(score, abs=0.01)


@pytest.mark.parametrize("name", MODELS)
def test_each_of_several_targets_is_learned(name):
    X, y = numbers()
    model = MODELS[name]
    both = model.fit(X, np.c_[y, X[:, 0]]).predict(X)
    other = model.fit(X, np.c_[y, 100 * X[:, 0]]).predict(X)
    for column in (0, 1):
        factor = (1, 100)[column]
        found = np.corrcoef(other[:, column], both[:, column])[0, 1]
        assert found > 0.999
        assert other[:, column].std() == pytest.approx(factor * both[:, column].std(), rel=0.01)


@pytest.mark.parametrize(
    "loss", ["squared_error", "quantile", "poisson", "gamma", Huber(10.0), EpsilonInsensitive(5.0)]
)
def test_losses_are_in_units_of_y(loss):
    X, y = load_diabetes(return_X_y=True)
    model = MLPRegressor(loss=loss, optimizer="lbfgs", max_iter=5, tol=None).fit(X, y)
    kind = model._loss()
    raw = np.log(model.predict(X)) if loss in ("poisson", "gamma") else model.predict(X)
    raw = raw.astype(np.float64)[:, None]
    expected = kind.evaluate(y, raw, None, np.empty_like(raw)) / len(y)
    assert model.loss_ == pytest.approx(expected, rel=1e-4)


def test_held_out_rows_are_scored_in_units_of_y():
    X, y = load_diabetes(return_X_y=True)
    options = {"max_iter": 3, "tol": None, "random_state": 0}
    for scoring in ("r2", "neg_mean_squared_error", "neg_median_absolute_error"):
        model = MLPRegressor(scoring=scoring, **options)
        last = model.fit(X, y, X_val=X[:100], y_val=y[:100]).history_.to_frame()
        errors = y[:100] - model.predict(X[:100])
        expected = {
            "r2": 1 - (errors**2).sum() / ((y[:100] - y[:100].mean()) ** 2).sum(),
            "neg_mean_squared_error": -np.mean(errors**2),
            "neg_median_absolute_error": -np.median(abs(errors)),
        }[scoring]
        assert last.validation_score.max() == pytest.approx(expected, rel=1e-4)
        assert model.best_loss_ == -last.validation_score.max() or model.best_loss_ > 0


def test_a_network_goes_on_in_the_units_that_it_has():
    X, y = numbers()
    model = MLPRegressor(random_state=0)
    for start in range(0, 1500, 250):
        part = slice(start, start + 250)
        model.partial_fit(X[part], 1e9 + y[part])
    assert model.score(X, 1e9 + y) > 0.9
    before = model.predict(X)
    model.set_params(warm_start=True, max_iter=1, learning_rate=1e-9).fit(X, 1e9 + y)
    np.testing.assert_allclose(model.predict(X), before, atol=0.1)


def test_partitions_of_dask_have_the_deviation_of_all_rows():
    X, y = numbers()
    dX, dy = da.from_array(X, chunks=(100, 3)), da.from_array(1e9 + y, chunks=100)
    assert FMRegressor(random_state=0).fit(dX, dy).score(X, 1e9 + y) > 0.97


def test_merged_moments_are_those_of_all_rows():
    rng = np.random.default_rng(0)
    values, weights = 1e9 + rng.normal(size=(90, 2)), rng.integers(0, 4, 90).astype(float)
    weights[:20] = 0
    parts = []
    for part in np.split(np.arange(90), [10, 20, 21, 70]):
        share = weights[part] / (weights[part].sum() or 1)
        mean = share @ values[part]
        parts.append((weights[part].sum(), mean, share @ (values[part] - mean) ** 2))
    mean, variance = merged(parts)
    repeated = np.repeat(values, weights.astype(int), axis=0)
    np.testing.assert_allclose(mean, repeated.mean(axis=0), rtol=1e-15)
    np.testing.assert_allclose(variance, repeated.var(axis=0), rtol=1e-6)


LOSSES = [SquaredError(), Huber(0.3), EpsilonInsensitive(0.2), Quantile(0.7), Poisson(), Gamma()]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_a_loss_in_units_is_the_loss_of_y(loss, dtype):
    rng = np.random.default_rng(0)
    y = rng.gamma(2.0, 150.0, 40)
    start, reach = np.array([5.0]), np.array([0.5])
    if loss.domain is None:
        start, reach = np.array([300.0]), np.array([200.0])
    units = loss._units(start, reach)
    outputs = rng.normal(size=(40, 1))
    raw, out = start + reach * outputs, np.empty((40, 1))
    in_units = (units.output_shift + units.output_scale * outputs).astype(dtype)
    np.testing.assert_allclose(units.raw(in_units), raw, rtol=1e-5)
    np.testing.assert_allclose(units.targets(units.of_targets(y)), y, rtol=1e-12)
    slopes = np.empty((40, 1), dtype)
    found = units.loss.evaluate(units.of_targets(y).astype(dtype), in_units, None, slopes)
    assert units.size * found == pytest.approx(loss.evaluate(y, raw, None, out), rel=1e-4)
    # By the chain rule both give the derivative by the outputs.
    np.testing.assert_allclose(
        units.size * slopes * units.output_scale, out * reach, rtol=1e-3, atol=1e-3 * reach[0]
    )


def events(shift, rows=60_000):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 10))
    chances = 1 / (1 + np.exp(-(2 * X[:, 0] + X[:, 1] + shift)))
    return X, (rng.random(rows) < chances).astype(int)


@pytest.mark.parametrize(
    ("shift", "options"),
    [
        (-9, {"early_stopping": True}),
        (-2.6, {"batch_size": 1024}),
        (-7, {"mode": "async", "optimizer": "scaled_adagrad", "n_replicas": 2}),
    ],
    ids=str,
)
def test_steps_end_at_the_probabilities_of_rare_events(shift, options):
    X, y = events(shift)
    best = log_loss(y, dps.LinearClassifier().fit(X, y).predict_proba(X))
    model = dps.LinearClassifier(random_state=0, **options).fit(X, y)
    assert log_loss(y, model.predict_proba(X)) < 1.02 * best
    assert model.predict_proba(X)[:, 1].mean() == pytest.approx(y.mean(), rel=0.2)


def test_steps_do_not_depend_on_the_units_of_y():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 3))
    y = X @ [1.0, -2.0, 0.5] + 0.1 * rng.normal(size=2000)
    for unit in (1e-4, 1.0, 1e4):
        model = dps.LinearRegressor(early_stopping=True, random_state=0)
        assert model.fit(X, unit * y).score(X, unit * y) > 0.99


SHARES = np.array([0.7, 0.25, 0.05])


@pytest.mark.parametrize(
    "loss",
    [
        LogLoss(), Hinge(), SquaredHinge(), ModifiedHuber(), Softmax(), OneVsRest(Hinge()),
        OneVsRest(LogLoss()), Multilabel(ModifiedHuber()),
    ],
    ids=repr,
)  # fmt: skip
def test_no_constant_is_better_than_the_best(loss):
    several = isinstance(loss, (Softmax, OneVsRest, Multilabel))
    shares = SHARES if several else np.array([0.95, 0.05])
    raw, least = best_constant(loss, shares)

    def mean_loss(at):
        if isinstance(loss, Multilabel):
            y, weight = np.eye(2)[[0, 1]].repeat(3, axis=1)[:, [0, 1, 2]], None
            y = np.array([[0.0] * 3, [1.0] * 3])
            each = []
            for column, share in enumerate(shares):
                rows = np.array([[at[column]], [at[column]]])
                weight = np.array([1 - share, share])
                targets = loss.base.targets(y[:, column].copy())
                each.append(loss.base.evaluate(targets, rows, weight, np.empty((2, 1))))
            return sum(each)
        rows = np.tile(at, (len(shares), 1))
        codes = loss.targets(np.arange(float(len(shares))))
        return loss.evaluate(codes, rows, shares.copy(), np.empty_like(rows))

    assert least == pytest.approx(mean_loss(raw), rel=1e-6)
    rng = np.random.default_rng(0)
    for _ in range(50):
        assert mean_loss(raw + rng.normal(size=len(raw))) >= least * (1 - 1e-9)


def test_the_loss_of_the_mean_is_that_a_deviation_off():
    assert loss_of_mean(SquaredError(), (5.0, 0.0), (2.0, 1.0)) == pytest.approx(2.5)
    assert loss_of_mean(Quantile(0.25), (5.0,), (2.0,)) == pytest.approx(0.5)
    expected = (4 - 6 * np.log(4)) - (6 - 6 * np.log(6))
    assert loss_of_mean(Poisson(), (4.0,), (2.0,)) == pytest.approx(expected)


def _labels_of_validation(y, seed, **options):
    """Number of held-out rows with label 1, seen through a score."""
    seen = []

    def of_rows(y_true, y_pred):
        seen.append((y_true == 1).sum())
        return np.ones(len(y_true))

    X = np.random.default_rng(0).normal(size=(y.shape[0], 2))
    if hasattr(y, "chunks"):
        X = da.from_array(X, chunks=(y.chunks[0], 2))
    model = dps.LinearClassifier(
        early_stopping=True, scoring=dps.metrics.RowScore(of_rows), max_iter=1, tol=None,
        random_state=seed, **options,
    )  # fmt: skip
    model.fit(X, y)
    return sum(seen)


@pytest.mark.parametrize("mode", ["sync", "async", "allreduce"])
def test_rows_of_a_rare_label_are_held_out_by_their_share(mode):
    y = np.zeros(3000, int)
    y[np.random.default_rng(1).choice(3000, 60, replace=False)] = 1
    for seed in range(5):
        assert _labels_of_validation(y, seed, mode=mode) == 6
        assert _labels_of_validation(da.from_array(y, chunks=100), seed, mode=mode) == 6


def test_a_label_of_one_row_is_trained_on():
    y = np.zeros(500, int)
    y[17] = 1
    for seed in range(30):
        assert _labels_of_validation(y, seed) == 0


def test_labels_of_many_classes_are_held_out_and_shuffled_globally():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(4000, 3)), rng.permutation(np.arange(4000) % 400)
    model = dps.LinearClassifier(
        early_stopping=True, max_iter=1, tol=None, shuffle="global", random_state=0
    )
    model.fit(da.from_array(X, chunks=(500, 3)), da.from_array(y, chunks=500))
    assert model.history_[0]["rows"] == 3600


def parts(turn, rows, n):
    """Parts of a stream whose coefficients turn by so many radians a part."""
    rng = np.random.default_rng(0)
    for number in range(n):
        coef = 2.2 * np.array([np.cos(turn * number), np.sin(turn * number), 0, 0, 0])
        X = rng.normal(size=(rows, 5))
        yield X, X @ coef, rng


@pytest.mark.parametrize(
    ("turn", "rows", "n"), [(0.25, 2000, 40), (0.0, 2000, 20), *slow((0.01, 80, 500))]
)
def test_partial_fit_follows_a_stream(turn, rows, n):
    model, losses, least = LinearClassifier(random_state=0), [], []
    for X, raw, rng in parts(turn, rows, n):
        chances = 1 / (1 + np.exp(-raw))
        y = (rng.random(rows) < chances).astype(int)
        if hasattr(model, "coef_"):
            losses.append(log_loss(y, model.predict_proba(X), labels=[0, 1]))
            least.append(log_loss(y, chances, labels=[0, 1]))
        model.partial_fit(X, y, classes=[0, 1])
    half = n // 2
    assert np.mean(losses[half:]) < 1.08 * np.mean(least[half:])


def test_a_regression_follows_a_stream():
    model = LinearRegressor(random_state=0)
    for X, y, _ in parts(0.25, 2000, 40):
        if hasattr(model, "coef_"):
            score = model.score(X, y)
        model.partial_fit(X, y)
    assert score > 0.9
