"""Checks of a server's arguments."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dps.optimizers import Averaged, Optimizer
from dps.parameter_server.shard.layout import Rule, TensorSpec, parts_of, table_parts
from dps.parameter_server.table import EmbeddingTable

if TYPE_CHECKING:
    from dps._typing import Placing

Initial = dict[str, NDArray[np.floating] | EmbeddingTable]


def initial_values(tensors: Any) -> Initial:
    """Return arrays and tables by name.

    Raises TypeError, ValueError: not a mapping of names to arrays of finite real numbers.
    """
    if not isinstance(tensors, Mapping):
        raise TypeError(f"tensors must be a mapping of names to arrays. Got {tensors!r} instead.")
    made: Initial = {}
    for name, value in tensors.items():
        if not isinstance(name, str) or not name:
            raise TypeError(f"the name of a tensor must be a str, got {name!r}")
        if isinstance(value, EmbeddingTable):
            made[name] = value
            continue
        array = np.asarray(value)
        if array.dtype.kind not in "fiub":
            raise TypeError(f"the tensor {name!r} must hold real numbers, got {array.dtype}")
        kept = array.dtype in (np.float32, np.float64)
        floats: NDArray[np.floating] = np.require(
            array, array.dtype if kept else np.float64, ["C", "A"]
        )
        if floats.size == 0:
            raise ValueError(f"the tensor {name!r} of the shape {array.shape} has no elements")
        if not np.isfinite(floats).all():
            raise ValueError(f"the tensor {name!r} holds values that are NaN or infinite")
        made[name] = floats
    return made


def learning_rate_of(optimizer: Optimizer, given: object) -> float:
    """Return the given learning rate, else the optimizer's, else its default.

    Raises ValueError: it is not a positive number, or both are given.
    """
    own = optimizer.learning_rate
    if own != "auto" and given is not None:
        raise ValueError(
            f"learning_rate={given!r} and optimizer={optimizer!r} both give the learning rate: "
            "leave one of them out"
        )
    if given is None:
        given = optimizer.default_schedule(0.0) if own == "auto" else own
    if (
        isinstance(given, bool)
        or not isinstance(given, int | float | np.number)
        or not (0 < given < float("inf"))
    ):
        raise ValueError(
            "The 'learning_rate' parameter of ParameterServer must be a float in the range "
            f"(0.0, inf) or None. Got {given!r} instead."
        )
    return float(given)


def without_rate(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer for a server, which holds the learning rate itself."""
    name = "base__learning_rate" if isinstance(optimizer, Averaged) else "learning_rate"
    return optimizer._with({name: "auto"})


def check_name(name: object) -> None:
    """Raise unless it is a name or None."""
    if name is not None and (not isinstance(name, str) or not name):
        raise ValueError(
            f"The 'name' parameter of ParameterServer must be a str or None. Got {name!r} instead."
        )


def check_mirror(mirror: Any) -> None:
    """Raise unless it is a bool or "auto"."""
    if not isinstance(mirror, bool) and mirror != "auto":
        raise ValueError(
            "The 'mirror' parameter of ParameterServer must be a bool or 'auto'. "
            f"Got {mirror!r} instead."
        )


def check_shards(n_shards: Any) -> int | None:
    """Return a number of shards, or None for the default."""
    if isinstance(n_shards, str) and n_shards == "auto":
        return None
    if isinstance(n_shards, bool) or not isinstance(n_shards, int) or n_shards < 1:
        raise ValueError(
            "The 'n_shards' parameter of ParameterServer must be an int in the range [1, inf) or "
            f"'auto'. Got {n_shards!r} instead."
        )
    return n_shards


def specs_of(tensors: Initial, n_shards: int, placement: Rule | Placing) -> tuple[TensorSpec, ...]:
    """Return the specifications of the tensors that one call creates."""
    creation = secrets.token_hex(8)
    shapes = {
        key: value.shape for key, value in tensors.items() if not isinstance(value, EmbeddingTable)
    }
    parts = parts_of(shapes, n_shards, placement)
    specs = []
    for key, value in tensors.items():
        if isinstance(value, EmbeddingTable):
            rooms = table_parts(value.capacity, n_shards)
            specs.append(
                TensorSpec(
                    key, (value.capacity, value.dim), value.dtype, rooms, value.layout(rooms[0][2]),
                    value.random_state, creation,
                )
            )  # fmt: skip
        else:
            specs.append(
                TensorSpec(
                    key, value.shape, value.dtype.name, tuple(parts[key]), creation=creation
                )
            )  # fmt: skip
    return tuple(specs)
