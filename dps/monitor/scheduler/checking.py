"""Validation of messages in the topic: their fields and types.

Any process of a cluster may log messages to the topic. Only valid events are shown and counted. The
rules come from the schema in ``events``.
"""

from __future__ import annotations

from typing import Any

from dps._checks import check_of
from dps.monitor import events
from dps.monitor.events import VERSION, Event


def is_sound(event: Any) -> bool:
    """True if a value is an event of this version with fields as in the schema.

    Integers are counts from 0. Further fields are allowed, and so are kinds of a newer dps.

    Examples
    --------
    >>> is_sound({"v": 2, "kind": "stopped", "fit": "f00d", "time": 0.0, "reason": "converged",
    ...           "epochs": 3, "loss": 0.5, "seconds": 2.0})
    True
    >>> is_sound({"v": 2, "kind": "stopped", "fit": "f00d", "time": 0.0, "reason": "<script>",
    ...           "epochs": 3, "loss": 0.5, "seconds": 2.0})
    False
    """
    if not isinstance(event, dict) or event.get("v") != VERSION:
        return False
    kind = event.get("kind")
    if kind not in events.KINDS:  # a kind of a newer dps, with the fields of every event
        return isinstance(kind, str) and check_of(Event)({**event, "kind": "started"})
    return check_of(getattr(events, f"{kind.capitalize()}Event"))(event)
