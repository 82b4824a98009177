"""Fits and scores of candidates on folds, in the form of scikit-learn's searches."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass
from functools import partial
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

from dps._warned import warn, warned
from dps.errors import DPSError, NonFiniteError
from dps.metrics import get_scorer, get_scorer_names
from dps.metrics.scorers import Scorer, Scorers
from dps.model_selection.folds import Folds

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

    from dps._typing import ScorersLike, Splitting


#: X, y, and further arguments of `fit`.
Rows = tuple[Any, Any, dict[str, Any]]
#: Parameters of estimators, and values with which a fit needs only one thread.
_LOCAL = {"n_replicas": "auto", "checkpoint": None, "server": None, "verbose": 0}


def scorer_of(scoring: Any) -> Any:
    """Return the scorer, or a scorer of several metrics by name."""
    if scoring is None:
        return _own_score
    if isinstance(scoring, dict):
        return {name: scorer_of(one) for name, one in scoring.items()}
    if isinstance(scoring, list | tuple | set):
        return {name: get_scorer(name) for name in scoring}
    return get_scorer(scoring)


def of_one_class(scoring: Any) -> Any:
    """Return scoring for local data in which f1 and the like accept classes of any names.

    With metadata routing it is unchanged: scikit-learn's own scorers declare their metadata.
    """
    if get_config()["enable_metadata_routing"]:
        return scoring
    if isinstance(scoring, dict):
        return {name: of_one_class(one) for name, one in scoring.items()}
    if isinstance(scoring, list | tuple | set):
        return {name: of_one_class(name) for name in scoring}
    if isinstance(scoring, str) and scoring in get_scorer_names():
        scorer = get_scorer(scoring)
        return scorer if scorer.is_of_one else scoring
    return scoring


def _own_score(estimator: BaseEstimator, X: Any, y: Any, sample_weight: Any = None) -> float:
    """Return the estimator's own score."""
    weights = {} if sample_weight is None else {"sample_weight": sample_weight}
    return float(estimator.score(X, y, **weights))


