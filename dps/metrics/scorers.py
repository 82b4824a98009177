"""Scorers by scikit-learn's names, which compute where the data lies.

A scorer of scikit-learn names its metric; dps has the scorer if it has that metric.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn import metrics
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from dps._warned import warned
from dps.cluster.choice import client_of
from dps.data.collections.partitions import as_pandas, is_dask
from dps.data.collections.parts import Parts, held, one_graph
from dps.data.collections.results import results_of
from dps.data.collections.sealed import sealed
from dps.data.feed.targets import positive_code
from dps.metrics.ranking import average_precision_score
from dps.metrics.sums import METRICS

if TYPE_CHECKING:
    from dps._typing import ClientLike, MatrixLike, VectorLike


@dataclass(frozen=True)
class Scorer:
    """``scorer(estimator, X, y)``; higher is better."""

    name: str
    metric: Callable[..., float]
    method: str | Sequence[str]  # the method that predicts; the first of several that exists
    sign: int = 1  # {1, -1}
    options: Mapping[str, object] = field(default_factory=dict)  # options of the metric

    def __call__(
        self,
        estimator: BaseEstimator,
        X: MatrixLike,
        y: VectorLike,
        sample_weight: VectorLike | None = None,
    ) -> float:
        """Score an estimator, or a pipeline that ends with one, on its client."""
        X, y, sample_weight = one_graph(as_pandas(X), as_pandas(y), as_pandas(sample_weight))
        predicted = getattr(estimator, self.method_of(estimator))(X)
        return self.of(predicted, y, sample_weight, estimator, _client(estimator))

    def method_of(self, estimator: BaseEstimator) -> str:
        """Return the method of an estimator whose results are scored."""
        names: Sequence[str] = [self.method] if isinstance(self.method, str) else self.method
        return next((name for name in names if hasattr(estimator, name)), names[0])

    def of(
        self,
        predicted: Any,
        y: VectorLike,
        sample_weight: VectorLike | None,
        estimator: BaseEstimator,
        client: ClientLike | None,
    ) -> float:
        """Score predictions."""
        options = {**self.options, "client": client, "sample_weight": sample_weight}
        classes = getattr(estimator, "classes_", None)
        if self.method == "predict_proba" and "labels" in signature(self.metric).parameters:
            # With several labels each column is 0 or 1.
            several = getattr(estimator, "multilabel_", False)
            options.setdefault("labels", None if several else classes)
        elif self.is_of_one and classes is not None and len(classes) == 2:
            label = options.setdefault("pos_label", classes[positive_code(classes)])
            if self.method != "predict" and label == classes[0]:
                predicted = _negated(predicted)
        return self.sign * self.metric(y, predicted, **options)

    @property
    def is_of_one(self) -> bool:
        """True if it scores one of two labels, see `positive_code`."""
        takes = signature(self.metric).parameters
        if not {"average", "pos_label"} <= takes.keys():
            return False
        binary = self.options.get("average", takes["average"].default) == "binary"
        return binary or self.metric is average_precision_score

    def check(self, labels: np.ndarray) -> None:
        """Raise if it cannot score such labels.

        labels: array of shape (n_classes,) or (n_rows, n_labels), distinct labels; or some rows of
            labels in columns.
        Raises ValueError: the message has the reason.
        """
        made = _Made(labels)
        try:
            with warned():
                self(made, made.rows, made.labels)
        except ValueError as error:
            kinds = labels.shape[1:] or labels.tolist()
            raise ValueError(
                f"scoring={self.name!r} cannot score the labels of y, {kinds}: {error}"
            ) from error


@dataclass(frozen=True)
class Scorers:
    """``scorers(estimator, X, y)``: several scores by name from one prediction of the rows."""

    scorers: tuple[Scorer, ...]

    def __call__(
        self,
        estimator: BaseEstimator,
        X: MatrixLike,
        y: VectorLike,
        sample_weight: VectorLike | None = None,
    ) -> dict[str, float]:
        """Score an estimator, or a pipeline that ends with one, on its client.

        Predictions, targets and weights of Dask data are in memory meanwhile.
        """
        X, y, sample_weight = one_graph(as_pandas(X), as_pandas(y), as_pandas(sample_weight))
        methods = list(dict.fromkeys(each.method_of(estimator) for each in self.scorers))
        made = [getattr(estimator, method)(X) for method in methods]
        with client_of(_client(estimator)) as client:
            lazy = {n: v for n, v in enumerate([y, sample_weight, *made]) if is_dask(v)}
            parts = [Parts(values) for values in one_graph(*lazy.values())]
            there = held(client, [of.tasks for of in parts]) if parts else []
            lazy = {
                number: of.like(tasks, of.lengths)
                for number, of, tasks in zip(lazy, parts, there, strict=True)
            }
            y, sample_weight, *made = (
                lazy.get(number, each) for number, each in enumerate([y, sample_weight, *made])
            )
            known = dict(zip(methods, made, strict=True))
            return {
                each.name: each.of(
                    known[each.method_of(estimator)], y, sample_weight, estimator, client
                )
                for each in self.scorers
            }


@dataclass(frozen=True)
class _Gathered(Scorer):
    """A scorer of scikit-learn's that gets the predictions of all rows in this process.

    metric: the scorer.
    """

    def check(self, labels: np.ndarray) -> None:
        """Raise if it cannot score such labels. A user's function is not called."""
        if self.name in get_scorer_names():
            super().check(labels)

    def of(
        self,
        predicted: Any,
        y: VectorLike,
        sample_weight: VectorLike | None,
        estimator: BaseEstimator,
        client: ClientLike | None,
    ) -> float:
        """Score predictions."""
        with client_of(client) as found:
            predicted, y, weight = _gathered(found, predicted, y, sample_weight)
        scorer: Any = self.metric
        classes = getattr(estimator, "classes_", None)
        takes = signature(scorer._score_func).parameters
        if "pos_label" in takes and classes is not None and len(classes) == 2:
            scorer = copy.copy(scorer)
            scorer._kwargs = {"pos_label": classes[positive_code(classes)], **scorer._kwargs}
        weights = (
            {} if weight is None or "sample_weight" not in takes else {"sample_weight": weight}
        )
        made = _stand_in(self.method_of(estimator), predicted, classes)
        return float(scorer(made, predicted, y, **weights))


