"""A regression of several targets is each of them alone, as scikit-learn's Ridge has it."""

from __future__ import annotations

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.linear_model import Ridge

import dps
from dps.models.linear import LinearModel

LENGTHS, NAMES = (30, 0, 7, 83), ["a", "b", "c", "d"]
ROWS = sum(LENGTHS)
RNG = np.random.default_rng(0)
X = np.where(RNG.random((ROWS, 4)) < 0.6, RNG.normal(size=(ROWS, 4)), 0.0)
T = X @ RNG.normal(size=(4, 3)) + RNG.normal(size=(ROWS, 3))
WEIGHT = RNG.integers(0, 4, ROWS).astype(float)


def array(values: Any) -> Any:
    return da.from_array(values, chunks=(LENGTHS, *values.shape[1:]))


def frame(values: Any) -> Any:
    return dd.from_dask_array(array(values), columns=NAMES[: values.shape[1]])


@pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_array], ids=["dense", "csr"])
@pytest.mark.parametrize("mode", ["sync", "async", "allreduce"])
@pytest.mark.parametrize("native", [True, False], ids=["kernel", "python"])
def test_several_outputs_end_where_ridge_does(
    kind: Any, mode: str, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(LinearModel, "kernel", None)
    options: dict[str, Any] = {"mode": mode, "n_replicas": 2, "tol": 1e-12}
    if mode == "async":  # two replicas would go on pulling towards the optimum of each
        options = {"mode": mode, "n_replicas": 1, "optimizer": "momentum", "learning_rate": 0.05,
                   "max_iter": 300, "tol": None}  # fmt: skip
    expected = Ridge(alpha=1).fit(X, T, WEIGHT)
    tolerance = 1e-3
    local, lazy = kind(X), array(X).map_blocks(kind)
    for data, targets, weight in ((local, T, WEIGHT), (lazy, frame(T), array(WEIGHT))):
        model = dps.LinearRegressor(
            alpha=1 / WEIGHT.sum(), random_state=0, standardize=False, **options
        )
        model.fit(data, targets, weight)
        np.testing.assert_allclose(model.coef_, expected.coef_, atol=tolerance)
        np.testing.assert_allclose(model.intercept_, expected.intercept_, atol=tolerance)
        assert model.score(data, targets, weight) == pytest.approx(
            expected.score(X, T, WEIGHT), abs=tolerance
        )
    assert model.predict(X).shape == T.shape


def test_several_outputs_take_steps_of_their_own_and_carry_on() -> None:
    options: dict[str, Any] = {"optimizer": "momentum", "learning_rate": 0.05, "batch_size": 32,
                               "shuffle": False, "n_replicas": 2, "alpha": 0.1}  # fmt: skip
    together = dps.LinearRegressor(max_iter=3, tol=None, **options).fit(X, T)
    alone = [dps.LinearRegressor(max_iter=3, tol=None, **options).fit(X, t) for t in T.T]
    np.testing.assert_allclose(together.coef_, [model.coef_ for model in alone], rtol=1e-9)
    assert together.loss_ == pytest.approx(sum(model.loss_ for model in alone))
    parts = dps.LinearRegressor(**options)
    for _ in range(3):
        parts.partial_fit(array(X), array(T).rechunk((LENGTHS, 1)))
    np.testing.assert_allclose(parts.coef_, together.coef_, rtol=1e-6)
    warm = dps.LinearRegressor(warm_start=True, max_iter=1, tol=None, **options)
    with pytest.raises(ValueError, match="parameters was 15 and is now 10"):
        warm.fit(X, T).fit(X, T[:, :2])
    assert dps.LinearRegressor().fit(X, T[:, :1]).coef_.shape == (4,)
    lazy = parts.fit(frame(X), frame(T)).predict(frame(X))
    assert list(lazy.columns) == list(lazy.compute().columns) == [0, 1, 2]


def test_several_outputs_of_an_encoded_frame_have_coefficients_by_name() -> None:
    places = pd.DataFrame({"place": np.where(X[:, 0] > 0, "Bonn", "Oslo"), "size": X[:, 1]})
    model = dps.LinearRegressor().fit(places, T)
    named = model.coefficients()
    assert list(named.index) == ["place_Bonn", "place_Oslo", "size"]
    assert list(named.columns) == [0, 1, 2]
    np.testing.assert_array_equal(named.T, model.coef_)
    parts = dd.from_pandas(places, npartitions=3)
    np.testing.assert_array_equal(model.predict(parts).compute(), model.predict(places))
