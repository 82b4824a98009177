"""Sync: the shards hold the parameters, and an update waits for every rank.

One step applies ``sum_r g_r / sum_r n_r``, summed in rank order, so the result is bit
for bit that of one process which sums the same sub-batches in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dps._runtime.step import Step
from dps._runtime.synchronous import SynchronousEnd, SynchronousStep
from dps.modes.base import Mode, StepSpec
from dps.server.shard import EndKind

__all__ = ["Sync"]


@dataclass(frozen=True)
class Sync(Mode):
    """Every update waits for all replicas (the default).

    Examples
    --------
    >>> Sync().steps([600, 400], batch_size=100)
    (10, 10)
    """

    name: ClassVar[str] = "sync"
    deterministic: ClassVar[bool] = True

    @property
    def end(self) -> EndKind:
        """See `Mode`."""
        return SynchronousEnd

    def steps(self, rows: Sequence[int], batch_size: int) -> tuple[int, ...]:
        """All ranks take the same steps; a batch is shared out among them."""
        return (-(-sum(rows) // batch_size),) * len(rows)

    def step(self, spec: StepSpec) -> Step:
        """A rank's part in updates that wait for all."""
        return SynchronousStep(
            spec.rank, spec.ends, spec.params, spec.total, spec.version, spec.activity,
            spec.update.rates, spec.host,
        )  # fmt: skip
