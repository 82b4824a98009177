"""AdamW. It must not know where the vectors live."""

from dataclasses import dataclass
from typing import ClassVar

from dps._kernels.optimizers import UpdateKernel
from dps._parameters import check_real
from dps.optimizers.base import Optimizer
from dps.optimizers.schedules import InvScaling, Schedule

__all__ = ["AdamW"]


@dataclass(frozen=True)
class AdamW(Optimizer):
    r"""Adam whose penalty is decoupled from the gradient (Loshchilov and Hutter, 2019).

    The step is that of :class:`Adam`; the proximal step of the penalty has the learning rate
    as its size for all coordinates, :math:`p \leftarrow p / (1 + \eta\, l_2)`, which is AdamW's
    weight decay in the implicit form of "Understanding AdamW through Proximal Methods" (Zhuang et
    al., 2022). Its limit is not the minimum of loss and penalty.

    Parameters
    ----------
    beta1, beta2 : float, default=0.9, 0.999
        Decay of the two moments, in [0, 1).
    epsilon : float, default=1e-8
        Not negative.

    Examples
    --------
    A coordinate without a gradient decays all the same:

    >>> import numpy as np
    >>> params, state = np.ones(1), np.zeros((2, 1))
    >>> AdamW().update(params, np.zeros(1), state, step=1, lr=0.5, l1=0.0, l2=2.0)
    True
    >>> params
    array([0.5])
    """

    state_rows: ClassVar[int] = 2
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        check_real(self, "beta1", 0.0, 1.0, closed="left")
        check_real(self, "beta2", 0.0, 1.0, closed="left")
        check_real(self, "epsilon", 0.0, float("inf"))

    @property
    def default_schedule(self) -> Schedule:
        """``InvScaling(0.02)``."""
        return InvScaling(0.02)

    @property
    def kernel(self) -> UpdateKernel:  # type: ignore[override]
        """The kernel ``adam``."""
        return UpdateKernel(
            "adam", beta1=self.beta1, beta2=self.beta2, epsilon=self.epsilon, decoupled=True
        )
