"""Missing numbers of arrays stop no job: neither a fit nor predictions."""

from __future__ import annotations

import warnings
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.feature_selection import RFE, SelectFromModel
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import dps
from dps.preprocessing import FrameEncoder

RNG = np.random.default_rng(0)
ROWS = 400
WHOLE = RNG.normal(size=(ROWS, 4)) * [1, 10, 1, 1] + [0, 100, 0, 3]
Y = (WHOLE[:, 0] + (WHOLE[:, 1] - 100) / 10 + RNG.logistic(size=ROWS) > 0).astype(int)
GAPS = WHOLE.copy()
GAPS[RNG.random((ROWS, 4)) < [0.2, 0.2, 0.1, 0.0]] = np.nan
KINDS = [dps.LinearClassifier, dps.MLPClassifier, dps.FMClassifier]


def blocks(values: Any) -> Any:
    return da.from_array(values, chunks=(90, *values.shape[1:]))


def fitted(kind: Any, X: Any, y: Any, **options: Any) -> Any:
    return kind(random_state=0, **options).fit(X, y)


@pytest.mark.parametrize("framed", [False, True])
def test_a_linear_model_is_that_of_an_imputer(framed: bool) -> None:
    """With indicators where columns have names."""
    X: Any = pd.DataFrame(GAPS, columns=list("abcd")) if framed else GAPS
    model = fitted(dps.LinearClassifier, X, Y, tol=1e-9)
    filled = SimpleImputer(add_indicator=framed).fit_transform(GAPS)
    filled[:, :4] = StandardScaler().fit_transform(filled[:, :4])
    peer = LogisticRegression(tol=1e-9, max_iter=10_000).fit(filled, Y)
    np.testing.assert_allclose(model.predict_proba(X), peer.predict_proba(filled), atol=1e-4)
    assert model.n_features_in_ == 4
    assert hasattr(model, "feature_names_in_") == framed
    names = list(model.coefficients().index)
    marked = ["a", "missingindicator_a", "b", "missingindicator_b", "c", "missingindicator_c", "d"]
    assert names == (marked if framed else ["x0", "x1", "x2", "x3"])


@pytest.mark.parametrize("kind", [dps.LinearClassifier, dps.LinearRegressor])
@pytest.mark.parametrize("lazy", [False, True])
def test_coefficients_are_those_of_an_arrays_columns(kind: Any, lazy: bool) -> None:
    """So that what selects columns by them can."""
    X, y = (blocks(GAPS), blocks(Y)) if lazy else (GAPS, Y)
    model = fitted(kind, X, y)
    assert model.coef_.shape[-1] == model.n_features_in_ == 4
    if not lazy:
        assert SelectFromModel(kind()).fit(X, y).transform(X).shape[1] < 4
        assert RFE(kind(), n_features_to_select=2).fit(X, y).support_.sum() == 2


