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
)
from dps.metrics.labels import (
    balanced_accuracy_score,
    confusion_matrix,
    f1_score,
    precision_score,
    recall_score,
)
from dps.metrics.ranking import average_precision_score, roc_auc_score
from dps.metrics.regression import (
    mean_absolute_error,
    mean_gamma_deviance,
    mean_pinball_loss,
    mean_poisson_deviance,
    mean_squared_error,
    r2_score,
    root_mean_squared_error,
)
from dps.metrics.scorers import get_scorer, get_scorer_names
from dps.scores.validation import RowScore

__all__ = [
    "RowScore",
    "accuracy_score",
    "average_precision_score",
    "balanced_accuracy_score",
    "brier_score_loss",
    "confusion_matrix",
    "d2_absolute_error_score",
    "d2_brier_score",
    "d2_log_loss_score",
    "d2_pinball_score",
    "d2_tweedie_score",
    "f1_score",
    "get_scorer",
    "get_scorer_names",
    "log_loss",
    "mean_absolute_error",
    "mean_gamma_deviance",
    "mean_pinball_loss",
    "mean_poisson_deviance",
    "mean_squared_error",
    "precision_score",
    "r2_score",
    "recall_score",
    "roc_auc_score",
    "root_mean_squared_error",
]


def __dir__() -> list[str]:
    return __all__
