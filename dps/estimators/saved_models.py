"""Models of users' own as a file says them: the data they were made for, and their tensors.

What makes the model is not in the file: it is given again, and its tensors must be the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dps.data.records import Kind, dataclass_kind
from dps.estimators.own_models import Shape
from dps.models import Arrays, Column, Columns
from dps.training.saved import count

__all__ = ["own_kinds"]

#: Nothing else in a file says how many outputs a regression has.
_MOST_OUTPUTS = 1 << 24


def own_kinds(cls: type, build: Callable[[Shape], Any]) -> list[Kind]:
    """Kinds of such models, and of what they are made for.

    Parameters
    ----------
    cls : type
        Of the models.
    build : callable
        Makes the model for data of a shape.
    """

    def model(shape: Any, tensors: Any) -> Any:
        if not isinstance(shape, Shape):
            raise ValueError(f"{shape!r} is no shape of data")
        try:
            made = build(shape)
        except Exception as error:  # of code that is not ours, or of numbers that nobody saved
            raise ValueError(
                f"what is given makes no model for {shape.n_features} columns and "
                f"{shape.n_outputs} outputs: {error!r}"
            ) from error
        if _tensors(made) != tensors:
            raise ValueError(
                f"what is given has other tensors. Saved: {tensors}; given: {_tensors(made)}"
            )
        return made

    own = Kind(f"model:{cls.__name__}", cls, ("shape", "tensors"), _fields, model)
    others = (
        ("shape", Shape, _shape),
        ("columns", Columns, _columns),
        ("column", Column, _column),
        ("arrays", Arrays, _arrays),
    )
    return [own, *(dataclass_kind(*each) for each in others)]


def _fields(model: Any) -> dict[str, Any]:
    return {"shape": model.shape, "tensors": _tensors(model)}


def _tensors(model: Any) -> list[Any]:
    return [[tensor.name, [*tensor.shape], tensor.kind] for tensor in model.layout.tensors]


def _shape(
    n_features: Any,
    n_outputs: Any,
    classification: Any,
    dtype: Any,
    columns: Any,
    seed: Any,
) -> Shape:
    if not isinstance(classification, bool) or dtype not in (np.float32, np.float64):
        raise ValueError(f"classification is {classification!r}, and the dtype {dtype!r}")
    n_features = count(n_features, "n_features", 1)
    if isinstance(columns, Columns):
        width = sum(column.width for column in columns.columns)
    elif isinstance(columns, Arrays):
        width = columns.width
    elif columns is None:
        width = n_features
    else:
        raise ValueError(f"columns are {columns!r}")
    if width != n_features:
        raise ValueError(f"columns are not those of {n_features} features: {columns!r}")
    if count(n_outputs, "n_outputs", 1) > _MOST_OUTPUTS:
        raise ValueError(f"n_outputs is {n_outputs}, up to {_MOST_OUTPUTS} are possible")
    return Shape(n_features, n_outputs, classification, dtype, columns, count(seed, "seed"))


def _arrays(shapes: Any, kinds: Any, names: Any) -> Arrays:
    sizes = tuple(tuple(count(size, "a size of rows", 1) for size in shape) for shape in shapes)
    several = len(sizes) == len(kinds) and len(names) in (0, len(sizes)) and sizes
    if not several or not {*kinds} <= {*"fib"} or not all(isinstance(name, str) for name in names):
        raise ValueError(f"there are no arrays of {shapes!r}, {kinds!r} and {names!r}")
    return Arrays(sizes, tuple(kinds), tuple(names))


def _columns(columns: Any) -> Columns:
    start = 0
    for column in columns:
        if not isinstance(column, Column) or column.start != start:
            raise ValueError(f"{column!r} is no column that begins at {start}")
        start += column.width
    return Columns(columns)


def _column(name: Any, holds: Any, start: Any, width: Any, n_tokens: Any) -> Column:
    if not isinstance(name, str) or holds not in ("number", "code", "counts", "sequence"):
        raise ValueError(f"{name!r} is a column of {holds!r}")
    width, n_tokens = count(width, "width", 1), count(n_tokens, "n_tokens")
    return Column(name, holds, count(start, "start"), width, n_tokens)
