"""Async: the shards hold the parameters, and a gradient is applied when it comes.

Nobody waits for anybody while steps are taken, unless `max_delay` says so. Reads are not
coordinated with writes, and two replicas that push at once may each lose element updates of the
other; what one replica alone does is bit for bit sequential training. The protocols are in
``_runtime/asynchronous.pyx``, ``bounded.pyx`` and ``compensation.pyx``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from dps._parameters import check_integer, check_real
from dps._runtime.asynchronous import AsynchronousEnd, AsynchronousStep
from dps._runtime.bounded import BoundedEnd, BoundedStep
from dps._runtime.compensation import AgedEnd, DelayedEnd
from dps._runtime.step import Step
from dps.modes.base import Mode, StepSpec
from dps.server.shard import EndKind

__all__ = ["Async"]

_COMPENSATIONS = ("age", "delay")
#: Of the experiments of the paper, where it is constant.
_STRENGTH = 0.04


@dataclass(frozen=True)
class Async(Mode):
    r"""A shard applies each replica's gradient when it comes.

    Parameters
    ----------
    max_delay : int or None, default=None
        Stale synchronous parallel (Ho et al. 2013): a replica begins a step when it is at most so
        many steps ahead of the slowest, and else waits. None: nobody waits. With 0 each step
        applies the gradients that all replicas have taken at the same parameters, one after the
        other: with SGD, equal batches and no penalty that is the step of sync with `batch_size`
        and learning rate multiplied by the number of replicas, to rounding.
    compensation : {"age", "delay"} or None, default=None
        What is done about a gradient that misses updates, see the notes.
    compensation_strength : float, default=0.04
        :math:`\lambda` of ``compensation="delay"``.

    Notes
    -----
    With ``compensation="age"`` (Zhang, Gupta, Lian and Liu 2016) the learning rate of an update is
    :math:`\alpha / \max(1, \tau)`, where :math:`\tau` updates came to the shard between the
    replica's pull and its push. With ``"delay"`` (DC-ASGD-c, Zheng et al. 2017) the mean gradient
    :math:`g` becomes :math:`g + \lambda\, g \odot g \odot (w_{now} - w_{pulled})`, where the
    square of g stands for the diagonal of the Hessian.

    Examples
    --------
    >>> Async().steps([600, 400], batch_size=100)
    (6, 4)
    >>> Async(max_delay=8).max_staleness(n_replicas=4)
    51
    """

    max_delay: int | None = None
    compensation: str | None = None
    compensation_strength: float = _STRENGTH

    name: ClassVar[str] = "async"
    together: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_delay is not None:
            check_integer(self, "max_delay", 0)
        if self.compensation not in (None, *_COMPENSATIONS):
            raise ValueError(
                "The 'compensation' parameter of Async must be a str among "
                f"{list(_COMPENSATIONS)} or None. Got {self.compensation!r} instead."
            )
        check_real(self, "compensation_strength", 0.0, float("inf"), closed="left")
        if self.compensation != "delay" and self.compensation_strength != _STRENGTH:
            raise ValueError(
                "compensation_strength is of compensation='delay', got "
                f"compensation={self.compensation!r}"
            )

    @property
    def end(self) -> EndKind:
        """See `Mode`."""
        if self.compensation == "age":
            return partial(AgedEnd, max_delay=self.max_delay)
        if self.compensation == "delay":
            strength = float(self.compensation_strength)
            return partial(DelayedEnd, max_delay=self.max_delay, strength=strength)
        if self.max_delay is not None:
            return partial(BoundedEnd, max_delay=self.max_delay)
        return AsynchronousEnd

    def max_staleness(self, n_replicas: int) -> int | None:
        """The updates that a push may miss at the most; None where there is no bound.

        Of each other replica these are 2 `max_delay` + 1.
        """
        return None if self.max_delay is None else (2 * self.max_delay + 1) * (n_replicas - 1)

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
        """A rank's line to the shards."""
        given = (
            spec.rank, spec.ends, spec.params, spec.total, spec.version, spec.activity,
            spec.update.rates,
        )  # fmt: skip
        if self.max_delay is None and self.compensation is None:
            return AsynchronousStep(*given)
        return BoundedStep(*given, epoch_steps=spec.epoch_steps)
