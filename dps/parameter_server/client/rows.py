"""The rows of a tensor that a call selects, and the parts that hold them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dps.data.hashing import hashes_of
from dps.parameter_server.shard.layout import TensorSpec


@dataclass(frozen=True)
class Piece:
    """The selected rows of one part."""

    part: int
    start: int  # first element, or -1 for a selection by keys
    n: int  # number of elements
    keys: NDArray[np.int64] | None  # (k,) keys in the part's own numbers
    at: Any  # positions of these rows in the selection


@dataclass(frozen=True)
class Chosen:
    """The rows that a call selects."""

    rows: int
    shape: tuple[int, ...]  # shape of their values
    pieces: tuple[Piece, ...]  # one per part, which may be empty


def choose(tensor: TensorSpec, keys: Any) -> Chosen:
    """Return the rows of a tensor for None (all), a slice, a row number, or several.

    Raises TypeError, ValueError, IndexError: it is none of these, or out of bounds.
    """
    if tensor.table is not None:
        if keys is None or isinstance(keys, slice):
            raise ValueError(
                f"{tensor.name!r} is a table: say which ids by keys=, an array of integers"
            )
        return _by_keys(tensor, _integers(tensor, keys))
    if keys is None:
        return _run(tensor, 0, tensor.rows, tensor.shape)
    if not tensor.shape:
        raise ValueError(f"{tensor.name!r} is a single number, which has no rows")
    if isinstance(keys, slice):
        first, last, step = keys.indices(tensor.rows)
        if step == 1:
            last = max(first, last)
            return _run(tensor, first, last, (last - first, *tensor.shape[1:]))
        keys = np.arange(first, last, step)
    return _by_keys(tensor, _integers(tensor, keys))


def _run(tensor: TensorSpec, first: int, last: int, shape: tuple[int, ...]) -> Chosen:
    pieces = []
    for number, (_, start, stop) in enumerate(tensor.parts):
        a, b = min(max(first, start), stop), max(min(last, stop), start)
        b = max(a, b)
        at = slice(a - first, b - first) if a < b else slice(0, 0)
        pieces.append(Piece(number, (a - start) * tensor.width, (b - a) * tensor.width, None, at))
    return Chosen(last - first, shape, tuple(pieces))


def _has_texts(keys: np.ndarray) -> bool:
    return keys.dtype == object and keys.size > 0 and all(isinstance(key, str) for key in keys.flat)


def ids_of(texts: Any) -> NDArray[np.int64]:
    """Return ids of texts for tables: 62 bits of SipHash, in the shape of the texts."""
    given = np.asarray(texts, object)
    if not all(isinstance(text, str) for text in given.flat):
        raise TypeError(f"texts must be strings. Got {texts!r} instead.")
    hashes = hashes_of(given.ravel()) >> np.uint64(2)
    return hashes.astype(np.int64).reshape(given.shape)


def _integers(tensor: TensorSpec, keys: Any) -> NDArray[np.int64]:
    found = np.asarray(keys)
    if tensor.table is not None and (found.dtype.kind == "U" or _has_texts(found)):
        found = ids_of(keys)
    if found.size and found.dtype.kind not in "iu":
        raise TypeError(
            f"keys of {tensor.name!r} must be integers, "
            f"{'texts' if tensor.table else 'a slice'} or None. Got {keys!r} instead."
        )
    if found.ndim > 1:
        raise ValueError(f"keys of {tensor.name!r} must be of one dimension, got {found.ndim}")
    most = 1 << 62 if tensor.table is not None else tensor.rows
    if found.size and (int(found.min()) < 0 or int(found.max()) >= most):
        wrong = next(key for key in found.flat if not 0 <= int(key) < most)
        raise IndexError(
            f"key {wrong} of {tensor.name!r} is outside of "
            f"{'0 to 2**62 - 1' if tensor.table is not None else f'its {tensor.rows} rows'}"
        )
    return np.require(found, np.int64, ["C", "A"])


def _by_keys(tensor: TensorSpec, keys: NDArray[np.int64]) -> Chosen:
    shape = (*keys.shape, *tensor.shape[1:])
    flat = keys.reshape(-1)
    if len(tensor.parts) == 1:
        piece = Piece(0, -1, flat.size * tensor.width, flat, slice(None))
        return Chosen(flat.size, shape, (piece,))
    pieces = []
    owner = tensor.part_of(flat)
    for number, (_, first, _) in enumerate(tensor.parts):
        at = np.flatnonzero(owner == number)
        own = flat[at] - (0 if tensor.table is not None else first)
        pieces.append(Piece(number, -1, at.size * tensor.width, own, at))
    return Chosen(flat.size, shape, tuple(pieces))


def values_for(
    tensor: TensorSpec, chosen: Chosen, values: Any, *, spread: bool
) -> NDArray[np.floating]:
    """Return a call's values for rows as (rows, width) in the tensor's dtype.

    spread: whether a number may stand for all.
    Raises ValueError, TypeError: the shape is wrong, or the values are not real numbers.
    """
    given = np.asarray(values)
    if given.dtype.kind not in "fiub":
        raise TypeError(f"values for {tensor.name!r} must be real numbers, got {given.dtype}")
    if given.shape != chosen.shape:
        if not (spread and given.ndim == 0):
            raise ValueError(
                f"values for {tensor.name!r} must have the shape {chosen.shape}, got {given.shape}"
            )
        given = np.broadcast_to(given, chosen.shape)
    made = np.require(given, tensor.dtype, ["C", "A"]).reshape(chosen.rows, tensor.width)
    return made


def summed(
    keys: NDArray[np.int64], values: NDArray[np.floating]
) -> tuple[NDArray[np.int64], NDArray[np.floating], NDArray[np.int64] | None]:
    """Sum the gradients of each key.

    Returns the distinct keys and their sums.
    Returns array or None, the position of each given key among them; None if they are the same.
    """
    order = np.sort(keys)
    if keys.size < 2 or (order[1:] != order[:-1]).all():
        return keys, values, None
    found, back = np.unique(keys, return_inverse=True)
    sums = np.zeros((len(found), values.shape[1]), values.dtype)
    np.add.at(sums, back, values)
    return found, sums, back
