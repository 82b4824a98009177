"""Searches and cross-validation over folds: scikit-learn's, extended to Dask data.

The candidates, the results and the choice of the best one are scikit-learn's own code.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn import model_selection
from sklearn.base import clone, is_classifier

from dps.cluster.choice import client_of
from dps.data.collections.partitions import as_pandas, is_dask
from dps.model_selection.columns import in_all_columns
from dps.model_selection.evaluation import Evaluation, Routes, of_one_class, scorer_of
from dps.model_selection.folds import Folds, PartitionKFold

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

    from dps._typing import MatrixLike, ScorersLike, Splitting, VectorLike


class _OnDask:
    """Adds Dask data to a search of scikit-learn's."""

    estimator: BaseEstimator
    cv: Splitting | None
    scoring: ScorersLike | None
    refit: Any
    n_jobs: Any
    verbose: int
    pre_dispatch: int | str
    error_score: float | Literal["raise"]
    return_train_score: bool

    def _candidates(self) -> list[dict[str, Any]]:
        """Return the parameters to try."""
        raise NotImplementedError

    def fit(self, X: MatrixLike, y: VectorLike | None = None, **params: Any) -> Self:
        """Fit all candidates on all folds but one, for each fold; then the best one on all rows.

        Parameters
        ----------
        X : dask array or dataframe, or list of Delayed objects or Futures; or local data
        y : vector of length n, as for the estimators
        **params : of the estimator's `fit`
            Vectors of length n are cut as `X` is. `sample_weight` also counts in scores, and
            `groups` goes to `cv`, as in scikit-learn.

        Returns
        -------
        self

        Raises
        ------
        ValueError, TypeError
            A parameter or the data is not as it should be.
        dps.errors.ClusterError
            The cluster failed.
        """
        X, y = as_pandas(X), as_pandas(y)
        if not is_dask(X):
            # Parameters do not change, even while other threads use this object.
            local = copy(self)
            local.scoring = of_one_class(self.scoring)
            super(_OnDask, local).fit(X, y, **params)  # type: ignore[misc]
            vars(self).update(vars(local) | {"scoring": self.scoring})
            return self
        self._validate_params()  # type: ignore[attr-defined]
        scorer = scorer_of(self.scoring)
        several = isinstance(scorer, dict)
        if several:
            self._check_refit_for_multimetric(scorer)  # type: ignore[attr-defined]
        candidates = self._candidates()
        for candidate in candidates:  # before any data moves
            clone(self.estimator).set_params(**clone(candidate, safe=False))
        with _placed(self.estimator) as (estimator, client, given):
            cv = _folds_for(self.cv, estimator)
            routes = Routes.of(type(self).__name__, estimator, self.scoring, cv, params)
            groups = params.pop("groups", None)
            data = Folds(cv, client, X, y, params, groups)
            how = Evaluation(
                scorer, self.n_jobs, self.error_score, routes, self.verbose, self.pre_dispatch,
                self.return_train_score,
            )  # fmt: skip
            found = how.run(estimator, candidates, data)
            results = self._format_results(candidates, data.n_splits, found)  # type: ignore[attr-defined]
            self.n_splits_, self.multimetric_ = data.n_splits, several
            self.scorer_, self.cv_results_ = scorer, results
            metric = self.refit if several else "score"
            if self.refit or not several:
                self.best_index_ = self._select_best_index(self.refit, metric, results)  # type: ignore[attr-defined]
                if not callable(self.refit):
                    self.best_score_ = results[f"mean_test_{metric}"][self.best_index_]
                self.best_params_ = results["params"][self.best_index_]
            if self.refit:
                best = clone(estimator).set_params(**clone(self.best_params_, safe=False))
                start = time.time()
                X, y, params = data.whole()
                best.fit(X, y, **(params if routes is None else routes.of_fit(params)))
                self.refit_time_ = time.time() - start
                self.best_estimator_ = best.set_params(**given)
                if hasattr(best, "feature_names_in_"):
                    self.feature_names_in_ = best.feature_names_in_
        return self


