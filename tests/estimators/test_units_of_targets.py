"""Networks and machines do not depend on the units or the offset of y."""

import dask.array as da
import numpy as np
import pytest
from sklearn.datasets import load_diabetes

from dps import FMRegressor, MLPRegressor
from dps.data.survey.spread import merged
from dps.losses import EpsilonInsensitive, Gamma, Huber, Poisson, Quantile, SquaredError
from dps.losses.units import units_of

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


@pytest.mark.parametrize("name", MODELS)
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
    units = units_of(loss, start, reach)
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
