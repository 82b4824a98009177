"""Async: the shards hold the parameters, and a gradient is applied when it comes.

Nobody waits for anybody while steps are taken. Reads are not coordinated with writes, and two
replicas that push at once may each lose element updates of the other; what one replica alone does
is bit for bit sequential training. The protocol is in ``_runtime/asynchronous.pyx``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dps._runtime.asynchronous import AsynchronousEnd, AsynchronousStep
from dps._runtime.step import Step
from dps.modes.base import Mode, StepSpec

__all__ = ["Async"]


@dataclass(frozen=True)
class Async(Mode):
    """A shard applies each replica's gradient when it comes.

    Examples
    --------
    >>> Async().steps([600, 400], batch_size=100)
    (6, 4)
    """

    name: ClassVar[str] = "async"
    together: ClassVar[bool] = False
    end: ClassVar[type[AsynchronousEnd]] = AsynchronousEnd

    @property
    def deterministic(self) -> bool:
        """It depends on who comes first."""
        return False

    def steps(self, rows: Sequence[int], batch_size: int) -> tuple[int, ...]:
        """Each rank goes through its own rows at its own pace."""
        return tuple(-(-n // batch_size) for n in rows)

    def updates(self, steps: Sequence[int]) -> int:
        """Every rank's steps are updates of their own."""
        return sum(steps)

    def step(self, spec: StepSpec) -> Step:
        """A rank's free line to the shards."""
        return AsynchronousStep(
            spec.rank, spec.ends, spec.params, spec.total, spec.version, spec.activity,
            spec.update.rates,
        )  # fmt: skip