class GridSearchCV(_OnDask, model_selection.GridSearchCV):
    """scikit-learn's `GridSearchCV`, which also takes data of Dask.

    Data of Dask is computed once, cut into folds where it lies, and held by the workers until the
    search ends. A fit of small data is a task on one of them. Others train on the pieces of all
    folds but one, without a copy of them, and on all workers. Parameters and attributes are
    scikit-learn's.

    Parameters
    ----------
    estimator : estimator
        The estimator of dps, or a pipeline that ends in one, whose clones are fitted.
    param_grid : dict or list of dict
        Values to try for each parameter, by its name.
    scoring : str, callable, list, tuple or dict, default=None
        For data of Dask, names that `dps.metrics.get_scorer` knows, or callables
        ``(estimator, X, y) -> float``, which are given lazy data on the estimator's client.
    n_jobs : int, default=None
        For data of Dask, how many fits of all workers are made at once, each from a thread of this
        process.
    refit : bool, str or callable, default=True
        Whether the best candidate is fitted on all rows; with several scores the name of the one
        that decides, or a function that chooses from ``cv_results_``.
    cv : int, PartitionKFold, splitter or iterable, default=None
        For data of Dask. A number of folds, 5 by default, of rows, dealt out within each
        partition, stratified for a classifier; `dps.model_selection.PartitionKFold`; or row
        numbers over all partitions: pairs of those to train on and those to score on, or a splitter
        of scikit-learn's that makes them of numbers alone, such as `PredefinedSplit` or
        `TimeSeriesSplit`, of numbers and ``fit(..., groups=)``, such as `GroupKFold`, or of
        labels too, such as `StratifiedGroupKFold`: groups and labels come to this process. Where
        lengths are unknown, rows are counted first.
    verbose : int, default=0
        More than 0 prints a line for each fit.
    pre_dispatch : int or str, default="2*n_jobs"
        For local data, the number of fits that are handed out at once.
    error_score : "raise" or float, default=nan
        The score of a fit that fails, or "raise".
    return_train_score : bool, default=False
        Whether rows that were trained on are scored, too.

    Examples
    --------
    >>> import dask.array as da
    >>> from dps import LinearClassifier
    >>> from dps.model_selection import GridSearchCV
    >>> X = da.random.default_rng(0).normal(size=(300, 2), chunks=(100, 2))
    >>> search = GridSearchCV(LinearClassifier(), {"alpha": [1e-3, 1e3]}, cv=3)
    >>> search.fit(X, (X[:, 0] > 0.5).astype(int)).best_params_
    {'alpha': 0.001}
    """

    def _candidates(self) -> list[dict[str, Any]]:
        return list(model_selection.ParameterGrid(self.param_grid))


class RandomizedSearchCV(_OnDask, model_selection.RandomizedSearchCV):
    """scikit-learn's `RandomizedSearchCV`, which also takes data of Dask.

    As `GridSearchCV`, with candidates that are drawn at random.

    Parameters
    ----------
    estimator
        As for `GridSearchCV`.
    param_distributions : dict or list of dict
        For each parameter, by its name, a list of values or a distribution of `scipy.stats`.
    n_iter : int, default=10
        Number of candidates.
    scoring, n_jobs, refit, cv, verbose, pre_dispatch
        As for `GridSearchCV`.
    random_state : int, RandomState or None, default=None
        Seed of the draw.
    error_score, return_train_score
        As for `GridSearchCV`.
    """

    def _candidates(self) -> list[dict[str, Any]]:
        drawn = model_selection.ParameterSampler(
            self.param_distributions, self.n_iter, random_state=self.random_state
        )
        return list(drawn)


def cross_val_score(  # noqa: PLR0913 - scikit-learn's signature
    estimator: BaseEstimator,
    X: MatrixLike,
    y: VectorLike | None = None,
    *,
    groups: VectorLike | None = None,
    scoring: ScorersLike | None = None,
    cv: Splitting | None = None,
    n_jobs: int | None = None,
    verbose: int = 0,
    params: dict[str, Any] | None = None,
    pre_dispatch: int | str = "2*n_jobs",
    error_score: float | Literal["raise"] = np.nan,
) -> NDArray[np.float64]:
    """Score an estimator on each fold, trained on the others.

    Parameters
    ----------
    estimator, X, y, groups, cv, n_jobs, verbose, params, pre_dispatch, error_score
        As for `cross_validate`.
    scoring : str or callable, optional
        The score, as for `cross_validate`, but only one.

    Returns
    -------
    (n_folds,) float64 array

    Raises
    ------
    ValueError, TypeError, dps.errors.ClusterError
        As `GridSearchCV`.
    """
    if isinstance(scoring, dict | list | tuple | set):
        raise ValueError(f"scoring of cross_val_score is one metric, got {scoring!r}")
    found = cross_validate(
        estimator, X, y, groups=groups, scoring=scoring, cv=cv, n_jobs=n_jobs, verbose=verbose,
        params=params, pre_dispatch=pre_dispatch, error_score=error_score,
    )  # fmt: skip
    return found["test_score"]