@dataclass(frozen=True)
class Routes:
    """Names of a search's parameters that go to fits and to scorers."""

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
        """Return the routes of scikit-learn's metadata routing; None if that is off.

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
        """Return the parameters for fits."""
        return {name: value for name, value in params.items() if name in self.fit}

    def of_score(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters for scorers."""
        return {name: value for name, value in params.items() if name in self.score}


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of candidates: fits and scores on folds."""

    scorer: Any
    n_jobs: int | None  # fits at a time
    error_score: float | Literal["raise"]
    # By default all parameters go to fits, and weights also to scorers.
    routes: Routes | None = None
    verbose: int = 0  # verbosity of joblib
    pre_dispatch: int | str = "2*n_jobs"  # number of fits that are prepared
    train_score: bool = False  # whether training rows are scored, too
    return_estimator: bool = False

    def run(
        self, estimator: BaseEstimator, candidates: list[dict[str, Any]], data: Folds
    ) -> list[dict[str, Any]]:
        """Score each candidate on each fold after training on the others, candidate by candidate.

        Raises ValueError: a scorer cannot score such labels.
        """
        if is_classifier(estimator):
            _check_scorer(self.scorer, data)
        if self._is_local(estimator, candidates) and data.is_small:
            found = self._in_tasks(estimator, candidates, data)
        else:
            found = self._in_threads(estimator, candidates, data)
        _warn_or_raise_about_fit_failures(found, self.error_score)
        _insert_error_scores(found, self.error_score)
        return found

    def _is_local(self, estimator: BaseEstimator, candidates: list[dict[str, Any]]) -> bool:
        """True if fits and scores of small data need only one thread of a worker."""
        asked = estimator.get_params(deep=False)
        given = {name for candidate in candidates for name in candidate}
        scorers = self.scorer.values() if isinstance(self.scorer, dict) else [self.scorer]
        return (
            not getattr(estimator, "_is_own", True)  # a user's model may be slow, or need more
            and all(asked[name] == usual for name, usual in _LOCAL.items())
            and not given & {*_LOCAL, "client"}
            and all(each is _own_score or isinstance(each, Scorer | Scorers) for each in scorers)
            and not (self.return_estimator or self.verbose)
        )

    def _in_tasks(
        self, estimator: BaseEstimator, candidates: list[dict[str, Any]], data: Folds
    ) -> list[dict[str, Any]]:
        """Fit and score local data in a task for each candidate and fold."""
        alone = clone(estimator).set_params(client=None)
        found = []
        for scores, said in data.in_tasks(partial(_task, self, alone), candidates):
            for each in said:
                warn(each, stacklevel=4)
            found.append(scores)
        return found

    def _in_threads(
        self, estimator: BaseEstimator, candidates: list[dict[str, Any]], data: Folds
    ) -> list[dict[str, Any]]:
        """Run fits of the cluster one after the other, or `n_jobs` at a time."""

        def one(parameters: dict[str, Any], fold: int) -> dict[str, Any]:
            return self.one(estimator, parameters, data.train(fold), data.test(fold))

        pairs = ((parameters, fold) for parameters in candidates for fold in range(data.n_splits))
        # Threads with any backend: Futures belong to this process.
        parallel = Parallel(
            n_jobs=self.n_jobs, verbose=self.verbose, pre_dispatch=self.pre_dispatch,
            require="sharedmem",
        )  # fmt: skip
        found: list[dict[str, Any]] = parallel(delayed(one)(*pair) for pair in pairs)
        return found

    def one(
        self, estimator: BaseEstimator, parameters: dict[str, Any], train: Rows, test: Rows
    ) -> dict[str, Any]:
        """Fit a candidate, and score it on one fold."""
        X, y, params = train
        found: dict[str, Any] = {"fit_error": None, "score_time": 0.0}
        start = time.time()
        try:
            model = clone(estimator).set_params(**clone(parameters, safe=False))
            if self.return_estimator:
                found["estimator"] = model
            model.fit(X, y, **(params if self.routes is None else self.routes.of_fit(params)))
        except Exception as error:
            if self.error_score == "raise" or _is_of_cluster(error):
                raise
            found |= {"fit_error": traceback.format_exc(), "test_scores": self.error_score}
            found |= {"train_scores": self.error_score} if self.train_score else {}
            found["fit_time"] = time.time() - start
            return found
        found["fit_time"] = time.time() - start
        start = time.time()
        found["test_scores"] = self._scores(self.scorer, model, *test)
        found["score_time"] = time.time() - start
        if self.train_score:
            found["train_scores"] = self._scores(self.scorer, model, X, y, params)
        return found

    def _scores(
        self, scorer: Any, model: BaseEstimator, X: Any, y: Any, params: dict[str, Any]
    ) -> Any:
        """Return the score, or scores by name; `error_score` if one fails."""
        if isinstance(scorer, dict):
            return {name: self._scores(one, model, X, y, params) for name, one in scorer.items()}
        options = {}
        if self.routes is not None:
            options = self.routes.of_score(params)
        elif "sample_weight" in signature(scorer).parameters:
            weights = [v for k, v in params.items() if k.rpartition("__")[2] == "sample_weight"]
            options = {"sample_weight": weights[0]} if weights else {}
        try:
            return scorer(model, X, y, **options)
        except Exception as error:
            if self.error_score == "raise" or _is_of_cluster(error):
                raise
            warn(
                "Scoring failed. The score on this train-test partition for these parameters will "
                f"be set to {self.error_score}. Details: \n{traceback.format_exc()}",
                UserWarning,
                stacklevel=2,
            )
            return self.error_score


def _task(
    how: Evaluation, estimator: BaseEstimator, parameters: dict[str, Any], train: Rows, test: Rows
) -> tuple[dict[str, Any], list[Warning]]:
    """Evaluate a candidate on a worker, and return its warnings for the caller."""
    with warned() as found:
        return how.one(estimator, parameters, train, test), found


def _is_of_cluster(error: Exception) -> bool:
    """True if an error comes from the cluster and not from the candidate."""
    return isinstance(error, DPSError) and not isinstance(error, NonFiniteError)


def _check_scorer(scorer: Any, data: Folds) -> None:
    """Check named scorers on made-up rows with the labels of all folds."""
    scorers = scorer.values() if isinstance(scorer, dict) else [scorer]
    asked = [each for each in scorers if isinstance(each, Scorer)]
    labels = data.labels() if asked else None
    if labels is not None:
        for each in asked:
            each.check(labels)
