"""Stochastic gradient descent and momentum."""

from dataclasses import dataclass
from typing import ClassVar

from dps._kernels.optimizers import UpdateKernel
from dps._parameters import check_real
from dps.optimizers.base import Optimizer
from dps.optimizers.schedules import InvScaling, Schedule


@dataclass(frozen=True)
class SGD(Optimizer):
    r"""Stochastic gradient descent, :math:`p \leftarrow p - \eta g` (Robbins and Monro, 1951).

    The proximal step of the penalty has the step size :math:`\eta`.

    Parameters
    ----------
    learning_rate : float, Schedule, name of a schedule or "auto", default="auto"
        See `Optimizer`.

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


@dataclass(frozen=True, kw_only=True)
class Momentum(Optimizer):
    r"""Gradient descent with (heavy ball or Nesterov) momentum, in PyTorch's form.

    .. math:: v \leftarrow \mu v + g, \qquad p \leftarrow p - \eta v

    With ``nesterov``, :math:`p \leftarrow p - \eta (g + \mu v)` (Sutskever et al., 2013). The
    learning rate is outside of the velocity, as in ``torch.optim.SGD``. The proximal step of the
    penalty has the step size :math:`\eta / (1 - \mu)`, the length a constant gradient moves.

    Parameters
    ----------
    learning_rate : float, Schedule, name of a schedule or "auto", default="auto"
        See `Optimizer`.
    momentum : float, default=0.9
        :math:`\mu`, in [0, 1).
    nesterov : bool, default=False

    Examples
    --------
    >>> import numpy as np
    >>> params, state = np.zeros(1), np.zeros((1, 1))
    >>> for step in (1, 2):
    ...     _ = Momentum().update(params, np.ones(1), state, step=step, lr=1.0, l1=0.0, l2=0.0)
    >>> params
    array([-2.9])
    """

    state_rows: ClassVar[int] = 1
    momentum: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_real(self, "momentum", 0.0, 1.0, closed="left")

    @property
    def default_schedule(self) -> Schedule:
        """``InvScaling(0.01)``."""
        return InvScaling(0.01)

    @property
    def kernel(self) -> UpdateKernel:  # type: ignore[override]
        """The kernel ``momentum``."""
        return UpdateKernel("momentum", momentum=self.momentum, nesterov=self.nesterov)
