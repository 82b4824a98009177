"""Checks of values: against type hints, as integers, as arrays.

They are for messages of a cluster, files and models, which kernels trust.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import signature
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import numpy as np

Check = Callable[[Any], bool]
#: Largest plausible integer.
_LARGEST_INTEGER = 1 << 62


def seconds_of(given: Any) -> float | None:
    """Return the seconds of a number or of a time in Dask's format; None if it is neither.

    Examples
    --------
    >>> seconds_of(90), seconds_of("30m"), seconds_of("soon")
    (90.0, 1800.0, None)
    """
    if isinstance(given, str):
        from dask.utils import parse_timedelta

        try:
            return float(parse_timedelta(given))
        except (IndexError, KeyError, ValueError):
            return None
    return float(given) if type(given) is not bool and isinstance(given, Real) else None


@cache
def check_of(hint: Any, least: int = -_LARGEST_INTEGER) -> Check:
    """Return a check of values against a type hint; integers must be at least `least`.

    Lists may be tuples, since msgpack returns these; True and False are not numbers. Integers of a
    typed dict are counts from 0.

    Examples
    --------
    >>> check_of(dict | None)(None), check_of(tuple[int, ...])((1, True)), check_of(float)(3)
    (True, False, True)
    """
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (NotRequired, Required):
        return check_of(inside[0], least)
    if origin is Literal:
        return lambda value: isinstance(value, str) and value in inside
    if origin in (UnionType, Union):
        parts = [check_of(part, least) for part in inside]
        return lambda value: any(part(value) for part in parts)
    if origin is list or (origin is tuple and inside[-1] is Ellipsis):
        item, kinds = check_of(inside[0], least), (list, tuple) if origin is list else (tuple,)
        return lambda value: isinstance(value, kinds) and all(map(item, value))
    if hint is NoneType:
        return lambda value: value is None
    if hint is int:
        return lambda value: (
            type(value) is not bool
            and isinstance(value, Integral)
            and least <= int(value) < _LARGEST_INTEGER
        )
    if hint is float:
        return lambda value: type(value) is not bool and isinstance(value, Real)
    if is_typeddict(hint):
        return _fields_of(hint)
    kind = origin or hint
    if hint is Any or not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return lambda value: True
    return lambda value: isinstance(value, kind)


def _fields_of(schema: Any) -> Check:
    """Return the check of a typed dict, which may have further fields."""
    hints = get_type_hints(schema, include_extras=True)
    wanted = {name: check_of(hint, 0) for name, hint in hints.items()}
    optional = {name for name, hint in hints.items() if get_origin(hint) is NotRequired}

    def check(value: Any) -> bool:
        return isinstance(value, dict) and all(
            is_right(value[name]) if name in value else name in optional
            for name, is_right in wanted.items()
        )

    return check


@cache
def _checks_of(cls: Any) -> dict[str, Check]:
    hints = {**get_type_hints(cls.__init__), **get_type_hints(cls)}
    return {name: check_of(hints.get(name, Any)) for name in signature(cls).parameters}


def check_fields(cls: Any, values: dict[str, Any]) -> None:
    """Raise unless values have the types of a class's parameters.

    Raises ValueError: the message names the parameter.
    """
    for name, is_right in _checks_of(cls).items():
        if name in values and not is_right(values[name]):
            raise ValueError(f"{name} is {values[name]!r}, which does not belong there")


def floats(value: Any, name: str, *shape: int, finite: bool = True) -> Any:
    """Return a float32 or float64 array of a shape.

    Raises ValueError: it is something else, or has NaN or infinity although it must be finite.
    """
    if not isinstance(value, np.ndarray) or value.dtype not in (np.float32, np.float64):
        raise ValueError(f"{name} is no array of float32 or float64")
    if value.shape != shape:
        raise ValueError(f"{name} has the shape {value.shape}, where {shape} belongs")
    if finite and not np.isfinite(value).all():
        raise ValueError(f"{name} has values that are not finite")
    return value


def count(value: Any, name: str, least: int = 0) -> int:
    """Return an integer.

    Raises ValueError: it is something else, or too small.
    """
    if not check_of(int)(value) or value < least:
        raise ValueError(f"{name} is {value!r}, and must be a whole number from {least} on")
    return int(value)
