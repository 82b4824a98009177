"""Async: the shards hold the parameters, and a gradient is applied when it comes.

Nobody waits for anybody while steps are taken, unless `max_delay` says so. Reads are not
coordinated with writes, and two replicas that push at once may each lose element updates of the
other; what one replica alone does is bit for bit sequential training. The protocols are in
``_runtime/asynchronous.pyx`` and ``bounded.pyx``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from dps._parameters import check_integer
from dps._runtime.asynchronous import AsynchronousEnd, AsynchronousStep
from dps._runtime.bounded import BoundedEnd, BoundedStep
from dps._runtime.step import Step
from dps.modes.base import Mode, StepSpec
from dps.server.shard import EndKind

__all__ = ["Async"]


@dataclass(frozen=True)
class Async(Mode):
    """A shard applies each replica's gradient when it comes.

    Parameters
    ----------
    max_delay : int or None, default=None
        Stale synchronous parallel (Ho et al. 2013): a replica begins a step when it is at most so
        many steps ahead of the slowest, and else waits. None: nobody waits. With 0 each step
        applies the gradients that all replicas have taken at the same parameters, one after the
        other: with SGD, equal batches and no penalty that is the step of sync with `batch_size`
        and learning rate multiplied by the number of replicas, to rounding.

    Examples
    --------
    >>> Async().steps([600, 400], batch_size=100)
    (6, 4)
    >>> Async(max_delay=8).max_staleness(n_replicas=4)
    51
    """

    max_delay: int | None = None

    name: ClassVar[str] = "async"
    deterministic: ClassVar[bool] = False
    together: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_delay is not None:
            check_integer(self, "max_delay", 0)

    @property
    def end(self) -> EndKind:
        """See `Mode`."""
        if self.max_delay is None:
            return AsynchronousEnd
        return partial(BoundedEnd, max_delay=int(self.max_delay))

    def max_staleness(self, n_replicas: int) -> int | None:
        """The updates that a push may miss at the most; None where there is no bound.

        Of each other replica these are 2 `max_delay` + 1.
        """
        return None if self.max_delay is None else (2 * self.max_delay + 1) * (n_replicas - 1)

    def steps(self, rows: Sequence[int], batch_size: int) -> tuple[int, ...]:
        """Each rank goes through its own rows at its own pace."""
        return tuple(-(-n // batch_size) for n in rows)

    def updates(self, steps: Sequence[int]) -> int:
        """Every rank's steps are updates of their own."""
        return sum(steps)

    def step(self, spec: StepSpec) -> Step:
        """A rank's line to the shards."""
        given = (
            spec.rank, spec.ends, spec.params, spec.total, spec.version, spec.activity,
            spec.update.rates,
        )  # fmt: skip
        if self.max_delay is None:
            return AsynchronousStep(*given)
        return BoundedStep(*given, epoch_steps=spec.epoch_steps)
