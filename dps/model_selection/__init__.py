"""Cross-validation and searches on data of Dask, on one copy of it that stays where it lies.

Named as in scikit-learn, whose own classes do the work for local data.
"""

from __future__ import annotations

from dps.model_selection.folds import KFold
from dps.model_selection.search import GridSearchCV, RandomizedSearchCV, cross_val_score

__all__ = ["GridSearchCV", "KFold", "RandomizedSearchCV", "cross_val_score"]
