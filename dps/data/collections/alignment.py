"""X, y and sample weights of any containers, aligned partition by partition.

Partition i of one container belongs to partition i of the others, row by row in order; indexes are
ignored. Numbers of partitions and known lengths are compared here, unknown lengths once the
partitions are computed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dps._warned import warn
from dps.data.collections.partitions import Partition, is_dask, is_dask_frame, is_list
from dps.data.collections.parts import Parts, one_graph
from dps.data.collections.results import results_of
from dps.data.collections.sealed import sealed


def partitions_of(
    X: Any, y: Any, weight: Any, *, multi_output: bool = False, names: tuple[str, str] = ("X", "y")
) -> list[Partition]:
    """Align Dask collections partition by partition.

    X: dask array or dataframe of shape (n, n_features) or (n,), or list of partitions; lengths may
        be unknown. A list holds Delayed objects or Futures.
    y: dask array, series or dataframe of shape (n,) or (n, 1), or list of partitions; or local ones
        if the lengths of `X` are known.
    multi_output: whether `y` may have several columns.
    names: names of X and y in errors.
    Returns lists of Futures if the data is in memory, else of Delayed objects.
    Raises ValueError: numbers of partitions or known lengths differ; the message has the numbers
        and the remedy.
    """
    if hasattr(X, "rechunk") and X.ndim > 1 and len(X.chunks[1]) > 1:
        warn(
            f"{names[0]} is cut in {len(X.chunks[1])} chunks of columns and is rechunked to whole "
            f"rows; {names[0]}.rechunk({{1: -1}}) before avoids this warning",
            UserWarning,
            stacklevel=2,
        )
    whole = Parts(X, names[0])
    parts = [whole.tasks]
    for values, name in ((y, names[1]), (weight, "sample_weight")):
        if values is None:
            parts.append([None] * len(whole))
            continue
        found = Parts(_vectors(_like(values, whole, name), name, multi_output and values is y))
        _check_aligned(whole, found, name)
        parts.append(found.tasks)
    return [Partition(*part) for part in zip(*parts, strict=True)]


def in_memory(client: Any, **values: Any) -> list[Any]:
    """Compute dask collections beside a local X together; other values are returned as they are.

    Raises TypeError: a list of partitions, whose type is unknown.
    """
    lazy = {name: each for name, each in values.items() if is_dask(each)}
    for name, each in lazy.items():
        if is_list(each) or not hasattr(each, "compute"):
            raise TypeError(
                f"{name} comes in partitions and X does not: give both in the same form"
            )
    if lazy:
        found = results_of([_whole(each) for each in one_graph(*lazy.values())], client)
        values |= dict(zip(lazy, found, strict=True))
    return list(values.values())


def _whole(values: Any) -> Any:
    """Return a frame as one Delayed: Dask warns if frames and arrays are computed together."""
    if not is_dask_frame(values):
        return values
    from dask import delayed

    return delayed(sealed(_concatenated))(Parts(values).tasks)


def _concatenated(parts: list[Any]) -> Any:
    import pandas as pd

    return pd.concat(parts)


def _like(values: Any, X: Parts, name: str) -> Any:
    """Cut a local vector like `X`; values of Dask are returned as they are."""
    if is_dask(values):
        return values
    if not np.ndim(values):
        raise TypeError(f"{name} is a {type(values).__name__}: give a vector, a value for each row")
    if X.lengths is None:
        raise TypeError(
            f"{name} is a {type(values).__name__} and {X.name} is a Dask collection of unknown "
            f"lengths: give {name} as a Dask collection with the partitions of {X.name}"
        )
    import dask.array as da

    values = values.toarray() if hasattr(values, "toarray") else np.asarray(values)
    if len(values) != (rows := sum(X.lengths)):
        raise ValueError(f"{name} has {len(values)} rows, {X.name} has {rows}: they must be equal")
    return da.from_array(values, chunks=(tuple(X.lengths), *values.shape[1:]))


def _vectors(values: Any, name: str, several: bool) -> Any:
    """Raise unless values are a vector, or have several columns if these are allowed."""
    if is_list(values):
        return values
    if not hasattr(values, "ndim"):
        raise TypeError(f"{name} must be an array or a series, got {type(values).__name__}")
    if values.ndim == 2 and several:
        return values
    if values.ndim != 1 and (values.ndim != 2 or values.shape[1] != 1):
        raise ValueError(
            f"{name} must be a vector, got {values.ndim} dimensions"
            + (f" and {values.shape[1]} columns" if values.ndim > 1 else "")
        )
    return values


def _check_aligned(X: Parts, other: Parts, name: str) -> None:
    arrays = not any(parts.is_frame or parts.is_list for parts in (X, other))
    remedy = (
        f"rechunk {name} to {X.name}.chunks[0]" if arrays else f"repartition {name} like {X.name}"
    )
    lengths = None if X.lengths is None or other.lengths is None else (X.lengths, other.lengths)
    if lengths is not None and sum(lengths[0]) != sum(lengths[1]):
        raise ValueError(
            f"{name} has {sum(lengths[1])} rows, {X.name} has {sum(lengths[0])}: they must be equal"
        )
    if len(X) != len(other):
        raise ValueError(f"{name} has {len(other)} partitions, {X.name} has {len(X)}: {remedy}")
    for number, (a, b) in enumerate(zip(*lengths, strict=True) if lengths else ()):
        if a != b:
            raise ValueError(
                f"partition {number} of {name} has {b} rows, that of {X.name} has {a}: {remedy}"
            )
