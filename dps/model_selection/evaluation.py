"""Fits of candidates on folds, and their scores, as scikit-learn's searches tell them."""

from __future__ import annotations

import time
import traceback
import warnings
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal

from sklearn import get_config
from sklearn.base import clone, is_classifier
from sklearn.metrics import check_scoring
from sklearn.model_selection._validation import (
    _insert_error_scores,
    _warn_or_raise_about_fit_failures,
)
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.parallel import Parallel, delayed

from dps.errors import DPSError, NonFiniteError
from dps.metrics import get_scorer, get_scorer_names
from dps.metrics.scorers import Scorer
from dps.model_selection.folds import Folds

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

    from dps._typing import ScorersLike, Splitting


def scorer_of(scoring: Any) -> Any:
    """What scores; of several metrics, by name."""
    if scoring is None:
        return _own_score
    if isinstance(scoring, dict):
        return {name: scorer_of(one) for name, one in scoring.items()}
    if isinstance(scoring, list | tuple | set):
        return {name: get_scorer(name) for name in scoring}
    return get_scorer(scoring) if isinstance(scoring, str) else scoring


def of_second_class(scoring: Any) -> Any:
    """Scoring of local data, in which f1 and the like are of the second class, whatever its name.

    With metadata routing it stays as it is: scikit-learn's own scorers say what they take.
    """
    if get_config()["enable_metadata_routing"]:
        return scoring
    if isinstance(scoring, dict):
        return {name: of_second_class(one) for name, one in scoring.items()}
    if isinstance(scoring, list | tuple | set):
        return {name: of_second_class(name) for name in scoring}
    if isinstance(scoring, str) and scoring in get_scorer_names():
        scorer = get_scorer(scoring)
        return scorer if scorer.is_of_second else scoring
    return scoring


def _own_score(estimator: BaseEstimator, X: Any, y: Any, sample_weight: Any = None) -> float:
    """The estimator's own."""
    weights = {} if sample_weight is None else {"sample_weight": sample_weight}
    return float(estimator.score(X, y, **weights))


@dataclass(frozen=True)
class Routes:
    """Which of the parameters of a search go to fits, and which to scorers; by their names."""

    fit: frozenset[str]
    score: frozenset[str]

    @classmethod
    def of(
        cls,
        owner: str,
        estimator: BaseEstimator,
        scoring: ScorersLike | None,
        cv: Splitting | None,
        params: dict[str, Any],
    ) -> Routes | None:
        """By scikit-learn's metadata routing; None if that is off.

        Raises UnsetMetadataPassedError, TypeError: metadata is given that was not requested, or is
        not accepted.
        """
        if not get_config()["enable_metadata_routing"]:
            return None
        fits = MethodMapping().add(caller="fit", callee="fit")
        scores = MethodMapping().add(caller="fit", callee="score")
        splits = MethodMapping().add(caller="fit", callee="split")
        router = MetadataRouter(owner=owner).add(estimator=estimator, method_mapping=fits)
        router.add(scorer=check_scoring(estimator, scoring=scoring), method_mapping=scores)
        if hasattr(cv, "get_metadata_routing"):
            router.add(splitter=cv, method_mapping=splits)
        routed = process_routing(router, "fit", **params)
        return cls(frozenset(routed.estimator.fit), frozenset(routed.scorer.score))

    def of_fit(self, params: dict[str, Any]) -> dict[str, Any]:
        """Those that go to fits."""
        return {name: value for name, value in params.items() if name in self.fit}

    def of_score(self, params: dict[str, Any]) -> dict[str, Any]:
        """Those that go to scorers."""
        return {name: value for name, value in params.items() if name in self.score}


def evaluate(
    estimator: BaseEstimator,
    candidates: list[dict[str, Any]],
    data: Folds,
    scorer: Any,
    *,
    n_jobs: int | None,
    error_score: float | Literal["raise"],
    train_score: bool = False,
    return_estimator: bool = False,
    routes: Routes | None = None,
) -> list[dict[str, Any]]:
    """What each candidate scores on each fold, trained on the others; candidate by candidate.

    candidates: its parameters.
    n_jobs: fits at once.
    train_score: whether the rows that were trained on are scored, too.
    return_estimator: whether the estimators are kept.
    routes: by default all parameters go to fits, and weights to scores too.
    Raises ValueError: a scorer cannot score such labels at all.
    """
    if is_classifier(estimator):
        _check_scorer(scorer, data)

    def one(parameters: dict[str, Any], fold: int) -> dict[str, Any]:
        train = data.train(fold)
        found: dict[str, Any] = {"fit_error": None, "score_time": 0.0}
        start = time.time()
        try:
            model = clone(estimator).set_params(**clone(parameters, safe=False))
            if return_estimator:
                found["estimator"] = model
            params = train[2] if routes is None else routes.of_fit(train[2])
            model.fit(*train[:2], **params)
        except Exception as error:
            if error_score == "raise" or _is_of_cluster(error):
                raise
            found |= {"fit_error": traceback.format_exc(), "test_scores": error_score}
            found |= {"train_scores": error_score} if train_score else {}
            found["fit_time"] = time.time() - start
            return found
        found["fit_time"] = time.time() - start
        start = time.time()
        found["test_scores"] = _scores(scorer, model, *data.test(fold), routes, error_score)
        found["score_time"] = time.time() - start
        if train_score:
            found["train_scores"] = _scores(scorer, model, *train, routes, error_score)
        return found

    # Threads, whatever the backend: Futures belong to this process.
    pairs = [(parameters, fold) for parameters in candidates for fold in range(data.n_splits)]
    jobs = (delayed(one)(*pair) for pair in pairs)
    found: list[dict[str, Any]] = Parallel(n_jobs=n_jobs, require="sharedmem")(jobs)
    _warn_or_raise_about_fit_failures(found, error_score)
    _insert_error_scores(found, error_score)
    return found


def _is_of_cluster(error: Exception) -> bool:
    """Whether it says nothing of a candidate."""
    return isinstance(error, DPSError) and not isinstance(error, NonFiniteError)


def _scores(
    scorer: Any,
    model: BaseEstimator,
    X: Any,
    y: Any,
    params: dict[str, Any],
    routes: Routes | None,
    error_score: float | Literal["raise"],
) -> Any:
    """The score; by name, where there are several scorers; `error_score` where one fails."""
    if isinstance(scorer, dict):
        return {
            name: _scores(one, model, X, y, params, routes, error_score)
            for name, one in scorer.items()
        }
    options = {}
    if routes is not None:
        options = routes.of_score(params)
    elif "sample_weight" in signature(scorer).parameters:
        weights = [v for k, v in params.items() if k.rpartition("__")[2] == "sample_weight"]
        options = {"sample_weight": weights[0]} if weights else {}
    try:
        return scorer(model, X, y, **options)
    except Exception as error:
        if error_score == "raise" or _is_of_cluster(error):
            raise
        warnings.warn(
            "Scoring failed. The score on this train-test partition for these parameters will be "
            f"set to {error_score}. Details: \n{traceback.format_exc()}",
            UserWarning,
            stacklevel=2,
        )
        return error_score


def _check_scorer(scorer: Any, data: Folds) -> None:
    """Ask scorers known by name about made-up rows with the labels of all folds."""
    scorers = scorer.values() if isinstance(scorer, dict) else [scorer]
    asked = [each for each in scorers if isinstance(each, Scorer)]
    labels = data.labels() if asked else None
    if labels is not None:
        for each in asked:
            each.check(labels)
