"""Options of dps in Dask's configuration, for the rest of a test: conftest puts them back."""

from __future__ import annotations

from typing import Any

import dask

__all__ = ["configure", "placed"]


def configure(**options: Any) -> None:
    """Set ``dps.cache`` and the like."""
    dask.config.set({f"dps.{name}": value for name, value in options.items()})


def placed(parameters: dict[str, Any]) -> dict[str, Any]:
    """Parameters without `n_shards`, which is configured; without one as by default."""
    configure(n_shards=parameters.get("n_shards", "auto"))
    return {name: value for name, value in parameters.items() if name != "n_shards"}
