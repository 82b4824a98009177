"""Defaults on text: rows that touch few of many columns, of values of any size."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from sklearn.linear_model import LogisticRegression, Ridge
from versions import L1

import dps
from dps.estimators.fit import fit as fitting
from dps.optimizers import SGD, Adagrad, Constant
from dps.training.job import Job
from dps.training.lbfgs.full_batch import FullBatch

TRAINED, HELD_OUT, WORDS, WIDTH = 2000, 4000, 40, 8192
TRAIN, TEST = slice(TRAINED), slice(TRAINED, None)


def text(size: float) -> tuple[Any, Any]:
    """Rows of words as frequent as Zipf says, each as a value of a size; and their sense."""
    rng = np.random.default_rng(0)
    rows = TRAINED + HELD_OUT
    words = rng.zipf(1.2, size=(rows, WORDS)) % WIDTH
    sense = np.random.default_rng(1).normal(size=WIDTH)
    starts = np.arange(0, rows * WORDS + 1, WORDS, dtype=np.int32)
    values = np.full(rows * WORDS, size)
    X = scipy.sparse.csr_array((values, words.ravel().astype(np.int32), starts), (rows, WIDTH))
    return X, sense[words].sum(axis=1)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The jobs of the fits of a test."""
    made: list[Job] = []
    train = fitting.train

    def noting(job: Job, *more: Any) -> Any:
        made.append(job)
        return train(job, *more)

    monkeypatch.setattr(fitting, "train", noting)
    return made


@pytest.mark.parametrize(
    ("mode", "size", "noise"),
    [("sync", 1e-3, 6.0), ("sync", 1.0, 0.0), ("allreduce", 1.0, 6.0), ("allreduce", 1e3, 0.0)],
)
def test_defaults_classify_as_well_as_the_optimum(
    mode: str, size: float, noise: float, jobs: list[Job]
) -> None:
    X, sense = text(size)
    sense += noise * np.random.default_rng(2).normal(size=len(sense))
    y = sense > np.median(sense)
    # The same model for values of each size; theirs is found where it converges.
    alpha = WORDS * size**2 / TRAINED / 100
    model = dps.LinearClassifier(mode=mode, alpha=alpha, random_state=0).fit(X[TRAIN], y[TRAIN])
    assert jobs[0].full_batch is None
    assert isinstance(jobs[0].optimizer, Adagrad)
    rows = X / size / WORDS**0.5
    optimum = LogisticRegression(C=100, max_iter=1000).fit(rows[TRAIN], y[TRAIN])
    assert model.score(X[TEST], y[TEST]) >= optimum.score(rows[TEST], y[TEST]) - 0.01


def test_regressions_and_stronger_penalties_are_left_to_lbfgs(jobs: list[Job]) -> None:
    X, sense = text(WORDS**-0.5)
    y = sense > np.median(sense)
    model = dps.LinearClassifier(alpha=1 / TRAINED, random_state=0).fit(X[TRAIN], y[TRAIN])
    theirs = LogisticRegression(C=1).fit(X[TRAIN], y[TRAIN])
    assert model.score(X[TEST], y[TEST]) >= theirs.score(X[TEST], y[TEST]) - 0.005
    regression = dps.LinearRegressor(alpha=1 / TRAINED, random_state=0)
    regression.fit(X[TRAIN], sense[TRAIN])
    ridge = Ridge(alpha=1).fit(X[TRAIN], sense[TRAIN])
    assert regression.score(X[TEST], sense[TEST]) >= ridge.score(X[TEST], sense[TEST]) - 0.005
    assert all(isinstance(job.full_batch, FullBatch) for job in jobs)


def test_what_is_asked_for_is_done(jobs: list[Job]) -> None:
    X, sense = text(1.0)
    y = sense > np.median(sense)
    options: list[dict[str, Any]] = [
        {"optimizer": "lbfgs"},
        {"batch_size": 32},
        {"learning_rate": 0.25},
        {"optimizer": "sgd"},
    ]
    for asked in options:
        with warnings.catch_warnings(action="ignore"):
            dps.LinearClassifier(random_state=0, max_iter=2, alpha=1e-6, **asked).fit(X, y)
    assert isinstance(jobs[0].full_batch, FullBatch)
    assert jobs[1].batch_size == 32
    assert jobs[2].schedule == Constant(0.25)
    assert jobs[3].optimizer == SGD()


def test_few_rows_few_columns_and_often_used_columns_are_not_wide(jobs: list[Job]) -> None:
    X, sense = text(1.0)
    y = sense > np.median(sense)
    often = scipy.sparse.csr_array(np.random.default_rng(0).normal(size=(1100, 4096)))
    often_y = np.arange(1100) % 2
    for data, labels in ((X[:900], y[:900]), (X[:, :4000], y), (often, often_y), (X, y)):
        with warnings.catch_warnings(action="ignore"):
            dps.LinearClassifier(random_state=0, max_iter=1, alpha=1e-6).fit(data, labels)
    assert [job.full_batch is None for job in jobs] == [False, False, False, True]


def test_l1_selects_columns_of_wide_rows_too(jobs: list[Job]) -> None:
    X, sense = text(1.0)
    y = sense + 6 * np.random.default_rng(2).normal(size=len(sense)) > np.median(sense)
    alpha = WORDS / TRAINED / 100
    model = dps.LinearClassifier(penalty="l1", alpha=alpha).fit(X[TRAIN], y[TRAIN])
    theirs = LogisticRegression(
        **L1, solver="liblinear", C=1 / alpha / TRAINED, intercept_scaling=100, tol=1e-6,
        max_iter=1000, random_state=0,
    ).fit(X[TRAIN], y[TRAIN])  # fmt: skip
    assert isinstance(jobs[0].full_batch, FullBatch)
    chosen, known = np.count_nonzero(model.coef_), np.count_nonzero(theirs.coef_)
    assert abs(chosen - known) <= 0.01 * known + 1
