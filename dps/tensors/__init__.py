"""The parameter server for everybody: named tensors and tables that outlive a fit."""

from __future__ import annotations

from dps.tensors.handles import Handle
from dps.tensors.server import ParameterServer
from dps.tensors.table import Table

__all__ = ["Handle", "ParameterServer", "Table"]
