"""Adam. It must not know where the vectors live."""

from dataclasses import dataclass
from typing import ClassVar

from dps._kernels.optimizers import UpdateKernel
from dps._parameters import check_real
from dps.optimizers.base import Optimizer
from dps.optimizers.schedules import InvScaling, Schedule

__all__ = ["Adam"]


@dataclass(frozen=True)
class Adam(Optimizer):
    r"""Adam, Algorithm 1 of Kingma and Ba (2015), as in PyTorch.

    .. math::

        m \leftarrow \beta_1 m + (1 - \beta_1) g, \quad
        v \leftarrow \beta_2 v + (1 - \beta_2) g^2, \quad
        p \leftarrow p - \eta\, \hat m / (\sqrt{\hat v} + \epsilon)

    with :math:`\hat m = m / (1 - \beta_1^t)` and :math:`\hat v = v / (1 - \beta_2^t)`. TensorFlow
    adds its epsilon before the bias correction. The proximal step of the penalty has the
    coordinate's own step size :math:`\eta / (\sqrt{\hat v} + \epsilon)`.

    Parameters
    ----------
    beta1, beta2 : float, default=0.9, 0.999
        Decay of the two moments, in [0, 1).
    epsilon : float, default=1e-8
        Not negative.
    lazy : bool, default=False
        On sparse rows, update only what a batch touches, as ``torch.optim.SparseAdam`` and
        TensorFlow's ``LazyAdam``: moments of other coordinates neither decay nor move them. That
        is another algorithm, at the cost of the stored values instead of the whole vector.
        Proximal steps that a coordinate has missed are made up for when it is touched next, with
        the step size it has then. On dense rows every coordinate is touched. With ``average``, or
        a loss, model or mode written in Python, it is an error on sparse rows.

    Examples
    --------
    The first step has the length of the learning rate, whatever the gradient:

    >>> import numpy as np
    >>> params, state = np.zeros(2), np.zeros((2, 2))
    >>> grad = np.array([1.0, -100.0])
    >>> Adam().update(params, grad, state, step=1, lr=0.5, l1=0.0, l2=0.0)
    True
    >>> params.round(6)
    array([-0.5,  0.5])
    """

    state_rows: ClassVar[int] = 2
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    lazy: bool = False

    def __post_init__(self) -> None:
        check_real(self, "beta1", 0.0, 1.0, closed="left")
        check_real(self, "beta2", 0.0, 1.0, closed="left")
        check_real(self, "epsilon", 0.0, float("inf"))

    @property
    def always_lazy(self) -> bool:  # type: ignore[override]
        """``lazy``."""
        return self.lazy

    @property
    def default_schedule(self) -> Schedule:
        """``InvScaling(0.02)``."""
        return InvScaling(0.02)

    @property
    def kernel(self) -> UpdateKernel:  # type: ignore[override]
        """The kernel ``adam``."""
        return UpdateKernel(
            "adam", beta1=self.beta1, beta2=self.beta2, epsilon=self.epsilon, lazy=self.lazy
        )
