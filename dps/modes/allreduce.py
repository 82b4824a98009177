"""Allreduce: every replica holds the parameters and applies the same mean gradient.

The shards lend windows with gradient slots and no parameters. The direct mean is the one that
sync applies, computed by the same lines, and so is the update: all ranks hold the same
bits, and they are those of sync. A ring has another order of sums, see ``_runtime/ring.pyx``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dps._runtime.allreduce import AllReduceEnd, AllReduceStep
from dps._runtime.ring import RingStep
from dps._runtime.step import Step
from dps.modes.base import Mode, StepSpec
from dps.server.shard import EndKind

__all__ = ["AllReduce"]

_ALGORITHMS = ("direct", "ring")


@dataclass(frozen=True)
class AllReduce(Mode):
    """Replicas reduce their gradients and each applies the same update to its copy.

    Parameters
    ----------
    algorithm : {"direct", "ring"}, default="direct"
        Each host sends every shard its part of the gradient; or it sends to its right neighbour
        only, 2 (N - 1) messages a step among N hosts. Both move as many bytes. A ring needs fewer
        connections at work, and takes N - 1 times as long for a message to come round: it is for
        many hosts and large models. Steps by keys, and L-BFGS, are direct.

    Examples
    --------
    >>> AllReduce(algorithm="ring").shards_hold_parameters
    False
    """

    algorithm: str = "direct"

    name: ClassVar[str] = "allreduce"
    deterministic: ClassVar[bool] = True
    shards_hold_parameters: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.algorithm not in _ALGORITHMS:
            raise ValueError(
                "The 'algorithm' parameter of AllReduce must be a str among "
                f"{list(_ALGORITHMS)}. Got {self.algorithm!r} instead."
            )
        if self.goes_round and self.access == "stream":
            raise ValueError(
                "algorithm='ring' needs a window beside each replica: access='stream' has none"
            )

    @property
    def goes_round(self) -> bool:
        """Whether whole vectors go from neighbour to neighbour."""
        return self.algorithm == "ring"

    @property
    def end(self) -> EndKind:
        """See `Mode`."""
        return AllReduceEnd

    def steps(self, rows: Sequence[int], batch_size: int) -> tuple[int, ...]:
        """All ranks take the same steps; a batch is shared out among them."""
        return (-(-sum(rows) // batch_size),) * len(rows)

    def step(self, spec: StepSpec) -> Step:
        """A rank's copy of the parameters and its place in the reduction."""
        assert spec.held is not None
        given = (
            spec.rank, spec.ends, spec.held, spec.total, spec.version, spec.activity, spec.update,
            spec.host,
        )  # fmt: skip
        return RingStep(*given, spec.place) if self.goes_round else AllReduceStep(*given)
