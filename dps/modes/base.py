"""The interface of a mode: when a gradient is applied, and which replicas wait.

A mode is a frozen description that can be pickled. Its steps are compiled (``dps/_runtime``): the
work of a rank in the window of a shard, and over all of its shards. Modes know neither models nor
data.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from dps._parameters import Configuration, check_real

if TYPE_CHECKING:
    from dps._runtime.channel.base import ShardChannel
    from dps._runtime.channel.host_sum import HostReducer
    from dps._runtime.shared.activity import Activity
    from dps._runtime.step import Step
    from dps.optimizers.update import Update
    from dps.server.shard import ChannelKind

ACCESSES = ("auto", "mapped", "stream")
WIRES = ("exact", "bfloat16")


@dataclass(frozen=True)
class StepSpec:
    """The arguments of a rank's steps."""

    rank: int
    channels: list[ShardChannel]  # one per shard, in order
    params: NDArray[np.floating]  # (n,) the parameters
    total: NDArray[np.floating]  # (n,) receives means over ranks and broadcasts
    version: int  # number of updates
    activity: Activity
    update: Update  # how a gradient is applied to the whole vector
    # (1 + state_rows, n) parameters and state, if replicas hold them.
    held: NDArray[np.floating] | None
    host: HostReducer | None = None  # the window in which ranks of the host sum first
    # This rank's number among those that take part in steps; -1 if another rank of its host does so
    # for it.
    place: int = 0
    epoch_steps: int = 0  # largest number of steps that a rank has in an epoch


@dataclass(frozen=True, repr=False, kw_only=True)
class Mode(Configuration, ABC):
    """Base of the modes."""

    # {"auto", "mapped", "stream"} whether replicas map the shards' windows if possible, must, or
    # must not.
    access: str = "auto"

    #: Its name in the registry.
    name: ClassVar[str]
    #: True if replicas take the same steps, and all close an epoch together.
    together: ClassVar[bool] = True
    #: True if the shards hold the parameters, and not every replica.
    shards_hold_parameters: ClassVar[bool] = True

    #: True if it needs a model with a table whose rows are created on first use.
    needs_table: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.access not in ACCESSES:
            raise ValueError(
                f"The 'access' parameter of {type(self).__name__} must be a str among "
                f"{list(ACCESSES)}. Got {self.access!r} instead."
            )

    @property
    @abstractmethod
    def channel(self) -> ChannelKind:
        """The channel of a rank's steps in the window of a shard."""

    @property
    @abstractmethod
    def deterministic(self) -> bool:
        """True if the same plan gives the same bits with several replicas."""

    @property
    def begins(self) -> Mode:
        """The mode of the first steps, from which the fit may change."""
        return self

    @property
    def waits_for_all(self) -> bool:
        """True if a step waits for every replica, so that replicas of a host may sum first."""
        return self.together

    @property
    def takes_steps_only(self) -> bool:
        """True if its options concern stochastic steps, which excludes L-BFGS."""
        return False

    def _quorum(self, n_replicas: int) -> int:
        """Return the number of gradients that an update waits for; 0 means all."""
        return 0

    @property
    def pauses_every(self) -> float:
        """Seconds between snapshots within an epoch; infinity: none.

        For modes whose whole state between two steps is the parameters, the optimizer state and
        the number of steps, all equal on every rank.
        """
        return math.inf

    @property
    def bound(self) -> int | None:
        """Largest number of steps between a replica and the slowest one; None: unlimited."""
        return None

    @property
    def gathers(self) -> bool:
        """True if shards hold gradients for some time before they apply them."""
        return False

    @property
    def narrow(self) -> bool:
        """True if whole vectors of a step cross between hosts as bfloat16."""
        return False

    @property
    def uses_ring(self) -> bool:
        """True if whole vectors go around a ring, so that each replica needs a shard."""
        return False

    @property
    def described(self) -> str:
        """The name, and the options that differ from their defaults, except `access`.

        Examples
        --------
        >>> from dps import Sync
        >>> Sync(backups=1, access="stream").described
        'sync (backups=1)'
        """
        asked = self._asked(("access",))
        return f"{self.name} ({asked})" if asked else self.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._asked()})"

    def _asked(self, but: Sequence[str] = ()) -> str:
        """Return the options that differ from their defaults."""
        return ", ".join(
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)
            if field.name not in but and getattr(self, field.name) != field.default
        )

    @property
    def steps_apart(self) -> int:
        """Number of steps between two at which replicas wait for each other."""
        return 1

    def _steps(self, rows: Sequence[int], batch_size: int) -> tuple[int, ...]:
        """Return the steps per epoch of each rank, so that an update takes `batch_size` rows.

        By default all ranks take the same steps, and share the rows of each batch.

        Parameters
        ----------
        rows : sequence of int
            Training rows of each rank.
        batch_size : int
            Rows of one update.
        """
        return (-(-sum(rows) // batch_size),) * len(rows)

    def _updates(self, steps: Sequence[int]) -> int:
        """Return the updates per epoch, from the steps of each rank."""
        return max(steps)

    @abstractmethod
    def _step(self, spec: StepSpec) -> Step:
        """Make a rank's steps over all of its shards."""


@dataclass(frozen=True, repr=False, kw_only=True)
class PausingMode(Mode):
    """Base of modes whose replicas all take the same steps, so that they can pause together."""

    # {"exact", "bfloat16"} how gradients and parameters of dense steps travel between hosts.
    wire: str = "exact"

    # Seconds between snapshots within an epoch; 0: after each step, None: only at the ends of
    # epochs. Steps by keys have none.
    snapshot_every: float | None = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.wire not in WIRES:
            raise ValueError(
                f"The 'wire' parameter of {type(self).__name__} must be a str among "
                f"{list(WIRES)}. Got {self.wire!r} instead."
            )
        if self.snapshot_every is not None:
            check_real(self, "snapshot_every", 0.0, math.inf, closed="left")

    def _check_pauses(self, why: str) -> None:
        """Raise if snapshots within an epoch are requested but impossible."""
        if self.snapshot_every not in (None, PausingMode.snapshot_every):
            raise ValueError(
                f"there are no snapshots within epochs with {why}: leave snapshot_every. Got "
                f"{self.snapshot_every!r}."
            )

    @property
    def narrow(self) -> bool:
        """See `Mode`."""
        return self.wire == "bfloat16"

    @property
    def pauses_every(self) -> float:
        """See `Mode`."""
        return math.inf if self.snapshot_every is None else float(self.snapshot_every)
