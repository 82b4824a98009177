"""Configuration dataclasses: their parameters, and checks of these.

Errors have scikit-learn's wording.
"""

import inspect
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Self, TypeVar

Closed = Literal["both", "left", "right", "neither"]
_Class = TypeVar("_Class", bound=type)


def in_order_of_docstring(cls: _Class) -> _Class:
    """Put the keywords of a dataclass in the order of its docstring, in its signature.

    Examples
    --------
    >>> from dps import Sync
    >>> [*inspect.signature(Sync).parameters]
    ['backups', 'late_gradients', 'wire', 'snapshot_every', 'access']
    """
    text = inspect.cleandoc(cls.__doc__ or "").partition("\nParameters\n")[2]
    lines = re.findall(r"^(\w+(?:, \w+)*) :", text, re.MULTILINE)
    place = {name: place for place, name in enumerate(", ".join(lines).split(", "))}
    makes: Any = cls.__init__  # type: ignore[misc]
    signature = inspect.signature(makes)

    def order(parameter: inspect.Parameter) -> tuple[int, int]:
        keyword = parameter.kind is parameter.KEYWORD_ONLY
        return parameter.kind, place.get(parameter.name, len(place)) if keyword else 0

    ordered = sorted(signature.parameters.values(), key=order)
    makes.__signature__ = signature.replace(parameters=ordered)
    return cls


class Configuration:
    """Base of frozen dataclasses that are parameters of estimators; clones share them."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the fields by name.

        Parameters
        ----------
        deep : bool, default=True
            Whether to include parameters of nested configurations, as ``base__momentum``.
        """
        found = {field.name: getattr(self, field.name) for field in fields(self) if field.init}
        if deep:
            for name, value in list(found.items()):
                if isinstance(value, Configuration):
                    inner = value.get_params()
                    found |= {f"{name}__{each}": inner[each] for each in inner}
        return found

    def _with(self, params: Mapping[str, Any]) -> Self:
        """Return a copy with other fields, named as in `get_params`."""
        known, changes, inner = self.get_params(deep=False), {}, dict[str, dict[str, Any]]()
        for name, value in params.items():
            outer, nested, rest = name.partition("__")
            if outer not in known:
                raise ValueError(
                    f"Invalid parameter {outer!r} for {type(self).__name__}. Valid parameters are: "
                    f"{sorted(known)}."
                )
            if nested:
                inner.setdefault(outer, {})[rest] = value
            else:
                changes[name] = value
        for outer, given in inner.items():
            value = changes.get(outer, known[outer])
            if not isinstance(value, Configuration):
                raise ValueError(
                    f"{type(self).__name__}({outer}={value!r}) has no parameter {min(given)!r}"
                )
            changes[outer] = value._with(given)
        return replace(self, **changes)

    def __sklearn_clone__(self) -> Self:
        return self


def check_real(
    owner: object, name: str, low: float, high: float, *, closed: Closed = "both"
) -> None:
    """Raise unless a field of ``owner`` is a real number in an interval.

    owner: its class is named in the error.
    name: the field.
    low, high: the interval; an infinite end is always open.
    closed: {"both", "left", "right", "neither"}, which finite ends belong to the interval.
    Raises TypeError: if the value is not a real number.
    Raises ValueError: if it lies outside.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> check_real(SimpleNamespace(rate=-1), "rate", 0.0, float("inf"))
    Traceback (most recent call last):
    ...
    ValueError: The 'rate' parameter of SimpleNamespace must be a float in the range [0.0, inf).
    Got -1 instead.
    """
    value: Any = getattr(owner, name)
    infinite = float("inf")
    opening = "[" if closed in ("both", "left") and low > -infinite else "("
    closing = "]" if closed in ("both", "right") and high < infinite else ")"
    message = (
        f"The {name!r} parameter of {type(owner).__name__} must be a float in the range "
        f"{opening}{low}, {high}{closing}. Got {value!r} instead."
    )
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(message)
    number = float(value)
    above = low <= number if opening == "[" else low < number
    below = number <= high if closing == "]" else number < high
    if not (above and below):
        raise ValueError(message)


def check_integer(owner: object, name: str, low: int, high: int | None = None) -> None:
    """Raise unless a field of ``owner`` is an integer from ``low`` to ``high``.

    owner: its class is named in the error.
    name: the field.
    low: the smallest value allowed.
    high: the largest.
    Raises TypeError: if the value is not an integer.
    Raises ValueError: if it is too small, or too large.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> check_integer(SimpleNamespace(start=1), "start", 0)
    """
    value: Any = getattr(owner, name)
    message = (
        f"The {name!r} parameter of {type(owner).__name__} must be an int in the range "
        f"[{low}, {'inf)' if high is None else f'{high}]'}. Got {value!r} instead."
    )
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(message)
    number = int(value)
    if number < low or (high is not None and number > high):
        raise ValueError(message)