@pytest.mark.parametrize("kind", KINDS)
def test_containers_of_gaps_are_alike(kind: Any, tmp_path: Any) -> None:
    model = fitted(kind, GAPS, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = model.predict_proba(GAPS)
    lazy = model.predict_proba(blocks(GAPS))
    assert lazy.chunks == ((90, 90, 90, 90, 40), (2,))
    np.testing.assert_allclose(lazy.compute(), expected, rtol=1e-12)
    assert model.predict(GAPS.tolist()).tolist() == model.predict(GAPS).tolist()
    whole = np.nan_to_num(GAPS)
    for rows in (scipy.sparse.csr_array(whole), blocks(whole).map_blocks(scipy.sparse.csr_array)):
        np.testing.assert_allclose(
            np.asarray(model.predict_proba(rows)), model.predict_proba(whole)
        )
    (part,) = dask.compute(*model.predict([dask.delayed(GAPS)]))
    with pytest.raises(ValueError, match="X in partition 0 has 2 features, but 4 are expected"):
        dask.compute(*model.predict([dask.delayed(GAPS[:, :2])]), scheduler="sync")
    np.testing.assert_array_equal(part, model.predict(GAPS))
    with pytest.raises(ValueError, match="X has 1 dimensions"):
        model.predict(GAPS[0])
    there = fitted(kind, blocks(GAPS), blocks(Y), max_iter=2, tol=None)
    assert there.encoder_ is not None
    assert there.score(blocks(GAPS), blocks(Y)) > 0.5
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(dps.load(tmp_path / "model").predict_proba(GAPS), expected)
    with pytest.raises(ValueError, match=r"3 features, but .* is expecting 4"):
        model.predict(GAPS[:, :3])


@pytest.mark.parametrize("kind", KINDS)
def test_gaps_that_training_has_not_seen_get_the_mean(kind: Any, tmp_path: Any) -> None:
    model = fitted(kind, WHOLE, Y)
    model.save(tmp_path / "model")
    for column in range(4):
        X, filled = WHOLE[:50].copy(), WHOLE[:50].copy()
        X[7:9, column], filled[7:9, column] = np.nan, WHOLE[:, column].mean()
        said = f"columns that had none in the training rows: 'x{column}' 2 of 50 rows; the mean"
        for each in (model, dps.load(tmp_path / "model")):
            with pytest.warns(UserWarning, match=said):
                predicted = each.predict_proba(X)
            np.testing.assert_allclose(predicted, model.predict_proba(filled), atol=1e-9)
    lazy = model.predict(blocks(GAPS))
    with pytest.warns(UserWarning, match=r"X in partition \d has missing numbers .* of \d0 rows"):
        lazy.compute(scheduler="synchronous")
    frame = pd.DataFrame(WHOLE, columns=list("abcd"))
    named = fitted(kind, dd.from_pandas(frame, npartitions=3), dd.from_pandas(pd.Series(Y), 3))
    gaps = pd.DataFrame(GAPS, columns=list("abcd"))
    with pytest.warns(UserWarning, match=r"'a' \d+, 'b' \d+, 'c' \d+ of 400 rows"):
        named.predict(gaps)
    with pytest.raises(ValueError, match="infinity"):
        model.predict(np.where(np.isnan(GAPS), np.inf, GAPS))


def test_partial_fit_and_validation_rows_take_gaps() -> None:
    model = dps.LinearClassifier(random_state=0)
    for rows in np.array_split(np.arange(ROWS), 4):
        model.partial_fit(GAPS[rows], Y[rows], classes=[0, 1])
    assert model.score(GAPS, Y) > 0.6
    for X, y in ((GAPS, Y), (blocks(GAPS), blocks(Y))):
        model = dps.LinearClassifier(early_stopping=True, random_state=0)
        model.fit(X, y, X_val=GAPS[:50], y_val=Y[:50])
        assert np.isfinite(model.history_[-1]["validation_loss"])
    assert fitted(dps.LinearClassifier, GAPS, Y, alpha="cv").alpha_path_.shape[1] == 3


def test_a_model_of_ones_own_keeps_its_columns() -> None:
    class Least:
        """Least squares."""

        layout = {"w": (4,)}  # noqa: RUF012

        def init(self, rng: Any) -> Any:
            return {"w": np.zeros(4)}

        def loss_gradient(self, params: Any, batch: Any, out: Any) -> float:
            missed = batch.X @ params["w"] - batch.y
            out["w"] += batch.X.T @ missed
            return float(missed @ missed / 2)

        def raw(self, params: Any, batch: Any) -> Any:
            return batch.X @ params["w"]

    model = dps.ModelRegressor(Least(), random_state=0).fit(GAPS, WHOLE[:, 0])
    filled = SimpleImputer().fit_transform(GAPS)
    assert model.predict(GAPS) == pytest.approx(model.predict(filled))


def test_who_wants_an_error_gets_one() -> None:
    sparse = scipy.sparse.csr_array(np.nan_to_num(GAPS, nan=0.0))
    sparse.data[5] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        dps.LinearClassifier().fit(sparse, Y)
    frame = pd.DataFrame(GAPS, columns=list("abcd"))
    strict = dps.LinearClassifier(encoder=FrameEncoder(missing="error"))
    with pytest.raises(ValueError, match="missing values"):
        strict.fit(frame, Y)
    assert not strict.__sklearn_tags__().input_tags.allow_nan
    assert dps.LinearClassifier().__sklearn_tags__().input_tags.allow_nan


def test_a_pipeline_needs_no_imputer() -> None:
    pipeline = make_pipeline(StandardScaler(), dps.LinearClassifier()).fit(GAPS, Y)
    imputing = make_pipeline(StandardScaler(), SimpleImputer(), LogisticRegression(C=1.0))
    assert pipeline.score(GAPS, Y) > 0.69
    ours, theirs = (
        log_loss(Y, each.predict_proba(GAPS)) for each in (pipeline, imputing.fit(GAPS, Y))
    )
    assert ours <= theirs
