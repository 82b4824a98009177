"""Metrics have scikit-learn's parameters, which mean the same on data of Dask."""

from __future__ import annotations

import inspect
from typing import Any

import dask.array as da
import numpy as np
import pytest
from sklearn import metrics as known
from sklearn.exceptions import UndefinedMetricWarning
from versions import SKLEARN

from dps import LinearRegressor, metrics

#: What differs: of metrics parameters with another default, or none.
REASONS: dict[str, str] = {
    # Names of probabilities there depend on the version, and have defaults for that reason alone.
    "log_loss": "y_proba y_pred",
    "d2_log_loss_score": "y_proba y_pred",
}
pytestmark = pytest.mark.skipif(SKLEARN < (1, 8), reason="compares with scikit-learn 1.8")

METRICS = sorted(name for name in metrics.__all__ if hasattr(known, name))


@pytest.mark.parametrize("name", METRICS)
def test_parameters_are_those_of_scikit_learn(name: str) -> None:
    ours, theirs = (inspect.signature(getattr(of, name)).parameters for of in (metrics, known))
    excused = REASONS.get(name, "").split()
    shared = [each for each in theirs if each not in excused]
    assert [each for each in ours if each not in ("client", *excused)] == shared
    for each in shared:
        assert ours[each].kind == theirs[each].kind
        assert ours[each].default == theirs[each].default or name == "log_loss"


RNG = np.random.default_rng(0)
ROWS = 300
Y = RNG.integers(0, 2, ROWS)
WORDS = np.where(Y > 0, "yes", "no")
CHANCE = np.clip(0.3 + 0.4 * Y + 0.3 * RNG.normal(size=ROWS), 0.01, 0.99)
WEIGHT = RNG.integers(0, 3, ROWS).astype(float)
T = RNG.gamma(2.0, size=(ROWS, 2))
P = T * np.exp(0.2 * RNG.normal(size=T.shape))
CONSTANT = np.c_[T[:, 0], np.ones(ROWS)]


@pytest.mark.filterwarnings("ignore:.* encountered in divide")  # scikit-learn's own
@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize(
    ("name", "y", "predicted", "options"),
    [
        ("accuracy_score", Y, CHANCE > 0.5, {"normalize": False}),
        ("log_loss", WORDS, CHANCE, {"normalize": False}),
        ("brier_score_loss", WORDS, CHANCE, {"pos_label": "yes"}),
        ("brier_score_loss", WORDS, CHANCE, {"pos_label": "no", "scale_by_half": False}),
        ("brier_score_loss", Y, CHANCE, {"pos_label": 0}),
        ("brier_score_loss", Y, np.c_[1 - CHANCE, CHANCE], {"pos_label": 0}),
        ("brier_score_loss", np.ones(ROWS, int), CHANCE, {"pos_label": 0}),
        ("roc_auc_score", Y, CHANCE, {"max_fpr": 0.2}),
        ("roc_auc_score", np.c_[Y, 1 - Y], np.c_[CHANCE, CHANCE], {"max_fpr": 0.2}),
        ("mean_squared_error", T, P, {"multioutput": "raw_values"}),
        ("mean_squared_error", T, P, {"multioutput": [0.3, 0.7]}),
        ("root_mean_squared_error", T, P, {"multioutput": "raw_values"}),
        ("mean_absolute_error", T, P, {"multioutput": [1, 3]}),
        ("r2_score", T, P, {"multioutput": "raw_values"}),
        ("r2_score", T, P, {"multioutput": "variance_weighted"}),
        ("r2_score", CONSTANT, P, {"multioutput": "raw_values", "force_finite": False}),
        ("r2_score", CONSTANT, CONSTANT, {"multioutput": "raw_values", "force_finite": False}),
        ("r2_score", CONSTANT, P, {"multioutput": "variance_weighted"}),
        ("mean_pinball_loss", T, P, {"alpha": 0.9}),
        ("mean_pinball_loss", T, P, {"alpha": 0.2, "multioutput": "raw_values"}),
        ("mean_poisson_deviance", T[:, 0], P[:, 0], {}),
        ("mean_poisson_deviance", np.floor(T[:, 0]), P[:, 0], {}),
        ("mean_gamma_deviance", T[:, 0], P[:, 0], {}),
        *(
            ("d2_tweedie_score", T[:, 0], P[:, 0], {"power": power})
            for power in (-0.5, 0, 1, 1.5, 2, 3)
        ),
        ("d2_tweedie_score", np.floor(np.sort(T[:, 0])), P[:, 0], {"power": 1}),
        ("d2_pinball_score", T, P, {"alpha": 0.9}),
        ("d2_pinball_score", np.floor(T), P, {"alpha": 0.3, "multioutput": "raw_values"}),
        ("d2_pinball_score", CONSTANT, P, {"multioutput": "raw_values"}),
        ("d2_pinball_score", CONSTANT, CONSTANT, {"multioutput": "raw_values"}),
        ("d2_absolute_error_score", T[:, 0], P[:, 0], {}),
        ("d2_absolute_error_score", T[:, 0], np.r_[P[1:, 0], 0], {}),
        ("d2_log_loss_score", WORDS, CHANCE, {}),
        ("d2_log_loss_score", Y, np.c_[1 - CHANCE, CHANCE / 2, CHANCE / 2], {"labels": [0, 1, 2]}),
        ("d2_log_loss_score", np.ones(ROWS, int), np.c_[1 - CHANCE, CHANCE], {"labels": [0, 1]}),
        ("d2_brier_score", Y, CHANCE, {}),
        ("d2_brier_score", WORDS, CHANCE, {"pos_label": "no"}),
        ("d2_brier_score", np.sort(WORDS), np.c_[1 - CHANCE, CHANCE], {}),
    ],
)
def test_parameters_mean_the_same(
    name: str, y: Any, predicted: Any, options: dict[str, Any], weight: Any
) -> None:
    metric, peer = (getattr(of, name) for of in (metrics, known))
    given = [y, predicted.astype(int) if predicted.dtype == bool else predicted]
    expected = peer(*given, sample_weight=weight, **options)
    local = metric(*given, sample_weight=weight, **options)
    np.testing.assert_allclose(local, expected, rtol=1e-12)
    cut = [da.from_array(each, chunks=(70, *each.shape[1:])) for each in given]
    weights = None if weight is None else da.from_array(weight, chunks=70)
    found = metric(*cut, sample_weight=weights, **options)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert type(found) is type(expected)


