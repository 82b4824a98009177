"""Models, and the building blocks of users' own models."""

from dps.models.base import Model, Rows
from dps.models.batches import Batch
from dps.models.checking import check
from dps.models.layout import Layout, TableSpec, Tensor

__all__ = ["Batch", "Layout", "Model", "Rows", "TableSpec", "Tensor", "check"]


def __dir__() -> list[str]:
    return __all__
