"""Numbers with long tails become logarithms in linear models, where held-out rows say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import log_loss

import dps
from dps import FMClassifier, LinearClassifier, LinearRegressor
from dps.preprocessing import FrameEncoder


def rows(n: int = 3000, seed: int = 0) -> tuple[pd.DataFrame, Any]:
    """Rows whose visits count by their logarithm, and whose size counts as it is."""
    rng = np.random.default_rng(seed)
    tail, size, city = rng.normal(size=n), rng.normal(size=n), rng.integers(4, size=n)
    visits = np.floor(np.exp(2 + 1.5 * tail))
    visits[rng.random(n) < 0.1] = np.nan
    frame = pd.DataFrame({"visits": visits, "size": size, "city": city.astype(str)})
    score = np.where(np.isnan(visits), 0.0, 1.5 * tail) + size + 0.3 * city
    return frame, score + rng.logistic(size=n)


FRAME, SCORE = rows()
COMING, OF_COMING = rows(2000, 1)
PLAIN = FrameEncoder(min_frequency="auto")


@pytest.mark.parametrize("labels", [2, 3])
def test_counts_with_long_tails_become_logarithms(labels: int, client: Any, tmp_path: Path) -> None:
    edges = np.quantile(SCORE, np.arange(1, labels) / labels)
    y, coming = np.digitize(SCORE, edges), np.digitize(OF_COMING, edges)
    model = LinearClassifier(random_state=0).fit(FRAME, y)
    assert model.encoder_.logarithms == ("visits",)
    as_is = LinearClassifier(random_state=0, encoder=PLAIN).fit(FRAME, y)
    found, before = (log_loss(coming, each.predict_proba(COMING)) for each in (model, as_is))
    assert found < 0.97 * before
    names = ["log_visits", "missingindicator_visits", "size"]
    assert list(model.coefficients().index[:3]) == names
    # An encoder that is asked for the same logarithms differs in the mean that is filled in.
    asked = LinearClassifier(random_state=0, encoder=FrameEncoder(logarithms=["visits"]))
    again = asked.fit(FRAME, y).predict_proba(COMING)
    np.testing.assert_allclose(again, model.predict_proba(COMING), atol=1e-2)
    lazy = dd.from_pandas(FRAME, npartitions=3), dd.from_pandas(pd.Series(y), npartitions=3)
    on_workers = LinearClassifier(random_state=0, client=client).fit(*lazy)
    assert on_workers.encoder_.logarithms == ("visits",)
    np.testing.assert_allclose(on_workers.coef_, model.coef_, atol=2e-3)
    model.save(tmp_path / "model")
    loaded = dps.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(COMING), model.predict_proba(COMING))
    np.testing.assert_allclose(
        model.to_sklearn().predict_proba(COMING), model.predict_proba(COMING), atol=1e-5
    )
    follows = model.partial_fit(COMING, coming).encoder_.logarithms
    assert follows == ("visits",)


def test_regressions_take_logarithms_too() -> None:
    model = LinearRegressor(random_state=0).fit(FRAME, SCORE)
    as_is = LinearRegressor(random_state=0, encoder=PLAIN).fit(FRAME, SCORE)
    assert model.encoder_.logarithms == ("visits",)
    assert model.score(COMING, OF_COMING) > as_is.score(COMING, OF_COMING) + 0.05


def test_numbers_that_count_as_they_are_stay_so_to_the_bit() -> None:
    frame = FRAME.assign(visits=np.exp(FRAME["size"]))
    y = frame["visits"] * 2 + np.random.default_rng(0).normal(size=len(frame))
    model, as_is = (
        LinearRegressor(random_state=0, **options).fit(frame, y)
        for options in ({}, {"encoder": PLAIN})
    )
    assert tuple(model.encoder_.logarithms) == ()
    np.testing.assert_array_equal(model.coef_, as_is.coef_)


@pytest.mark.parametrize(
    "model",
    [
        LinearClassifier(encoder=PLAIN),
        LinearClassifier(encoder=FrameEncoder(n_buckets=64)),
        FMClassifier(max_iter=1),
    ],
    ids=["columns", "buckets", "a machine"],
)
def test_an_encoder_that_was_given_and_other_models_take_none(model: Any) -> None:
    assert tuple(model.fit(FRAME, SCORE > 0).encoder_.logarithms) == ()


def test_a_stream_takes_none() -> None:
    model = LinearClassifier().partial_fit(FRAME, SCORE > 0, classes=[False, True])
    assert tuple(model.encoder_.logarithms) == ()


@pytest.mark.parametrize("missing", ["indicator", "mean"])
def test_the_encoder_takes_logarithms_of_any_sign(missing: str) -> None:
    frame = pd.DataFrame({"a": [0.0, -3.0, np.nan, 1e6], "b": [1, 2, 3, 4]})
    for data in (frame, dd.from_pandas(frame, npartitions=2)):
        encoder = FrameEncoder(logarithms=["a"], missing=missing).fit(data)
        found = encoder.transform(frame).toarray()
        wanted = np.arcsinh(frame["a"])
        np.testing.assert_allclose(found[:, 0], wanted.fillna(wanted.mean()), rtol=1e-6)
        assert encoder.get_feature_names_out()[0] == "log_a"
        assert encoder.dtype_ == np.float32
    for names in (["c"], ["a", "word"]):
        with pytest.raises(ValueError, match="logarithms name"):
            FrameEncoder(logarithms=names).fit(frame.assign(word="x"))
