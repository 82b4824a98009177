"""Metrics of lazy predictions: only sums leave a partition.

Names are those of scikit-learn, and so are results on the same data, up to rounding.
"""

from __future__ import annotations

from dps.metrics.classification import accuracy_score, brier_score_loss, log_loss
from dps.metrics.explained import (
    d2_absolute_error_score,
    d2_brier_score,
    d2_log_loss_score,
    d2_pinball_score,
    d2_tweedie_score,
    median_absolute_error,
)
from dps.metrics.labels import (
    balanced_accuracy_score,
    classification_report,
    confusion_matrix,
    f1_score,
    fbeta_score,
    jaccard_score,
    matthews_corrcoef,
    precision_score,
    recall_score,
)
from dps.metrics.ranking import (
    average_precision_score,
    precision_recall_curve,
    roc_auc_score,
    roc_curve,
)
from dps.metrics.regression import (
    explained_variance_score,
    mean_absolute_error,
    mean_absolute_percentage_error,
    mean_gamma_deviance,
    mean_pinball_loss,
    mean_poisson_deviance,
    mean_squared_error,
    mean_squared_log_error,
    r2_score,
    root_mean_squared_error,
    root_mean_squared_log_error,
)
from dps.metrics.scorers import get_scorer, get_scorer_names, make_scorer
from dps.scores.validation import RowScore

__all__ = [
    "RowScore",
    "accuracy_score",
    "average_precision_score",
    "balanced_accuracy_score",
    "brier_score_loss",
    "classification_report",
    "confusion_matrix",
    "d2_absolute_error_score",
    "d2_brier_score",
    "d2_log_loss_score",
    "d2_pinball_score",
    "d2_tweedie_score",
    "explained_variance_score",
    "f1_score",
    "fbeta_score",
    "get_scorer",
    "get_scorer_names",
    "jaccard_score",
    "log_loss",
    "make_scorer",
    "matthews_corrcoef",
    "mean_absolute_error",
    "mean_absolute_percentage_error",
    "mean_gamma_deviance",
    "mean_pinball_loss",
    "mean_poisson_deviance",
    "mean_squared_error",
    "mean_squared_log_error",
    "median_absolute_error",
    "precision_recall_curve",
    "precision_score",
    "r2_score",
    "recall_score",
    "roc_auc_score",
    "roc_curve",
    "root_mean_squared_error",
    "root_mean_squared_log_error",
]


def __dir__() -> list[str]:
    return __all__
