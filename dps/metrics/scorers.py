"""Scorers by scikit-learn's names: how good a fitted estimator is on data where that lies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dps.data.collections import one_graph
from dps.data.partitions import as_pandas
from dps.metrics.classification import accuracy_score, brier_score_loss, log_loss
from dps.metrics.labels import balanced_accuracy_score, f1_score, precision_score, recall_score
from dps.metrics.ranking import average_precision_score, roc_auc_score
from dps.metrics.regression import (
    mean_absolute_error,
    mean_squared_error,
    r2_score,
    root_mean_squared_error,
)


@dataclass(frozen=True)
class Scorer:
    """``scorer(estimator, X, y)``; higher is better.

    Parameters
    ----------
    name : str
    metric : callable
    method : {"predict", "predict_proba", "ranks"}
        What of the estimator it is a metric of; ranks are its decision function or probabilities.
    sign : {1, -1}
    options : dict
        Of the metric.
    """

    name: str
    metric: Callable[..., float]
    method: str
    sign: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Score an estimator, or a pipeline that ends with one, on its client."""
        X, y, sample_weight = one_graph(as_pandas(X), as_pandas(y), as_pandas(sample_weight))
        method = self.method
        if method == "ranks":
            method = next(
                name for name in ("decision_function", "predict_proba") if hasattr(estimator, name)
            )
        options = {**self.options, "client": _client(estimator), "sample_weight": sample_weight}
        if self.metric in (log_loss, brier_score_loss) or "multi_class" in self.options:
            options["labels"] = estimator.classes_
        return self.sign * self.metric(y, getattr(estimator, method)(X), **options)


def _client(estimator: Any) -> Any:
    while hasattr(estimator, "steps"):
        estimator = estimator.steps[-1][1]
    return getattr(estimator, "client", None)


_SCORERS = {
    scorer.name: scorer
    for scorer in (
        Scorer("accuracy", accuracy_score, "predict"),
        Scorer("balanced_accuracy", balanced_accuracy_score, "predict"),
        *(
            Scorer(f"{name}{suffix}", metric, "predict", options={"average": average})
            for name, metric in (
                ("f1", f1_score),
                ("precision", precision_score),
                ("recall", recall_score),
            )
            for suffix, average in (
                ("", "binary"),
                ("_macro", "macro"),
                ("_micro", "micro"),
                ("_weighted", "weighted"),
                ("_samples", "samples"),
            )
        ),
        Scorer("neg_log_loss", log_loss, "predict_proba", -1),
        Scorer("neg_brier_score", brier_score_loss, "predict_proba", -1),
        Scorer("average_precision", average_precision_score, "ranks"),
        Scorer("roc_auc", roc_auc_score, "ranks"),
        *(
            Scorer(
                f"roc_auc_{how}{'_weighted' * (average == 'weighted')}",
                roc_auc_score,
                "predict_proba",
                options={"multi_class": how, "average": average},
            )
            for how in ("ovr", "ovo")
            for average in ("macro", "weighted")
        ),
        Scorer("r2", r2_score, "predict"),
        Scorer("neg_mean_squared_error", mean_squared_error, "predict", -1),
        Scorer("neg_root_mean_squared_error", root_mean_squared_error, "predict", -1),
        Scorer("neg_mean_absolute_error", mean_absolute_error, "predict", -1),
    )
}


def get_scorer(scoring: str) -> Scorer:
    """The scorer of a name, as scikit-learn's `get_scorer`; it takes data of Dask as well.

    Parameters
    ----------
    scoring : str
        One of `get_scorer_names`.

    Raises
    ------
    ValueError
        There is none of that name.
    """
    if scoring not in _SCORERS:
        raise ValueError(
            f"scoring={scoring!r} is not computed on data of Dask: take one of "
            f"{get_scorer_names()}, or give a callable (estimator, X, y) -> float"
        )
    return _SCORERS[scoring]


def get_scorer_names() -> list[str]:
    """Names that `get_scorer` knows, sorted."""
    return sorted(_SCORERS)
