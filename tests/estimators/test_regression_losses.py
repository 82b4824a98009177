"""Counts, amounts and quantiles: losses of regressions beside scikit-learn's estimators of them."""

from __future__ import annotations

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from sklearn.linear_model import GammaRegressor, PoissonRegressor, QuantileRegressor

import dps
from dps import LinearRegressor
from dps.losses import Quantile

ROWS, FEATURES = 3000, 4


def data(kind: str) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, FEATURES))
    mean = np.exp(X @ np.array([0.5, -0.3, 0.2, 0.0]) + 4.0)  # about 60
    y = rng.poisson(mean).astype(float) if kind == "poisson" else mean * rng.gamma(2.0, 0.5, ROWS)
    return X, y


PEERS = {"poisson": PoissonRegressor, "gamma": GammaRegressor}


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("loss", PEERS)
def test_defaults_end_where_scikit_learn_ends(loss: str, weighted: bool) -> None:
    X, y = data(loss)
    weight = np.random.default_rng(1).random(ROWS) + 0.5 if weighted else None
    peer = PEERS[loss](alpha=0.01, tol=1e-8, max_iter=10_000).fit(X, y, weight)
    model = LinearRegressor(loss=loss, alpha=0.01, tol=1e-9, standardize=False).fit(X, y, weight)
    np.testing.assert_allclose(model.coef_, peer.coef_, atol=1e-4)
    np.testing.assert_allclose(model.intercept_, peer.intercept_, rtol=1e-5)
    np.testing.assert_allclose(model.predict(X), peer.predict(X), rtol=1e-3)


@pytest.mark.parametrize("mode", ["sync", "async", "allreduce"])
@pytest.mark.parametrize("loss", PEERS)
def test_means_that_are_far_from_one_are_learned_in_every_mode(loss: str, mode: str) -> None:
    X, y = data(loss)
    model = LinearRegressor(loss=loss, mode=mode, n_replicas=2, random_state=0).fit(X, y)
    peer = PEERS[loss](alpha=1 / ROWS).fit(X, y)
    assert np.mean(np.abs(model.predict(X) / peer.predict(X) - 1)) < 0.02


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9])
def test_a_quantile_has_that_share_of_y_below_it(quantile: float) -> None:
    X, y = data("gamma")
    model = LinearRegressor(
        loss=Quantile(quantile), penalty=None, max_iter=300, random_state=0
    ).fit(X, y)
    peer = QuantileRegressor(quantile=quantile, alpha=0.0).fit(X, y)

    def pinball(predicted: Any) -> float:
        short = y - predicted
        return float(np.mean(np.maximum(quantile * short, (quantile - 1) * short)))

    assert np.mean(y < model.predict(X)) == pytest.approx(quantile, abs=0.03)
    assert pinball(model.predict(X)) < 1.01 * pinball(peer.predict(X))


def test_predictions_of_collections_are_means_too(client: Client) -> None:
    X, y = data("poisson")
    model = LinearRegressor(loss="poisson", client=client, random_state=0)
    parts = da.from_array(X, chunks=(1000, FEATURES)), da.from_array(y, chunks=1000)
    predicted = model.fit(*parts).predict(parts[0])
    np.testing.assert_array_equal(predicted.compute(), model.predict(X))
    assert (predicted > 0).all().compute()
    frame = dd.from_pandas(pd.DataFrame(X, columns=list("abcd")), npartitions=3)
    both = model.fit(frame, dd.from_pandas(pd.DataFrame({"u": y, "v": 2 * y}), npartitions=3))
    assert list(both.predict(frame).columns) == [0, 1]
    computed = both.predict(frame).compute()
    np.testing.assert_allclose(computed[1] / computed[0], 2, rtol=0.01)


@pytest.mark.parametrize(
    ("loss", "bad", "domain"), [("poisson", -1.0, "0 or more"), ("gamma", 0.0, "positive")]
)
def test_targets_outside_of_the_domain_have_a_place(
    loss: str, bad: float, domain: str, client: Client
) -> None:
    X, y = data(loss)
    y = y + 1
    y[2500] = bad
    message = f"holds {bad:g}, in row {{}}: targets of loss='{loss}' must be {domain}"
    with pytest.raises(ValueError, match="y " + message.format(2500)):
        LinearRegressor(loss=loss).fit(X, y)
    parts = da.from_array(X, chunks=(1000, FEATURES)), da.from_array(y, chunks=1000)
    with pytest.raises(ValueError, match="y in partition 2 " + message.format(500)):
        LinearRegressor(loss=loss, client=client).fit(*parts)


@pytest.mark.parametrize("quantile", [0.0, 1.0, 1.5, "half"])
def test_a_quantile_is_between_0_and_1(quantile: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="'quantile' parameter of Quantile must be"):
        dps.losses.Quantile(quantile)


@pytest.mark.parametrize("loss", ["squared_error", "huber", "epsilon_insensitive", "quantile"])
def test_the_intercept_starts_at_the_mean_of_y(loss: str) -> None:
    X, y = data("gamma")
    y = np.log(y) + 1000.0
    model = LinearRegressor(loss=loss, random_state=0).partial_fit(X, y)
    assert abs(np.mean(model.predict(X) - y)) < np.std(y)
    assert LinearRegressor(loss=loss, fit_intercept=False, max_iter=2, tol=None).fit(X, y)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_targets_whose_sum_overflows_both_ways_are_an_error(mode: str) -> None:
    X, y = data("gamma")
    y = np.where(X[:, 0] > 0, 1.7e308, -1.7e308)
    with pytest.raises(ValueError, match="y has values above"):
        LinearRegressor(mode=mode).fit(X, y)
