"""Async: the shards hold the parameters, and apply a gradient when it arrives.

No replica waits for another during steps, except as `max_delay` requires. Reads are not coordinated
with writes, and two replicas that push at once may each lose some element updates of the other. A
single replica gives bit for bit sequential training. The protocols are in
``_runtime/modes/asynchronous.pyx``, ``bounded.pyx``, ``aggregate.pyx`` and ``compensation.pyx``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from dps._parameters import check_integer, check_real, in_order_of_docstring
from dps._runtime.modes.aggregate import GatheringChannel, GatheringStep
from dps._runtime.modes.asynchronous import AsynchronousChannel, AsynchronousStep
from dps._runtime.modes.bounded import BoundedChannel, BoundedStep
from dps._runtime.modes.compensation import AgedChannel, DelayedChannel
from dps.modes.base import Mode, StepSpec

if TYPE_CHECKING:
    from dps._runtime.step import Step
    from dps.server.shard import ChannelKind

_COMPENSATIONS = ("age", "delay")
#: The value of the paper's experiments, in which it is constant.
_STRENGTH = 0.04


@in_order_of_docstring
@dataclass(frozen=True, repr=False, kw_only=True)
class Async(Mode):
    r"""A shard applies each replica's gradient when it arrives.

    Parameters
    ----------
    max_delay : int or None, default=None
        Stale synchronous parallel (Ho et al. 2013): a replica waits if it is more than this many
        steps ahead of the slowest. None bounds nothing. With 0 all replicas compute from the same
        parameters, and their gradients are applied one after another: with SGD, equal batches and
        no penalty that is the step of sync with `batch_size` and learning rate multiplied by the
        number of replicas, to rounding.
    aggregate : int or None, default=None
        The shard collects this many gradients and applies :math:`\sum g / \sum n` as one update,
        with n their rows. At the end of an epoch the remaining gradients are applied. None applies
        each gradient by itself. It does not combine with `max_delay`, which would not bound
        collected gradients, nor with `compensation`, because a mean of gradients of several ages
        has none.
    drop_after : int or None, default=None
        With `aggregate`, gradients that miss more updates than this are dropped, and their rows are
        counted as `rows_dropped` in ``history_``. 0 is TensorFlow's SyncReplicasOptimizer without
        its tokens. None drops none.
    compensation : {"age", "delay"} or None, default=None
        Correction of gradients that miss updates, see the notes.
    compensation_strength : float, default=0.04
        :math:`\lambda` of ``compensation="delay"``.
    access : {"auto", "mapped", "stream"}, default="auto"
        The way from replicas to the shards of their own host. "mapped" is shared memory, and an
        error if it cannot be mapped. "stream" is a connection. "auto" takes shared memory if
        possible, else a connection.

    Notes
    -----
    With ``compensation="age"`` (Zhang, Gupta, Lian and Liu 2016) the learning rate of an update is
    :math:`\alpha / \max(1, \tau)`, where :math:`\tau` is the number of updates between the
    replica's pull and its push. With ``"delay"`` (DC-ASGD-c, Zheng et al. 2017) the mean gradient
    :math:`g` becomes :math:`g + \lambda\, g \odot g \odot (w_{now} - w_{pulled})`, where the square
    of g approximates the diagonal of the Hessian.

    Examples
    --------
    >>> from dps import Async, MLPClassifier
    >>> model = MLPClassifier(mode=Async(max_delay=8), n_replicas=4)
    >>> model.mode.max_staleness(n_replicas=4)
    51
    """

    max_delay: int | None = None
    aggregate: int | None = None
    drop_after: int | None = None
    compensation: str | None = None
    compensation_strength: float = _STRENGTH

    name: ClassVar[str] = "async"
    together: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("max_delay", 0), ("aggregate", 1), ("drop_after", 0)):
            if getattr(self, name) is not None:
                check_integer(self, name, least)
        self._check_aggregate()
        if self.compensation not in (None, *_COMPENSATIONS):
            raise ValueError(
                "The 'compensation' parameter of Async must be a str among "
                f"{list(_COMPENSATIONS)} or None. Got {self.compensation!r} instead."
            )
        check_real(self, "compensation_strength", 0.0, float("inf"), closed="left")
        if self.compensation != "delay" and self.compensation_strength != _STRENGTH:
            raise ValueError(
                "compensation_strength has no effect without compensation='delay', got "
                f"compensation={self.compensation!r}"
            )

    def _check_aggregate(self) -> None:
        if self.aggregate is None:
            if self.drop_after is not None:
                raise ValueError(
                    f"drop_after={self.drop_after} has no effect without aggregate: give it, too; "
                    "aggregate=1 applies each gradient by itself"
                )
        elif self.max_delay is not None:
            raise ValueError(
                "aggregate and max_delay do not go together: a step counts as taken when its "
                "gradient has been gathered, so max_delay would not bound what replicas miss; use "
                "drop_after"
            )
        elif self.compensation is not None:
            raise ValueError(
                f"aggregate and compensation={self.compensation!r} do not go together: a mean of "
                "gradients of several ages has no age of its own; use drop_after"
            )

    @property
    def bound(self) -> int | None:
        """Largest number of steps between a replica and the slowest one; None: unbounded."""
        return self.max_delay

    @property
    def gathers(self) -> bool:
        """True with `aggregate`: shards hold gradients before they apply them."""
        return self.aggregate is not None

    @property
    def channel(self) -> ChannelKind:
        """See `Mode`."""
        if self.aggregate is not None:
            return partial(GatheringChannel, aggregate=self.aggregate, drop_after=self.drop_after)
        if self.compensation == "age":
            return partial(AgedChannel, max_delay=self.max_delay)
        if self.compensation == "delay":
            strength = float(self.compensation_strength)
            return partial(DelayedChannel, max_delay=self.max_delay, strength=strength)
        if self.max_delay is not None:
            return partial(BoundedChannel, max_delay=self.max_delay)
        return AsynchronousChannel

    def max_staleness(self, n_replicas: int) -> int | None:
        """Largest number of updates that a push may miss; None: unbounded.

        There are at most 2 `max_delay` + 1 of each other replica.
        """
        return None if self.max_delay is None else (2 * self.max_delay + 1) * (n_replicas - 1)

    @property
    def deterministic(self) -> bool:
        """False: gradients are applied as they arrive."""
        return False

    def _steps(self, rows: Sequence[int], batch_size: int) -> tuple[int, ...]:
        """Return the steps per epoch of each rank: its rows over the batch size."""
        return tuple(-(-n // batch_size) for n in rows)

    def _updates(self, steps: Sequence[int]) -> int:
        """Return the updates per epoch: one per step, or per `aggregate` steps."""
        return -(-sum(steps) // (self.aggregate or 1))

    def _step(self, spec: StepSpec) -> Step:
        """Make the step of a rank, which sends its gradients to the shards."""
        given = (
            spec.rank, spec.channels, spec.params, spec.total, spec.version, spec.activity,
            spec.update.rates,
        )  # fmt: skip
        if self.aggregate is not None:
            return GatheringStep(*given)
        if self.max_delay is None and self.compensation is None:
            return AsynchronousStep(*given)
        return BoundedStep(*given, epoch_steps=spec.epoch_steps)
