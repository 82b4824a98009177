"""Fits of candidates on folds, and their scores, as scikit-learn's searches tell them."""

from __future__ import annotations

import time
import traceback
from inspect import signature
from typing import Any

from sklearn.base import clone
from sklearn.model_selection._validation import (
    _insert_error_scores,
    _warn_or_raise_about_fit_failures,
)
from sklearn.utils.parallel import Parallel, delayed

from dps.errors import DPSError, NonFiniteError
from dps.metrics import get_scorer
from dps.model_selection.folds import Folds


def scorer_of(scoring: Any) -> Any:
    """What scores; of several metrics, by name."""
    if scoring is None:
        return _own_score
    if isinstance(scoring, dict):
        return {name: scorer_of(one) for name, one in scoring.items()}
    if isinstance(scoring, list | tuple | set):
        return {name: get_scorer(name) for name in scoring}
    return get_scorer(scoring) if isinstance(scoring, str) else scoring


def _own_score(estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
    """The estimator's own."""
    weights = {} if sample_weight is None else {"sample_weight": sample_weight}
    return float(estimator.score(X, y, **weights))


def evaluate(
    estimator: Any,
    candidates: list[dict[str, Any]],
    data: Folds,
    scorer: Any,
    *,
    n_jobs: int | None,
    error_score: Any,
    train_score: bool = False,
    return_estimator: bool = False,
) -> list[dict[str, Any]]:
    """What each candidate scores on each fold, trained on the others; candidate by candidate.

    Parameters
    ----------
    estimator : estimator
    candidates : list of dict
        Its parameters.
    data : Folds
    scorer : callable, or dict of them
    n_jobs : int or None
        Fits at once.
    error_score : "raise" or float
        Of a fit that fails.
    train_score : bool, default=False
        Whether the rows that were trained on are scored, too.
    return_estimator : bool, default=False
        Whether the estimators are kept.
    """

    def one(parameters: dict[str, Any], fold: int) -> dict[str, Any]:
        train = data.train(fold)
        found: dict[str, Any] = {"fit_error": None, "score_time": 0.0}
        start = time.time()
        try:
            model = clone(estimator).set_params(**clone(parameters, safe=False))
            if return_estimator:
                found["estimator"] = model
            model.fit(*train[:2], **train[2])
            found["fit_time"] = time.time() - start
            start = time.time()
            found["test_scores"] = _scores(scorer, model, *data.test(fold))
            found["score_time"] = time.time() - start
            if train_score:
                found["train_scores"] = _scores(scorer, model, *train)
        except Exception as error:
            # What fails in the cluster says nothing of the candidate.
            of_cluster = isinstance(error, DPSError) and not isinstance(error, NonFiniteError)
            if error_score == "raise" or of_cluster:
                raise
            found |= {"fit_error": traceback.format_exc(), "test_scores": error_score}
            found |= {"train_scores": error_score} if train_score else {}
            found.setdefault("fit_time", time.time() - start)
        return found

    # Threads, whatever the backend: Futures belong to this process.
    pairs = [(parameters, fold) for parameters in candidates for fold in range(data.n_splits)]
    jobs = (delayed(one)(*pair) for pair in pairs)
    found: list[dict[str, Any]] = Parallel(n_jobs=n_jobs, require="sharedmem")(jobs)
    _warn_or_raise_about_fit_failures(found, error_score)
    _insert_error_scores(found, error_score)
    return found


def _scores(scorer: Any, model: Any, X: Any, y: Any, params: dict[str, Any]) -> Any:
    """The score; by name, where there are several scorers."""
    if isinstance(scorer, dict):
        return {name: _scores(one, model, X, y, params) for name, one in scorer.items()}
    options = {}
    if "sample_weight" in signature(scorer).parameters:
        weights = [v for k, v in params.items() if k.rpartition("__")[2] == "sample_weight"]
        options = {"sample_weight": weights[0]} if weights else {}
    return scorer(model, X, y, **options)
