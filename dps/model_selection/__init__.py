"""Cross-validation, searches and splits of Dask data, which stays where it is.

Names are those of scikit-learn, whose own functions handle local data.
"""

from __future__ import annotations

from dps.model_selection.folds import PartitionKFold
from dps.model_selection.search import (
    GridSearchCV,
    RandomizedSearchCV,
    cross_val_predict,
    cross_val_score,
    cross_validate,
)
from dps.model_selection.train_test import train_test_split

__all__ = [
    "GridSearchCV",
    "PartitionKFold",
    "RandomizedSearchCV",
    "cross_val_predict",
    "cross_val_score",
    "cross_validate",
    "train_test_split",
]


def __dir__() -> list[str]:
    return __all__
