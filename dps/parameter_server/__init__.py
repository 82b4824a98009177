"""Parameter servers: named tensors and tables that outlive a fit."""

from __future__ import annotations

from dps.parameter_server.client.handles import Handle
from dps.parameter_server.server import ParameterServer
from dps.parameter_server.table import EmbeddingTable

__all__ = ["EmbeddingTable", "Handle", "ParameterServer"]


def __dir__() -> list[str]:
    return __all__
