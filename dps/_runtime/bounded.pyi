from typing import Any

from dps._runtime.asynchronous import AsynchronousEnd, AsynchronousStep

class BoundedEnd(AsynchronousEnd):
    """A rank's end of a shard where nobody is over `max_delay` steps ahead; None: no bound."""

    max_delay: int
    def __init__(self, *given: Any, max_delay: int | None) -> None: ...

class BoundedStep(AsynchronousStep):
    """A rank's pushes where ranks count their steps; `epoch_steps` are of the longest epoch."""

    clock: int
    def __init__(self, *given: Any, epoch_steps: int) -> None: ...