def _gathered(client: Any, *values: Any) -> list[Any]:
    """Compute lazy values together, and return arrays; local values are returned as they are."""
    import dask

    array = dask.delayed(sealed(np.asarray), pure=True)
    parts = [[*map(array, Parts(each).tasks)] if is_dask(each) else None for each in values]
    results = iter(results_of([task for tasks in parts for task in tasks or ()], client))
    return [
        each if tasks is None else np.concatenate([next(results) for _ in tasks])
        for each, tasks in zip(values, parts, strict=True)
    ]


class _Made:
    """A classifier that predicts made-up rows, two per label."""

    def __init__(self, labels: np.ndarray) -> None:
        self.labels = np.repeat(labels, 2, axis=0)
        self.rows = np.arange(len(self.labels))
        self.classes_ = labels if labels.ndim == 1 else np.arange(labels.shape[1])
        self.multilabel_ = labels.ndim == 2

    def predict(self, X: MatrixLike) -> Any:
        return self.labels

    def predict_proba(self, X: MatrixLike) -> Any:
        if self.labels.ndim == 2:
            return (self.labels + 0.5) / 2
        chances = (self.labels[:, None] == self.classes_) + 0.1
        return chances / chances.sum(axis=1, keepdims=True)

    def decision_function(self, X: MatrixLike) -> Any:
        chances = self.predict_proba(X)
        return chances[:, 1] if len(self.classes_) == 2 and not self.multilabel_ else chances


def _negated(ranks: Any) -> Any:
    """Return ranks in the opposite order."""
    if not is_dask(ranks):
        return np.negative(ranks)
    import dask

    parts, negate = Parts(ranks), dask.delayed(sealed(np.negative), pure=True)
    return parts.like([negate(part) for part in parts.tasks], parts.lengths)


def _stand_in(method: str, predicted: Any, classes: Any) -> BaseEstimator:
    """Return an estimator that returns given predictions; without classes a regressor."""

    class StandIn(RegressorMixin if classes is None else ClassifierMixin, BaseEstimator):  # type: ignore[misc]
        def __sklearn_is_fitted__(self) -> bool:
            return True

    def answer(self: StandIn, X: Any) -> Any:
        return predicted

    answer.__name__ = method  # scikit-learn infers from it what was predicted
    setattr(StandIn, method, answer)
    made = StandIn()
    if classes is not None:
        made.classes_ = classes
    return made