def cross_validate(  # noqa: PLR0913 - scikit-learn's signature
    estimator: BaseEstimator,
    X: MatrixLike,
    y: VectorLike | None = None,
    *,
    groups: VectorLike | None = None,
    scoring: ScorersLike | None = None,
    cv: Splitting | None = None,
    n_jobs: int | None = None,
    verbose: int = 0,
    params: dict[str, Any] | None = None,
    pre_dispatch: int | str = "2*n_jobs",
    return_train_score: bool = False,
    return_estimator: bool = False,
    error_score: float | Literal["raise"] = np.nan,
) -> dict[str, Any]:
    """Fit an estimator without each fold in turn, and score it on that fold by several metrics.

    Parameters
    ----------
    estimator : estimator, or pipeline of lazy transformers and one
    X, y
        Data as for its `fit`, from Dask or local.
    groups : vector of length n, optional
        The group of each row, for a `cv` that keeps groups together. It is fetched to this process.
    scoring : str, callable, list, tuple or dict, optional
        As for `GridSearchCV`; by default the estimator's own `score`.
    cv : int, PartitionKFold, splitter or iterable, optional
        Likewise.
    n_jobs : int, optional
        Number of concurrent fits.
    verbose : int, default=0
        If above 0, joblib's report of the fits that have ended is printed.
    params : dict, optional
        Of the estimator's `fit`, such as `sample_weight`.
    pre_dispatch : int or str, default="2*n_jobs"
        Number of fits that are prepared ahead, as in joblib.
    return_train_score : bool, default=False
        If True, training rows are scored too.
    return_estimator : bool, default=False
        If True, the fitted estimators are returned.
    error_score : "raise" or float, default=nan
        The score of a fit that fails.

    Returns
    -------
    dict of arrays of shape (n_folds,)
        ``fit_time`` and ``score_time`` in seconds; ``test_score``, and ``train_score`` if asked
        for, of several metrics ``test_<name>``; ``estimator``, a list, if asked for.

    Raises
    ------
    ValueError, TypeError, dps.errors.ClusterError
        As `GridSearchCV`.

    Examples
    --------
    >>> import dask.array as da
    >>> from dps import LinearClassifier
    >>> from dps.model_selection import cross_validate
    >>> X = da.random.default_rng(0).normal(size=(300, 2), chunks=(100, 2))
    >>> scoring = ["f1", "roc_auc"]
    >>> found = cross_validate(LinearClassifier(), X, X[:, 0] > 0.5, cv=3, scoring=scoring)
    >>> sorted(found)
    ['fit_time', 'score_time', 'test_f1', 'test_roc_auc']
    """
    X, y = as_pandas(X), as_pandas(y)
    if not is_dask(X):
        return model_selection.cross_validate(
            estimator, X, y, groups=groups, scoring=of_one_class(scoring), cv=cv,
            n_jobs=n_jobs, verbose=verbose, params=params, pre_dispatch=pre_dispatch,
            return_train_score=return_train_score, return_estimator=return_estimator,
            error_score=error_score,
        )  # fmt: skip
    scorer = scorer_of(scoring)
    with _placed(estimator) as (placed, client, given):
        cv, params = _folds_for(cv, placed), dict(params or {})
        routes = Routes.of("cross_validate", placed, scoring, cv, params)
        groups = params.pop("groups", groups) if routes is not None else groups
        data = Folds(cv, client, X, y, params, groups)
        how = Evaluation(
            scorer, n_jobs, error_score, routes, verbose, pre_dispatch, return_train_score,
            return_estimator,
        )  # fmt: skip
        found = how.run(placed, [{}], data)
    results: dict[str, Any] = {
        f"{what}_time": np.array([f[f"{what}_time"] for f in found]) for what in ("fit", "score")
    }
    if return_estimator:
        results["estimator"] = [of_fold["estimator"].set_params(**given) for of_fold in found]
    for where in ("test", "train")[: 1 + return_train_score]:
        of_folds = [of_fold[f"{where}_scores"] for of_fold in found]
        for name in scorer if isinstance(scorer, dict) else ["score"]:
            values = [each[name] if isinstance(each, dict) else each for each in of_folds]
            results[f"{where}_{name}"] = np.array(values)
    return results


