"""Models, and what they share.

Nothing here may know servers, modes or ranks.
"""

from dps.models.arrays import Arrays
from dps.models.base import CSRRows, DenseRows, Model, Rows
from dps.models.batches import Batch
from dps.models.checking import check
from dps.models.columns import Column, Columns, Padded
from dps.models.custom import CustomModel
from dps.models.factorization import FactorInputs, FactorizationMachine
from dps.models.layout import Layout, Table, Tensor
from dps.models.linear import LinearModel
from dps.models.network import Inputs, Network

__all__ = [
    "Arrays",
    "Batch",
    "CSRRows",
    "Column",
    "Columns",
    "CustomModel",
    "DenseRows",
    "FactorInputs",
    "FactorizationMachine",
    "Inputs",
    "Layout",
    "LinearModel",
    "Model",
    "Network",
    "Padded",
    "Rows",
    "Table",
    "Tensor",
    "check",
]
