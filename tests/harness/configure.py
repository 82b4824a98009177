"""Options of dps in Dask's configuration, for the rest of a test: conftest puts them back."""

from __future__ import annotations

from typing import Any

import dask

__all__ = ["configure"]


def configure(**options: Any) -> None:
    """Set ``dps.cache`` and the like."""
    dask.config.set({f"dps.{name}": value for name, value in options.items()})
