"""Hybrid: tables are updated when a gradient arrives, other tensors when all have arrived."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dps._parameters import in_order_of_docstring
from dps._runtime.modes.hybrid import HybridChannel
from dps._runtime.modes.synchronous import SynchronousStep
from dps.modes.base import Mode, StepSpec

if TYPE_CHECKING:
    from dps._runtime.step import Step
    from dps.server.shard import ChannelKind


@in_order_of_docstring
@dataclass(frozen=True, repr=False, kw_only=True)
class Hybrid(Mode):
    r"""Dense tensors are trained synchronously, tables of embeddings asynchronously.

    For models with a table on the shards ("PERSIA", Lian et al., 2021). Dense tensors are updated
    as in sync. Of N replicas each updates the table rows of its own batch at once by

    .. math:: g_r / (N n_r)

    No replica sums table rows or waits for them. A row that two replicas touch in one step is
    penalised once for each.

    Parameters
    ----------
    access : {"auto", "mapped", "stream"}, default="auto"
        The way from replicas to the shards of their own host. "mapped" is shared memory, and an
        error if it cannot be mapped. "stream" is a connection. "auto" takes shared memory if
        possible, else a connection.

    Examples
    --------
    >>> from dps import FMClassifier, Hybrid
    >>> model = FMClassifier(n_factors=8, mode=Hybrid())
    """

    name: ClassVar[str] = "hybrid"
    needs_table: ClassVar[bool] = True

    @property
    def channel(self) -> ChannelKind:
        """See `Mode`."""
        return HybridChannel

    @property
    def deterministic(self) -> bool:
        """False: table rows are updated as gradients arrive."""
        return False

    @property
    def takes_steps_only(self) -> bool:
        """True: L-BFGS does not train tables."""
        return True

    def _step(self, spec: StepSpec) -> Step:
        """Make the step of a rank, which waits for others except for table rows."""
        return SynchronousStep(
            spec.rank, spec.channels, spec.params, spec.total, spec.version, spec.activity,
            spec.update.rates, spec.host,
        )  # fmt: skip
