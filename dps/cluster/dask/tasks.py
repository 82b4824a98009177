"""Tasks on partitions, which run on the worker that holds them."""

from __future__ import annotations

import functools
import operator
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps.data.exchange import RandomSplit, join_rows, take_rows
from dps.data.keep.streams import Stream, open_partition


def unpacked(parts: Sequence[bytes]) -> Any:
    """Hold what a pickled function returns, see `FitWork.sent`."""
    return pickle.loads(b"".join(parts))()


def call_on_each(
    function: Callable[..., Any], partitions: Sequence[tuple[Any, Any, Any]]
) -> list[Any]:
    """Call a function on a worker's partitions in turn."""
    return [function(*open_partition(*part)) for part in partitions]


def sum_of_each(
    function: Callable[..., Any], partitions: Sequence[tuple[Any, Any, Any]]
) -> list[Any]:
    """Add up a function's results over a worker's partitions."""
    return [functools.reduce(operator.add, call_on_each(function, partitions))]


def call_unopened(
    function: Callable[..., Any], partitions: Sequence[tuple[Any, Any, Any]]
) -> list[Any]:
    """Call a function on what stands for a worker's partitions."""
    return [function(*part) for part in partitions]


def cut_out(values: tuple[Any, Any, Any], start: int, stop: int) -> tuple[Any, Any, Any]:
    """Return rows `start` to `stop` of a partition's X, y and weight, as views if possible."""
    if isinstance(values[0], Stream):
        return values[0].read(start, stop)
    X, y, weight = open_partition(*values)
    at = slice(start, stop)
    return cut(X, at), cut(y, at), None if weight is None else cut(weight, at)


def cut(values: Any, at: slice) -> Any:
    """Return some rows of an array, a sparse matrix or a dataframe."""
    return values.iloc[at] if hasattr(values, "iloc") else values[at]


def draw_each(split: RandomSplit, numbers: Sequence[int]) -> list[list[NDArray[np.int64]]]:
    """Draw the new partitions of the rows in a worker's partitions."""
    return [split.draw(number) for number in numbers]


def pick_rows(
    partitions: Sequence[tuple[Any, Any, Any]],
    drawn: Sequence[Sequence[NDArray[np.int64]]],
    goal: int,
) -> tuple[Any, Any, Any] | None:
    """Copy the rows that a worker has for a new partition; None if it has none."""
    pieces = [
        take_rows(*open_partition(*values), rows[goal])
        for values, rows in zip(partitions, drawn, strict=True)
        if len(rows[goal])
    ]
    return join_rows(pieces) if pieces else None


def join_pieces(pieces: Sequence[tuple[Any, Any, Any] | None]) -> tuple[Any, Any, Any]:
    """Concatenate the pieces of a new partition."""
    return join_rows([piece for piece in pieces if piece is not None])


def item(values: tuple[Any, Any, Any], at: int) -> Any:
    """Return X, y or weight alone."""
    return values[at]
