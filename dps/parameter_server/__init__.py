"""The parameter server for everybody: named tensors and tables that outlive a fit."""

from __future__ import annotations

from dps.parameter_server.handles import Handle
from dps.parameter_server.server import ParameterServer
from dps.parameter_server.table import Table

__all__ = ["Handle", "ParameterServer", "Table"]
