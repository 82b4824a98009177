"""What tasks do with partitions, on the worker that holds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["call_on_each", "call_on_part", "itself"]


def itself(value: Any) -> Any:
    """The task that holds something for others."""
    return value


def call_on_part(function: Callable[[Any, int], Any], X: Any, number: int) -> Any:
    """The task that makes something else of a partition's X."""
    return function(X, number)


def call_on_each(
    function: Callable[..., Any],
    X: list[Any],
    y: list[Any],
    weight: list[Any],
    options: Mapping[str, Any],
) -> list[Any]:
    """The task that looks at a worker's partitions, in turn."""
    return [function(*part, **options) for part in zip(X, y, weight, strict=True)]
