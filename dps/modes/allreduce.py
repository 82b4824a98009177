"""Allreduce: every replica holds the parameters and applies the same mean gradient.

The shards provide windows with gradient slots but no parameters. The direct mean and the update are
computed by the code of sync, so all ranks hold the bits of sync. A ring sums in another order, see
``_runtime/modes/ring.pyx``. With ``period`` replicas take local steps in between, see
``_runtime/modes/local.pyx``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from dps._parameters import check_integer, check_real, in_order_of_docstring
from dps._runtime.modes.allreduce import AllReduceChannel, AllReduceStep
from dps._runtime.modes.local import LocalStep
from dps._runtime.modes.ring import RingStep
from dps._runtime.wire.message import Coding
from dps.modes.base import PausingMode, StepSpec
from dps.optimizers import SGD, Momentum, Optimizer

if TYPE_CHECKING:
    from dps._runtime.step import Step
    from dps.server.shard import ChannelKind

_ALGORITHMS = ("direct", "ring")
_OUTER = ("average", "nesterov")


@in_order_of_docstring
@dataclass(frozen=True, repr=False, kw_only=True)
class AllReduce(PausingMode):
    r"""Replicas reduce their gradients and each applies the same update to its copy.

    With ``period`` above 1 each replica takes that many steps on its own copy, with the optimizer
    of the fit and its own part of each batch, before copies are brought together:

    .. math:: D = \sum_r n_r (\theta - \theta_r) / \sum_r n_r

    where :math:`\theta` is the last common copy, and :math:`n_r` the rows of replica r since then.
    The mean :math:`\theta - D` is local SGD (Lin et al., 2020); an outer step of Nesterov momentum,
    :math:`v \leftarrow \mu v + D`, :math:`\theta \leftarrow \theta - \eta (D + \mu v)`, is DiLoCo
    (Douillard et al., 2023). Both papers give all replicas as many rows.

    Parameters
    ----------
    algorithm : {"direct", "ring"}, default="direct"
        With "direct" each host sends every shard its part of the gradient. With "ring" it sends to
        its right neighbour only, in 2 (N - 1) messages a step for N hosts. Both move the same
        bytes. A ring has fewer active connections and N - 1 times the latency. Sparse steps and
        L-BFGS are direct.
    period : int, default=1
        Steps between two reductions. The last step of an epoch ends with one too. More than 1
        excludes L-BFGS.
    outer : {"average", "nesterov"}, default="average"
        The step from the copies to the next common copy.
    outer_learning_rate : float, default=0.7
        :math:`\eta` of ``outer="nesterov"``.
    outer_momentum : float, default=0.9
        :math:`\mu`, in [0, 1), of ``outer="nesterov"``. Its velocity is 0 at the start of each
        `fit` and `partial_fit`.

    wire : {"exact", "bfloat16"}, default="exact"
        Numbers of dense steps and of local steps on their way between hosts. "bfloat16" has half
        the bytes of float32: gradients are rounded, and each sender adds the rounding error to its
        next gradient. Sums are exact and their mean is rounded in the same way, so that all
        replicas apply the same bits. The result depends on which replicas share a host. L-BFGS and
        sparse steps stay exact.
    snapshot_every : float or None, default=10.0
        Seconds between snapshots within an epoch, from which the same replicas continue after a
        loss or from a checkpoint. 0 takes one after each step, None only at the ends of epochs.
        Sparse steps, and `period` or `outer`, have none.
    access : {"auto", "mapped", "stream"}, default="auto"
        The way from replicas to the shards of their own host. "mapped" is shared memory, and an
        error if it cannot be mapped. "stream" is a connection. "auto" takes shared memory if
        possible, else a connection.

    Examples
    --------
    >>> from dps import AllReduce, MLPClassifier
    >>> model = MLPClassifier(mode=AllReduce(period=16))
    """

    algorithm: str = "direct"
    period: int = 1
    outer: str = "average"
    outer_learning_rate: float = 0.7
    outer_momentum: float = 0.9

    name: ClassVar[str] = "allreduce"
    shards_hold_parameters: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for option, choices in (("algorithm", _ALGORITHMS), ("outer", _OUTER)):
            if getattr(self, option) not in choices:
                raise ValueError(
                    f"The {option!r} parameter of AllReduce must be a str among {list(choices)}. "
                    f"Got {getattr(self, option)!r} instead."
                )
        check_integer(self, "period", 1)
        check_real(self, "outer_learning_rate", 0.0, float("inf"), closed="neither")
        check_real(self, "outer_momentum", 0.0, 1.0, closed="left")
        for option in ("outer_learning_rate", "outer_momentum"):
            if self.outer != "nesterov" and getattr(self, option) != getattr(type(self), option):
                raise ValueError(
                    f"{option} has no effect without outer='nesterov'. Got outer={self.outer!r}."
                )
        if self.takes_steps_only:
            self._check_pauses("period, or outer")
        if self.uses_ring and self.access == "stream":
            raise ValueError(
                "algorithm='ring' needs a window beside each replica: access='stream' has none"
            )

    @property
    def deterministic(self) -> bool:
        """True: all ranks hold the same bits after each reduction."""
        return True

    @property
    def pauses_every(self) -> float:
        """Infinity while copies differ, since they are not one state."""
        return math.inf if self.takes_steps_only else super().pauses_every

    @property
    def uses_ring(self) -> bool:
        """True for the ring."""
        return self.algorithm == "ring"

    @property
    def channel(self) -> ChannelKind:
        """See `Mode`."""
        return AllReduceChannel

    @property
    def takes_steps_only(self) -> bool:
        """True with local steps."""
        return self.period > 1 or self.outer != "average"

    @property
    def steps_apart(self) -> int:
        """See `Mode`."""
        return self.period

    def _step(self, spec: StepSpec) -> Step:
        """Make the step of a rank, which updates its own copy of the parameters."""
        if not self.takes_steps_only:
            return self._reduction(spec)
        assert spec.held is not None
        outer: Optimizer = SGD()
        if self.outer == "nesterov":
            outer = Momentum(momentum=self.outer_momentum, nesterov=True)
        whole = replace(spec, update=replace(spec.update, rates=None))
        return LocalStep(
            spec.rank, spec.channels, spec.held, spec.total, spec.version, spec.activity,
            spec.update, spec.host, self._reduction(whole), self.period, outer,
            self.outer_learning_rate if self.outer == "nesterov" else 1.0,
        )  # fmt: skip

    def _reduction(self, spec: StepSpec) -> AllReduceStep:
        assert spec.held is not None
        given = (
            spec.rank, spec.channels, spec.held, spec.total, spec.version, spec.activity,
            spec.update, spec.host,
        )  # fmt: skip
        step = RingStep(*given, spec.place) if self.uses_ring else AllReduceStep(*given)
        step.coding = Coding.NARROW if self.narrow else Coding.FULL
        return step