def test_values_that_a_metric_excludes_are_named_with_their_place() -> None:
    y, predicted = (da.from_array(values, chunks=70) for values in (T[:, 0], P[:, 0]))
    for metric in (metrics.mean_poisson_deviance, metrics.mean_gamma_deviance):
        with pytest.raises(ValueError, match=r"y_true in partition \d has a -\S+, which"):
            metric(-y, predicted)
        with pytest.raises(ValueError, match=r"y_pred in partition \d has a -\S+, which"):
            metric(y, -predicted)
    with pytest.raises(ValueError, match=r"y_true in partition \d has a 0, which the gamma"):
        metrics.mean_gamma_deviance(y * 0, predicted)
    with pytest.raises(ValueError, match=r"'no' must be one of two labels|is not a valid label"):
        metrics.brier_score_loss(da.from_array(Y, chunks=70), predicted / 100, pos_label="no")
    with pytest.raises(ValueError, match="multioutput='variance_weighted' is not possible"):
        metrics.mean_squared_error(y, predicted, multioutput="variance_weighted")
    classes = da.from_array(RNG.integers(0, 3, ROWS), chunks=70)
    chances = da.from_array(np.full((ROWS, 3), 1 / 3), chunks=(70, 3))
    with pytest.raises(ValueError, match="Partial AUC computation not available in multiclass"):
        metrics.roc_auc_score(classes, chances, max_fpr=0.5, multi_class="ovr")


def test_what_is_explained_of_one_row_is_not_defined() -> None:
    one = da.from_array(np.ones(1), chunks=1)
    for metric, predicted in (
        (metrics.d2_tweedie_score, one), (metrics.d2_pinball_score, one),
        (metrics.d2_log_loss_score, da.from_array(np.ones((1, 1)), chunks=1)),
        (metrics.d2_brier_score, one),
    ):  # fmt: skip
        with pytest.warns(UndefinedMetricWarning, match="not well-defined with less than two"):
            assert np.isnan(metric(one, predicted))


def test_deviances_and_functions_are_scorers() -> None:
    X = RNG.normal(size=(ROWS, 2))
    y = RNG.poisson(np.exp(X[:, 0]))
    model = LinearRegressor(loss="poisson").fit(X, y)
    lazy, targets = da.from_array(X, chunks=(70, 2)), da.from_array(y, chunks=70)
    for name in (
        "neg_mean_poisson_deviance", "neg_mean_gamma_deviance", "d2_absolute_error_score"
    ):  # fmt: skip
        positive = targets + (name == "neg_mean_gamma_deviance")
        expected = known.get_scorer(name)(model, X, positive.compute())
        assert metrics.get_scorer(name)(model, lazy, positive) == pytest.approx(expected)

    def score(estimator: Any, X: Any, y: Any) -> float:
        return 3.0

    assert metrics.get_scorer(score) is score
    scorer = known.make_scorer(known.mean_squared_error)
    expected = scorer(model, X, targets.compute())
    assert metrics.get_scorer(scorer)(model, lazy, targets) == pytest.approx(expected)
