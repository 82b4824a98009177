"""Probabilities of rare events, and validation rows of rare labels."""

import dask.array as da
import numpy as np
import pytest
from sklearn.metrics import log_loss

import dps
from dps.losses import Hinge, LogLoss, ModifiedHuber, Poisson, Quantile, SquaredError, SquaredHinge
from dps.losses.classification import Multilabel, OneVsRest, Softmax
from dps.losses.constants import best_constant, loss_of_mean


def events(shift, rows=60_000):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 10))
    chances = 1 / (1 + np.exp(-(2 * X[:, 0] + X[:, 1] + shift)))
    return X, (rng.random(rows) < chances).astype(int)


@pytest.mark.parametrize(
    "options",
    [
        {"early_stopping": True},
        {"batch_size": 1024},
        {"mode": "async", "optimizer": "scaled_adagrad", "n_replicas": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("shift", [-2.6, -7, -9])
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
    """How many rows of label 1 are held out, by what a score sees."""
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
