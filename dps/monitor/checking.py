"""Whether a message of the topic is an event at all: its fields, and what they are made of.

Anybody on a cluster may log messages under the topic. What is shown, or counted, of one is taken
from sound events alone. The schema of ``events`` is the rule; nothing here knows its fields.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, NotRequired, Required, get_args, get_origin, get_type_hints

from dps.monitor import events
from dps.monitor.events import VERSION, Event

__all__ = ["is_sound"]

Check = Callable[[Any], bool]


def is_sound(event: Any) -> bool:
    """Whether something is an event of this version whose fields are what the schema says.

    Whole numbers count something, from 0. Further fields may be there, and so may kinds that a
    newer dps has.

    Examples
    --------
    >>> is_sound({"v": 1, "kind": "stopped", "fit": "f00d", "time": 0.0, "reason": "converged",
    ...           "epochs": 3, "loss": 0.5, "seconds": 2.0})
    True
    >>> is_sound({"v": 1, "kind": "stopped", "fit": "f00d", "time": 0.0, "reason": "<script>",
    ...           "epochs": 3, "loss": 0.5, "seconds": 2.0})
    False
    """
    if not isinstance(event, dict) or event.get("v") != VERSION:
        return False
    kind = event.get("kind")
    if kind not in events.KINDS:  # of a newer dps, as far as every event says
        return isinstance(kind, str) and _fields(Event)({**event, "kind": "started"})
    return _fields(getattr(events, f"{kind.capitalize()}Event"))(event)


@cache
def _fields(schema: Any) -> Check:
    """The check of a typed dict."""
    hints = get_type_hints(schema, include_extras=True)
    wanted = {name: _check(hint) for name, hint in hints.items()}
    optional = {name for name, hint in hints.items() if get_origin(hint) is NotRequired}

    def check(value: Any) -> bool:
        return isinstance(value, dict) and all(
            is_right(value[name]) if name in value else name in optional
            for name, is_right in wanted.items()
        )

    return check


def _check(hint: Any) -> Check:
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (NotRequired, Required):
        return _check(inside[0])
    if origin is Literal:
        return lambda value: isinstance(value, str) and value in inside
    if origin is UnionType:
        parts = [_check(part) for part in inside]
        return lambda value: any(part(value) for part in parts)
    if origin is list:
        item = _check(inside[0])
        return lambda value: isinstance(value, list | tuple) and all(map(item, value))
    if hint is NoneType:
        return lambda value: value is None
    if hint is bool or hint is str:
        return lambda value: isinstance(value, hint)
    if hint is int:
        return _is_count
    if hint is float:
        return lambda value: type(value) is not bool and isinstance(value, Real)
    return _fields(hint)


def _is_count(value: Any) -> bool:
    return type(value) is not bool and isinstance(value, Integral) and int(value) >= 0
