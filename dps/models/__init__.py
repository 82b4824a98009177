"""Models by name, and what they share.

A model is one file and one line in `MODELS`. Nothing here may know servers, modes or ranks.
"""

from dps.models.base import CSRRows, DenseRows, Model, Rows
from dps.models.factorization import FactorInputs, FactorizationMachine
from dps.models.layout import Layout, Tensor
from dps.models.linear import LinearModel
from dps.models.network import Inputs, Network

__all__ = [
    "MODELS",
    "CSRRows",
    "DenseRows",
    "FactorInputs",
    "FactorizationMachine",
    "Inputs",
    "Layout",
    "LinearModel",
    "Model",
    "Network",
    "Rows",
    "Tensor",
]

MODELS: dict[str, type[LinearModel]] = {"linear": LinearModel}
