"""A check of messages of the topic: their fields and types.

Any process of a cluster may log messages under the topic. Only sound events are
shown and counted. The schema of ``events`` is the rule; nothing here knows its fields.
"""

from __future__ import annotations

from typing import Any

from dps._checks import check_of
from dps.monitor import events
from dps.monitor.events import VERSION, Event


def is_sound(event: Any) -> bool:
    """True if something is an event of this version whose fields are what the schema says.

    Whole numbers count something, from 0. Further fields may be there, and so may kinds that a
    newer dps has.

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
    if kind not in events.KINDS:  # of a newer dps, as far as every event says
        return isinstance(kind, str) and check_of(Event)({**event, "kind": "started"})
    return check_of(getattr(events, f"{kind.capitalize()}Event"))(event)
