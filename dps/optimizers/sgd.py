"""Stochastic gradient descent. It must not know where the vectors live."""

from dataclasses import dataclass
from typing import Any

from dps._kernels import optimizers as kernels
from dps.optimizers.base import Optimizer
from dps.optimizers.schedules import InvScaling, Schedule

__all__ = ["SGD"]


@dataclass(frozen=True)
class SGD(Optimizer):
    r"""Stochastic gradient descent, :math:`p \leftarrow p - \eta g` (Robbins and Monro, 1951).

    The proximal step of the penalty has the step size :math:`\eta`.

    Examples
    --------
    >>> import numpy as np
    >>> params = np.array([1.0, 2.0])
    >>> SGD().update(params, np.ones(2), np.empty((0, 2)), step=1, lr=0.5, l1=0.0, l2=0.0)
    True
    >>> params
    array([0.5, 1.5])
    """

    @property
    def default_schedule(self) -> Schedule:
        """``InvScaling(0.1)``."""
        return InvScaling(0.1)

    def update(
        self, params: Any, grad: Any, state: Any, *, step: int, lr: float, l1: float, l2: float
    ) -> bool:
        """Apply one update, see `Optimizer.update`."""
        return kernels.sgd(params, grad, lr, l1, l2)
