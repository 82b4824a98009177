"""Stochastic gradient descent. It must not know where the vectors live."""

from dataclasses import dataclass

from dps._kernels.optimizers import UpdateKernel
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

    @property
    def kernel(self) -> UpdateKernel:  # type: ignore[override]
        """The kernel ``sgd``."""
        return UpdateKernel("sgd")
