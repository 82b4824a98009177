"""The running mean of another optimizer's parameters."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import numpy as np

from dps._kernels.optimizers import UpdateKernel
from dps._parameters import check_integer
from dps.optimizers.base import Optimizer
from dps.optimizers.schedules import Schedule


@dataclass(frozen=True)
class Averaged(Optimizer):
    r"""Reports the mean of the parameters over updates (Polyak and Juditsky, 1992).

    .. math:: \bar p \leftarrow \bar p + (p - \bar p) / (t - s) \quad \text{for updates } t > s

    ``base`` makes the updates, at its learning rate. The mean is one more state row; it is NaN
    before the first update and follows the parameters up to update ``start``.

    Parameters
    ----------
    base : Optimizer
    start : int, default=0
        :math:`s`: how many updates are left out of the mean.
    horizon : int, default=0
        The most by which a difference is divided: a mean over about the last `horizon` updates,
        whose weights fall exponentially. 0: over all.

    Examples
    --------
    >>> import numpy as np
    >>> from dps.optimizers import SGD
    >>> optimizer = Averaged(SGD())
    >>> params, state = np.zeros(1), np.empty((optimizer.state_rows, 1))
    >>> optimizer.initialize(state)
    >>> for step in (1, 2, 3):
    ...     _ = optimizer.update(params, -np.ones(1), state, step=step, lr=1.0, l1=0.0, l2=0.0)
    >>> params, optimizer.result(params, state)
    (array([3.]), array([2.]))
    """

    reports_a_mean: ClassVar[bool] = True
    learning_rate: float | Schedule | str = field(default="auto", init=False, repr=False)
    base: Optimizer
    start: int = field(default=0, kw_only=True)
    horizon: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.base, Optimizer):
            raise TypeError(
                f"The 'base' parameter of Averaged must be an Optimizer. Got {self.base!r} instead."
            )
        check_integer(self, "start", 0)
        check_integer(self, "horizon", 0)
        object.__setattr__(self, "learning_rate", self.base.learning_rate)

    @property
    def state_rows(self) -> int:  # type: ignore[override]
        """The rows of ``base`` and one for the mean."""
        return self.base.state_rows + 1

    @property
    def always_lazy(self) -> bool:  # type: ignore[override]
        """That of ``base``; a mean does not allow lazy updates."""
        return self.base.always_lazy

    @property
    def default_schedule(self) -> Schedule:
        """The schedule of ``base``."""
        return self.base.default_schedule

    @property
    def _undecayed(self) -> Averaged:
        return replace(self, base=self.base._undecayed)

    def initialize(self, state: Any) -> None:
        """Fill the state of ``base`` and an unknown mean, see `Optimizer.initialize`."""
        self.base.initialize(state[:-1])
        state[-1] = np.nan

    def update(
        self, params: Any, grad: Any, state: Any, *, step: int, lr: float, l1: float, l2: float
    ) -> bool:
        """Apply one update of ``base`` and of the mean, see `Optimizer.update`."""
        kernel = self.kernel
        if kernel is not None:
            return kernel.update(params, grad, state, step=step, lr=lr, l1=l1, l2=l2)
        finite = self.base.update(params, grad, state[:-1], step=step, lr=lr, l1=l1, l2=l2)
        if step <= self.start + 1:
            state[-1] = params
        else:
            count = step - self.start
            count = min(count, self.horizon) if self.horizon else count
            state[-1] += (params - state[-1]) / params.dtype.type(count)
        return finite

    @property
    def kernel(self) -> UpdateKernel | None:  # type: ignore[override]
        """The kernel of ``base`` with a running mean."""
        native = self.base.native
        return None if native is None else native.averaged(self.start, self.horizon)

    def result(self, params: Any, state: Any) -> Any:
        """Return the mean, or ``params`` before the first update, see `Optimizer.result`."""
        unknown = np.isnan(state[-1])
        return np.where(unknown, params, state[-1]) if unknown.any() else state[-1]


_Given = TypeVar("_Given", bound=Optimizer | None)


def base_of(optimizer: _Given) -> Optimizer | _Given:
    """Return the optimizer whose parameters may be averaged."""
    return optimizer.base if isinstance(optimizer, Averaged) else optimizer
