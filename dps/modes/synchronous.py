"""Sync: the shards hold the parameters, and an update waits for every rank.

One step applies ``sum_r g_r / sum_r n_r``, summed in rank order. So the result is bit for bit that
of one process that sums the same sub-batches in the same order. With backups an update waits for
the first ranks only, see ``_runtime/modes/backups.pyx``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dps._parameters import check_integer, in_order_of_docstring
from dps._runtime.modes.backups import BackupsChannel, BackupsStep
from dps._runtime.modes.synchronous import SynchronousChannel, SynchronousStep
from dps._runtime.wire.message import Coding
from dps.modes.base import PausingMode, StepSpec

if TYPE_CHECKING:
    from dps._runtime.step import Step
    from dps.server.shard import ChannelKind

_LATE = ("drop", "add")
_MOST_WITH_BACKUPS = 4095  # replicas; `backups.pyx` counts gradients in 12 bits


@in_order_of_docstring
@dataclass(frozen=True, repr=False, kw_only=True)
class Sync(PausingMode):
    r"""Every update waits for all replicas (the default), or for all but the slowest.

    With b backups an update is the mean over the first N - b gradients of N replicas (Chen et al.,
    2016):

    .. math:: \sum_{r \in F} g_r / \sum_{r \in F} n_r

    A late replica continues with the current step of the group.

    Parameters
    ----------
    backups : int, default=0
        Number b of replicas that no update waits for; fewer than there are.
    late_gradients : {"drop", "add"}, default="drop"
        Treatment of a late gradient: it is dropped, or it counts in the current step, beside the
        N - b of that step.

    wire : {"exact", "bfloat16"}, default="exact"
        Numbers of dense steps on their way between hosts. "bfloat16" has half the bytes of float32:
        gradients are rounded, and each sender adds the rounding error to its next gradient. Sums
        and updates stay exact, and replicas receive the rounded change of the parameters. The
        result depends on which replicas share a host. L-BFGS and sparse steps stay exact.
    snapshot_every : float or None, default=10.0
        Seconds between snapshots within an epoch, from which the same replicas continue after a
        loss or from a checkpoint. 0 takes one after each step, None only at the ends of epochs.
        Sparse steps and backups have none.
    access : {"auto", "mapped", "stream"}, default="auto"
        The way from replicas to the shards of their own host. "mapped" is shared memory, and an
        error if it cannot be mapped. "stream" is a connection. "auto" takes shared memory if
        possible, else a connection.

    Examples
    --------
    >>> from dps import MLPClassifier, Sync
    >>> model = MLPClassifier(mode=Sync(backups=1), n_replicas=4)  # waits for three
    """

    backups: int = 0
    late_gradients: str = "drop"

    name: ClassVar[str] = "sync"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self, "backups", 0)
        if self.late_gradients not in _LATE:
            raise ValueError(
                f"The 'late_gradients' parameter of Sync must be a str among {list(_LATE)}. "
                f"Got {self.late_gradients!r} instead."
            )
        if self.late_gradients != "drop" and not self.backups:
            raise ValueError(
                f"late_gradients={self.late_gradients!r} needs backups >= 1, got backups=0"
            )
        if self.backups:
            self._check_pauses("backups")

    @property
    def channel(self) -> ChannelKind:
        """See `Mode`."""
        return BackupsChannel if self.backups else SynchronousChannel

    @property
    def deterministic(self) -> bool:
        """True without backups."""
        return not self.backups

    @property
    def pauses_every(self) -> float:
        """Infinity with backups, since a late gradient belongs to no snapshot."""
        return math.inf if self.backups else super().pauses_every

    @property
    def waits_for_all(self) -> bool:
        """True without backups: every update waits."""
        return not self.backups

    @property
    def takes_steps_only(self) -> bool:
        """True with backups: L-BFGS waits for all replicas."""
        return self.backups > 0

    def _quorum(self, n_replicas: int) -> int:
        """Return the number of gradients per update if others may come late; 0: all.

        Raises
        ------
        ValueError
            No replica is left to be waited for.
        """
        if self.backups >= n_replicas:
            raise ValueError(
                f"backups={self.backups} leaves none of {n_replicas} replicas to wait for: use "
                "fewer backups, or a larger n_replicas"
            )
        if self.backups and n_replicas > _MOST_WITH_BACKUPS:
            raise ValueError(
                f"backups={self.backups} counts up to {_MOST_WITH_BACKUPS:,} replicas, and there "
                f"are {n_replicas:,}: use a smaller n_replicas, or no backups"
            )
        return n_replicas - self.backups if self.backups else 0

    def _steps(self, rows: Sequence[int], batch_size: int) -> tuple[int, ...]:
        """See `Mode`; with backups every replica must have rows in each step."""
        self._quorum(len(rows))
        steps = super()._steps(rows, batch_size)
        if self.backups and min(rows) < steps[0]:
            raise ValueError(
                f"backups={self.backups} needs rows of every replica in each step, and one has "
                f"{min(rows)} rows for {steps[0]} steps: set dps.rebalance of "
                "dask.config to True, or use a larger batch_size"
            )
        return steps

    def _step(self, spec: StepSpec) -> Step:
        """Make the step of a rank, which waits for all others, or for the fastest."""
        given = (
            spec.rank, spec.channels, spec.params, spec.total, spec.version, spec.activity,
            spec.update.rates,
        )  # fmt: skip
        if self.backups:
            step: Step = BackupsStep(*given, self.late_gradients == "add")
        else:
            step = SynchronousStep(*given, spec.host)
        step.coding = Coding.CHANGES if self.narrow else Coding.FULL
        return step
