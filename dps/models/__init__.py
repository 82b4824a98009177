"""Models, and what a model of your own is made from.

Nothing here may know servers, modes or ranks.
"""

from dps.models.base import Model, Rows
from dps.models.batches import Batch
from dps.models.checking import check
from dps.models.layout import Layout, TableSpec, Tensor

__all__ = ["Batch", "Layout", "Model", "Rows", "TableSpec", "Tensor", "check"]


def __dir__() -> list[str]:
    return __all__
