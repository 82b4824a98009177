"""Data-parallel training on Dask: estimators on the workers that hold your data.

Each name is imported when it is first used: workers, which import parts of dps to run replicas, do
without scikit-learn.

>>> from dps import LinearClassifier, LinearRegressor, MLPClassifier, MLPRegressor
>>> from dps import FMClassifier, FMRegressor
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from dps.cluster.options import register

if TYPE_CHECKING:
    from dps import (
        errors as errors,
        losses as losses,
        metrics as metrics,
        model_selection as model_selection,
        models as models,
        optimizers as optimizers,
        preprocessing as preprocessing,
    )
    from dps.estimators.custom import ModelClassifier, ModelRegressor
    from dps.estimators.factorization import FMClassifier, FMRegressor
    from dps.estimators.files.save import load
    from dps.estimators.linear import LinearClassifier, LinearRegressor
    from dps.estimators.network import MLPClassifier, MLPRegressor
    from dps.estimators.served.read import ServedModel
    from dps.modes import AllReduce, Async, Hybrid, Sync
    from dps.parameter_server import EmbeddingTable, ParameterServer
    from dps.training.checkpoint.options import Checkpoint

__version__ = "0.1.0"

__all__ = [
    "AllReduce",
    "Async",
    "Checkpoint",
    "EmbeddingTable",
    "FMClassifier",
    "FMRegressor",
    "Hybrid",
    "LinearClassifier",
    "LinearRegressor",
    "MLPClassifier",
    "MLPRegressor",
    "ModelClassifier",
    "ModelRegressor",
    "ParameterServer",
    "ServedModel",
    "Sync",
    "__version__",
    "load",
]

#: Modules of public names, and of estimators that need PyTorch, which files may name.
_LAZY = {
    "AllReduce": "dps.modes",
    "Async": "dps.modes",
    "Checkpoint": "dps.training.checkpoint.options",
    "FMClassifier": "dps.estimators.factorization",
    "FMRegressor": "dps.estimators.factorization",
    "Hybrid": "dps.modes",
    "LinearClassifier": "dps.estimators.linear",
    "LinearRegressor": "dps.estimators.linear",
    "MLPClassifier": "dps.estimators.network",
    "MLPRegressor": "dps.estimators.network",
    "ModelClassifier": "dps.estimators.custom",
    "ModelRegressor": "dps.estimators.custom",
    "ParameterServer": "dps.parameter_server",
    "ServedModel": "dps.estimators.served.read",
    "EmbeddingTable": "dps.parameter_server",
    "Sync": "dps.modes",
    "TorchClassifier": "dps.torch",
    "TorchRegressor": "dps.torch",
    "load": "dps.estimators.files.save",
}

#: Packages that users reach as ``dps.NAME``.
_PACKAGES = (
    "errors",
    "losses",
    "metrics",
    "model_selection",
    "models",
    "optimizers",
    "preprocessing",
    "torch",
)


register()


def __getattr__(name: str) -> Any:
    home = _LAZY.get(name, f"dps.{name}")
    if name not in _PACKAGES and name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(home)
    except ImportError as error:
        if home != "dps.torch":
            raise
        raise AttributeError(str(error)) from error  # so that `hasattr` is False without PyTorch
    found = globals()[name] = module if name in _PACKAGES else getattr(module, name)
    return found


def __dir__() -> list[str]:
    without = set() if importlib.util.find_spec("torch") else {"torch"}
    return sorted({*__all__, *_PACKAGES} - without)
