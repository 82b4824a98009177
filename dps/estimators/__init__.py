"""What users import: estimators that keep the scikit-learn contract, and nothing else."""

from __future__ import annotations

from dps.estimators.custom import ModelClassifier, ModelRegressor
from dps.estimators.fm import FMClassifier, FMRegressor
from dps.estimators.linear import LinearClassifier, LinearRegressor
from dps.estimators.mlp import MLPClassifier, MLPRegressor
from dps.estimators.saving import load
from dps.estimators.serving import ServedModel

__all__ = [
    "FMClassifier",
    "FMRegressor",
    "LinearClassifier",
    "LinearRegressor",
    "MLPClassifier",
    "MLPRegressor",
    "ModelClassifier",
    "ModelRegressor",
    "ServedModel",
    "load",
]