def _client(estimator: BaseEstimator) -> Any:
    while hasattr(estimator, "steps"):
        estimator = estimator.steps[-1][1]
    return getattr(estimator, "client", None)


def get_scorer(scoring: str | Sequence[str] | Callable[..., Any]) -> Any:
    """The scorer of a name, as scikit-learn's `get_scorer`; it takes data of Dask as well.

    Parameters
    ----------
    scoring : str, sequence of str or callable
        One of `get_scorer_names`, several of them, or a scorer of scikit-learn's `make_scorer`.
        Any other callable is returned as it is.

    Returns
    -------
    callable (estimator, X, y, sample_weight=None) -> float
        Of several names, dict of str to float: rows are read and predicted once for all.

    Raises
    ------
    ValueError
        There is none of that name.

    Examples
    --------
    >>> import dask.array as da
    >>> from dps import LinearClassifier
    >>> from dps.metrics import get_scorer
    >>> X = da.random.default_rng(0).normal(size=(300, 2), chunks=(100, 2))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> model = LinearClassifier().fit(X, y)
    >>> sorted(get_scorer(["accuracy", "roc_auc", "neg_log_loss"])(model, X, y))
    ['accuracy', 'neg_log_loss', 'roc_auc']
    """
    if hasattr(scoring, "_score_func"):
        return _of_sklearn(scoring, str(scoring))
    if callable(scoring):
        return scoring
    if not isinstance(scoring, str):
        return Scorers(tuple(map(_named, scoring)))
    return _named(scoring)


def make_scorer(
    score_func: Callable[..., float],
    *,
    response_method: str | Sequence[str] = "predict",
    greater_is_better: bool = True,
    **kwargs: object,
) -> Any:
    """Make a scorer from a metric, as scikit-learn's `make_scorer`; it takes Dask data as well.

    Parameters
    ----------
    score_func : callable
        ``score_func(y_true, y_pred, **kwargs)``. A metric of :mod:`dps.metrics`, or scikit-learn's
        of that name, computes where the data lies. For others the predictions of all rows come to
        this process.
    response_method : {"predict", "predict_proba", "decision_function"} or sequence of these, \
default="predict"
        The method of the estimator that makes `y_pred`; of several the first that it has.
    greater_is_better : bool, default=True
        False for a loss, which the scorer negates.
    **kwargs
        Further arguments of the function.

    Returns
    -------
    callable (estimator, X, y, sample_weight=None) -> float

    Examples
    --------
    >>> import dask.array as da
    >>> from dps import LinearClassifier
    >>> from dps.metrics import fbeta_score, make_scorer
    >>> X = da.random.default_rng(0).normal(size=(300, 2), chunks=(100, 2))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> make_scorer(fbeta_score, beta=2)(LinearClassifier().fit(X, y), X, y) > 0.9
    True
    """
    theirs = metrics.make_scorer(
        score_func, response_method=response_method, greater_is_better=greater_is_better, **kwargs
    )
    return _of_sklearn(theirs, str(theirs))


def _named(name: str) -> Scorer:
    if name not in get_scorer_names():
        raise ValueError(
            f"scoring={name!r} is no name of a score: take one of {get_scorer_names()}, or give a "
            "callable (estimator, X, y) -> float"
        )
    return _of_sklearn(metrics.get_scorer(name), name)


def _of_sklearn(theirs: Any, name: str) -> Scorer:
    """Return the scorer of Dask data for one of scikit-learn's."""
    function, method = theirs._score_func, theirs._response_method
    called = getattr(function, "__name__", "")
    metric = METRICS.get(called)
    if metric is None or function not in (metric, getattr(metrics, called, None)):
        return _Gathered(name, theirs, method)
    return Scorer(name, metric, method, theirs._sign, theirs._kwargs)


def get_scorer_names() -> list[str]:
    """Names of scikit-learn's scorers, sorted.

    Scorers of metrics in :mod:`dps.metrics` compute where the data lies. For others the predictions
    of all rows come to this process.
    """
    names: list[str] = metrics.get_scorer_names()
    return names
