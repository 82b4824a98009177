"""Allreduce: every replica holds the parameters and applies the same mean gradient.

The shards lend windows with gradient slots and no parameters. The mean is the one that
sync applies, computed by the same lines, and so is the update: all ranks hold the same
bits, and they are those of sync.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dps._runtime.allreduce import AllReduceEnd, AllReduceStep
from dps._runtime.step import Step
from dps.modes.base import Mode, StepSpec

__all__ = ["AllReduce"]


@dataclass(frozen=True)
class AllReduce(Mode):
    """Replicas reduce their gradients and each applies the same update to its copy.

    Examples
    --------
    >>> AllReduce().shards_hold_parameters
    False
    """

    name: ClassVar[str] = "allreduce"
    deterministic: ClassVar[bool] = True
    end: ClassVar[type[AllReduceEnd]] = AllReduceEnd
    shards_hold_parameters: ClassVar[bool] = False

    def steps(self, rows: Sequence[int], batch_size: int) -> tuple[int, ...]:
        """All ranks take the same steps; a batch is shared out among them."""
        return (-(-sum(rows) // batch_size),) * len(rows)

    def step(self, spec: StepSpec) -> Step:
        """A rank's copy of the parameters and its place in the reduction."""
        assert spec.held is not None
        return AllReduceStep(
            spec.rank, spec.ends, spec.held, spec.total, spec.version, spec.activity, spec.update,
            spec.host,
        )  # fmt: skip
