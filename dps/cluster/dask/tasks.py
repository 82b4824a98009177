"""What tasks do with partitions, on the worker that holds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["call_on_each", "cut", "cut_out", "itself"]


def itself(value: Any) -> Any:
    """The task that holds something for others."""
    return value


def call_on_each(
    function: Callable[..., Any],
    partitions: Sequence[tuple[Any, Any, Any]],
    options: Mapping[str, Any],
) -> list[Any]:
    """The task that looks at a worker's partitions, in turn."""
    return [function(*part, **options) for part in partitions]


def cut_out(values: tuple[Any, Any, Any], start: int, stop: int) -> tuple[Any, Any, Any]:
    """Rows `start` to `stop` of a partition's X, y and weight, without a copy where that can be."""
    X, y, weight = values
    at = slice(start, stop)
    return cut(X, at), cut(y, at), None if weight is None else cut(weight, at)


def cut(values: Any, at: slice) -> Any:
    """Some rows of an array, a sparse matrix or a dataframe."""
    return values.iloc[at] if hasattr(values, "iloc") else values[at]
