from typing import Any

from dps._runtime.asynchronous import AsynchronousEnd, AsynchronousStep

class GatheringEnd(AsynchronousEnd):
    """A rank's end of a shard that applies the mean of `aggregate` gradients.

    A gradient that misses more than `drop_after` updates is dropped; None: none is.
    """

    aggregate: int
    drop_after: int
    def __init__(
        self, window: Any, *given: Any, aggregate: int, drop_after: int | None
    ) -> None: ...

class GatheringStep(AsynchronousStep):
    """A rank's pushes to shards that gather."""