def cross_val_predict(  # noqa: PLR0913 - scikit-learn's signature
    estimator: BaseEstimator,
    X: MatrixLike,
    y: VectorLike | None = None,
    *,
    groups: VectorLike | None = None,
    cv: Splitting | None = None,
    n_jobs: int | None = None,
    verbose: int = 0,
    params: dict[str, Any] | None = None,
    pre_dispatch: int | str = "2*n_jobs",
    method: str = "predict",
) -> Any:
    """Predict each row with an estimator that was trained on the other folds.

    Parameters
    ----------
    estimator, X, y, groups, cv, n_jobs, verbose, params, pre_dispatch
        As for `cross_validate`; each row must be in one fold.
    method : str, default="predict"
        Name of the estimator's method that predicts.

    Returns
    -------
    predictions for `X`
        In partitions like `X`, in the memory of workers. If a fold was trained without a class, the
        column of that class holds zeros, or the least float, with scikit-learn's warning.

    Raises
    ------
    ValueError, TypeError, dps.errors.ClusterError
        As `GridSearchCV`; or the client of the estimator is an address: it would be closed before
        the predictions in the memory of its workers are used.

    Examples
    --------
    >>> import dask.array as da
    >>> from dps import LinearClassifier
    >>> from dps.metrics import confusion_matrix
    >>> from dps.model_selection import cross_val_predict
    >>> X = da.random.default_rng(0).normal(size=(300, 2), chunks=(100, 2))
    >>> y = (X[:, 0] > 0.5).astype(int)
    >>> confusion_matrix(y, cross_val_predict(LinearClassifier(), X, y, cv=3)).sum()
    np.int64(300)
    """
    X, y = as_pandas(X), as_pandas(y)
    if not is_dask(X):
        return model_selection.cross_val_predict(
            estimator, X, y, groups=groups, cv=cv, n_jobs=n_jobs, verbose=verbose, params=params,
            pre_dispatch=pre_dispatch, method=method,
        )  # fmt: skip

    def predicted(model: BaseEstimator, X: MatrixLike, y: VectorLike) -> Any:
        return getattr(model, method)(X)

    with _placed(estimator) as (placed, client, given):
        if any(value is not client for value in given.values()):
            raise ValueError(
                "what cross_val_predict returns lies on workers, and its client would be closed by "
                "then: give the estimator a Client"
            )
        cv, params = _folds_for(cv, placed), dict(params or {})
        routes = Routes.of("cross_val_predict", placed, None, cv, params)
        if routes is not None:
            groups, routes = params.pop("groups", groups), replace(routes, score=frozenset())
        data = Folds(cv, client, X, y, params, groups)
        data.check_each_row_once()
        how = Evaluation(
            predicted, n_jobs, "raise", routes, verbose, pre_dispatch, return_estimator=True
        )
        found = how.run(placed, [{}], data)
        models = [of_fold["estimator"] for of_fold in found]
        made = [of_fold["test_scores"] for of_fold in found]
        return data.in_order(in_all_columns(made, models, method))


def _folds_for(cv: Splitting | None, estimator: BaseEstimator) -> Any:
    if cv is None or isinstance(cv, int | np.integer):
        return PartitionKFold(5 if cv is None else int(cv), stratify=is_classifier(estimator))
    return cv


@contextmanager
def _placed(estimator: BaseEstimator) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    """Yield an estimator with an open client, the client, and its original parameters."""
    given = {
        name: value
        for name, value in estimator.get_params().items()
        if name.rpartition("__")[2] == "client" and value is not None
    }
    with client_of(next(iter(given.values()), None)) as client:
        yield clone(estimator).set_params(**dict.fromkeys(given, client)), client, given
