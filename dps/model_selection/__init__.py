"""Cross-validation, searches and splits of data of Dask, which stays where it lies.

Named as in scikit-learn, whose own classes do the work for local data.
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
