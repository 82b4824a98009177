from typing import Any

from dps._runtime.bounded import BoundedEnd

class AgedEnd(BoundedEnd):
    """A rank's end of a shard that divides steps by their age."""

class DelayedEnd(BoundedEnd):
    """A rank's end of a shard that moves gradients to the present; `strength` is lambda."""

    strength: float
    def __init__(
        self, window: Any, *given: Any, max_delay: int | None, strength: float
    ) -> None: ...
