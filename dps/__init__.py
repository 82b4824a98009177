"""Data-parallel training on Dask: estimators on the workers that hold your data.

>>> from dps import LinearClassifier, LinearRegressor
"""

from __future__ import annotations

from dps.estimators import LinearClassifier, LinearRegressor, MLPClassifier, MLPRegressor, load
from dps.modes import AllReduce, Async, Sync

__version__ = "0.1.0"

__all__ = [
    "AllReduce",
    "Async",
    "LinearClassifier",
    "LinearRegressor",
    "MLPClassifier",
    "MLPRegressor",
    "Sync",
    "__version__",
    "load",
]
