"""Tasks on partitions, on the worker that holds them."""

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
    """The task that holds what a pickled function returns, see `FitWork.sent`."""
    return pickle.loads(b"".join(parts))()


def call_on_each(
    function: Callable[..., Any], partitions: Sequence[tuple[Any, Any, Any]]
) -> list[Any]:
    """The task that looks at a worker's partitions, in turn."""
    return [function(*open_partition(*part)) for part in partitions]


def sum_of_each(
    function: Callable[..., Any], partitions: Sequence[tuple[Any, Any, Any]]
) -> list[Any]:
    """The task that adds up what it finds in a worker's partitions."""
    return [functools.reduce(operator.add, call_on_each(function, partitions))]


def call_unopened(
    function: Callable[..., Any], partitions: Sequence[tuple[Any, Any, Any]]
) -> list[Any]:
    """The task that looks at what stands for a worker's partitions."""
    return [function(*part) for part in partitions]


def cut_out(values: tuple[Any, Any, Any], start: int, stop: int) -> tuple[Any, Any, Any]:
    """Rows `start` to `stop` of a partition's X, y and weight, without a copy where that can be."""
    if isinstance(values[0], Stream):
        return values[0].read(start, stop)
    X, y, weight = open_partition(*values)
    at = slice(start, stop)
    return cut(X, at), cut(y, at), None if weight is None else cut(weight, at)


def cut(values: Any, at: slice) -> Any:
    """Some rows of an array, a sparse matrix or a dataframe."""
    return values.iloc[at] if hasattr(values, "iloc") else values[at]


def draw_each(split: RandomSplit, numbers: Sequence[int]) -> list[list[NDArray[np.int64]]]:
    """The task that draws where the rows of a worker's partitions go."""
    return [split.draw(number) for number in numbers]


def pick_rows(
    partitions: Sequence[tuple[Any, Any, Any]],
    drawn: Sequence[Sequence[NDArray[np.int64]]],
    goal: int,
) -> tuple[Any, Any, Any] | None:
    """The task that copies what a worker has of a new partition; None if that is nothing."""
    pieces = [
        take_rows(*open_partition(*values), rows[goal])
        for values, rows in zip(partitions, drawn, strict=True)
        if len(rows[goal])
    ]
    return join_rows(pieces) if pieces else None


def join_pieces(pieces: Sequence[tuple[Any, Any, Any] | None]) -> tuple[Any, Any, Any]:
    """The task that makes a new partition of what the workers have of it."""
    return join_rows([piece for piece in pieces if piece is not None])


def item(values: tuple[Any, Any, Any], at: int) -> Any:
    """The task that holds X, y or weight alone."""
    return values[at]
